"""Files that are a target by themselves, such as those of the output `files`: each named by the pairs that it holds.

A task writes them under a name that says that they are staged (`_staged.….part`); who commits them renames them.
"""

import json
import re
import uuid
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import pyarrow as pa

from databus.core import COMMIT_VERSION, SEQ, Pair
from databus.disk import Location
from databus.flow import DataFile, Folders, TableRows, first_pair, last_pair, parted, row_lines
from databus.formats import BigIntegers

_PAIRS: Final = r"(\d{19})\.(\d{19})-(\d{19})\.(\d{19})"
_NAME: Final = re.compile(rf"_?{_PAIRS}\.([0-9a-f]{{16}})\.(parquet|jsonl|control\.json)")
_STAGED: Final = re.compile(rf"_staged\.{_PAIRS}\.[0-9a-f]{{32}}\.part")
_CONTROL: Final = "control.json"


def _words(first: Pair, last: Pair) -> str:
    return f"{first[0]:019d}.{first[1]:019d}-{last[0]:019d}.{last[1]:019d}"


class LooseName(NamedTuple):
    """What the name of a file says: that it holds what lies between two pairs, of the log of a number."""

    first: Pair
    last: Pair
    log: int
    suffix: str

    @classmethod
    def of_control(cls, pair: Pair, last: Pair, log: int) -> Self:
        """Of the file of one control."""
        return cls(pair, last, log, _CONTROL)

    @classmethod
    def parse(cls, name: str) -> "LooseName | None":
        """What `str` gave; None for any other file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        *numbers, log, suffix = match.groups()
        first, last = _pairs(*map(int, numbers))
        return cls(first, last, int(log, 16), suffix)

    def __str__(self) -> str:
        """Names of rows sort as their pairs do, and so do those of controls, which readers pass over for their `_`."""
        hidden = "_" if self.suffix == _CONTROL else ""
        return f"{hidden}{_words(self.first, self.last)}.{self.log:016x}.{self.suffix}"


def _pairs(*numbers: int) -> tuple[Pair, Pair]:
    return (numbers[0], numbers[1]), (numbers[2], numbers[3])


def is_staged_file(name: str) -> bool:
    """Whether a file of that name was written by `LooseWriter`, and not yet renamed."""
    return _STAGED.fullmatch(name) is not None


def first_staged(name: str) -> Pair:
    """The pair of the first row in a file that `LooseWriter` has written."""
    match = _STAGED.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is no staged file")
    return _pairs(*map(int, match.groups()))[0]


@dataclass(frozen=True)
class LooseWriter:
    """Writes rows into staged files in the folders of their tables; see `PartWriter`."""

    folders: Folders
    compression: str | None
    """Of Parquet; None to write lines of JSON instead."""
    big_integers: BigIntegers
    rows_max: int
    """Of a file."""

    def write(self, name: str, rows: TableRows) -> list[DataFile]:
        """See `PartWriter.write`."""
        physical, _, source = name.partition("/")
        folder = self.folders.of(physical, source)
        return [self._write(folder, name, TableRows(rows.table, part)) for part in parted(rows.rows, self.rows_max)]

    def _write(self, folder: Location, source: str, rows: TableRows) -> DataFile:
        name = f"_staged.{_words(first_pair(rows.rows), last_pair(rows.rows))}.{uuid.uuid4().hex}.part"
        with (folder / name).writing() as file:
            if self.compression is None:
                file.writelines(line.encode() for line in row_lines(source, rows.table, rows.rows, self.big_integers))
            else:
                file.write(_parquet(rows.rows, self.compression))
            size = file.tell()
        return DataFile(name, size, rows.rows.num_rows, "")


def pairs_in_file(content: bytes, suffix: str) -> set[Pair]:
    """The pairs of the rows of a file, as `LooseWriter` has written it."""
    import pyarrow.parquet as pq

    names = [COMMIT_VERSION, SEQ]
    if suffix == "parquet":
        table = pq.read_table(pa.BufferReader(content), columns=names)
        return set(zip(*(table.column(name).to_pylist() for name in names), strict=True))
    rows = (json.loads(line) for line in content.splitlines())  # a line of JSON has no other ends of lines in it
    return {(int(row[COMMIT_VERSION]), int(row[SEQ])) for row in rows}


def _parquet(rows: pa.Table, compression: str) -> pa.Buffer:
    """In memory, where a disk that is full is no error of Parquet's, which would hide it."""
    import pyarrow.parquet as pq  # 60 ms of whoever starts a pipeline

    made = pa.BufferOutputStream()
    pq.write_table(rows, made, compression=compression)
    return made.getvalue()
