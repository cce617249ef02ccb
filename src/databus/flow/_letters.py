"""Dead letters: rows that a target refuses, in files, until they are replayed or dropped.

    shop%2Fmain.orders.17.3-18.1.2.5feceb66ffc86f38.jsonl

A task writes what was refused of a batch into a file, durably, before the position passes those rows. The name says of
which table its rows are, the least and the greatest pair, how many, and what they are: the same again is the same file.
Its first line is the table's definition; each other one a letter: `{"pair", "id", "reason", "at_us", "row"}`, in the
order of the rows. Of a table whose name is too long, a file's name has the beginning, `=` and a digest.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa

from databus.core import CHANGE_TYPE, ControlKind, CorruptData, LimitExceeded, Pair
from databus.disk import Location
from databus.flow._batch import Batch, TableControl
from databus.flow._lines import row_lines
from databus.flow._pairs import Int, pairs_of
from databus.formats import own_rows
from databus.schema import TableSchema

_NAME: Final = re.compile(r"(.+)\.(\d+)\.(\d+)-(\d+)\.(\d+)\.(\d+)\.[0-9a-f]{16}\.jsonl")
_VERSION: Final = 1
_SOURCE_CHARS_MAX: Final = 120  # of the 255 that a file's name may have; the rest takes up to 130
_CUT: Final = "="  # in no other name: `quote` writes it as %3D


@dataclass(frozen=True)
class Letter:
    """A row that was refused."""

    pair: Pair
    id: str
    """What the target calls it."""
    reason: str
    at_us: int
    row: str
    """As our own line of JSON."""

    def to_line(self) -> str:
        """As it stands in the file."""
        value = {"pair": [*self.pair], "id": self.id, "reason": self.reason, "at_us": self.at_us}
        return f'{json.dumps(value, ensure_ascii=False)[:-1]}, "row": {self.row}}}\n'

    @classmethod
    def from_line(cls, line: str) -> "Letter":
        """Read what `to_line` made. Raises `ValueError`, `KeyError`, `TypeError`."""
        value = json.loads(line)
        scn, seq = value["pair"]
        row = json.dumps(value["row"], ensure_ascii=False, separators=(",", ":"))
        return cls((scn, seq), value["id"], value["reason"], value["at_us"], row)


@dataclass(frozen=True)
class LetterFile:
    """A file of letters, as its name tells."""

    name: str
    source: str
    """Full name of the table."""
    first: Pair
    last: Pair
    count: int


@dataclass(frozen=True)
class Letters:
    """Letters of one table, in one definition."""

    source: str
    table: TableSchema
    letters: tuple[Letter, ...]
    file: str = ""
    """The name of theirs, where they were read."""

    @property
    def physical(self) -> str:
        """The physical source of the table."""
        return self.source.partition("/")[0]

    def rows(self) -> pa.Table:
        """The rows, in the types of the table's frames."""
        values = pa.array([letter.row.encode() for letter in self.letters], pa.large_binary())
        rows = pa.Table.from_batches([own_rows(self.table, values).rows])
        kinds = pa.array([json.loads(letter.row)[CHANGE_TYPE] for letter in self.letters])
        return rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, kinds)


class Taken:
    """Which rows of a table a target took, of those that were sent in order. last: the greatest of their pairs."""

    def __init__(self) -> None:
        self.last: Pair = (0, 0)
        self._sent: list[tuple[pa.LargeStringArray, Int, Int]] = []
        self._pairs: dict[str, Pair] = {}

    def add(self, ids: pa.LargeStringArray, scns: Int, seqs: Int) -> None:
        """The ids and the pairs of rows that were taken."""
        if len(ids):
            newest = int(scns.max())
            self.last = max(self.last, (newest, int(seqs[scns == newest].max())))
            self._sent.append((ids, scns, seqs))

    def overtakes(self, letter: Letter) -> bool:
        """Whether the target took a newer row of a letter's document."""
        for ids, scns, seqs in self._sent:
            self._pairs.update(zip(ids.to_pylist(), zip(scns.tolist(), seqs.tolist(), strict=True), strict=True))
        self._sent.clear()
        return letter.pair < self._pairs.get(letter.id, letter.pair)


@dataclass(frozen=True)
class DeadLetters:
    """The letters of an output, in a folder of their own; travels to tasks."""

    folder: Location
    output: str = ""
    count_max: int = 10_000
    """How many there may be."""
    writer: str = ""
    """Whose letters are files of their own, where several write the same; none by default."""

    def put(
        self,
        source: str,
        table: TableSchema,
        rows: pa.Table,
        reasons: Iterable[tuple[str, str]],
        at_us: int | None = None,
    ) -> Letters:
        """Keep refused rows, durably, in the order in which they stand. reasons: the id and the reason of each. at_us:
        when they were refused; now, if None.
        """
        scns, seqs = pairs_of(rows)
        lines = _lines("".join(row_lines(source, table, rows)))
        at_us = time.time_ns() // 1000 if at_us is None else at_us
        letters = [
            Letter((int(scn), int(seq)), name, reason, at_us, line)
            for scn, seq, (name, reason), line in zip(scns, seqs, reasons, lines, strict=True)
        ]
        return self._write(Letters(source, table, tuple(letters)))

    def _write(self, letters: Letters) -> Letters:
        kept = letters.letters
        head = {"v": _VERSION, "source": letters.source, "table": letters.table.to_json()}
        rows = "".join(letter.row for letter in kept)
        pairs = [letter.pair for letter in kept]
        place = "-".join(f"{scn}.{seq}" for scn, seq in (min(pairs), max(pairs)))
        digest = sha256(f"{letters.table.fingerprint}{self.writer}{rows}".encode()).hexdigest()[:16]
        self.folder.make()
        name = f"{_in_name(letters.source)}.{place}.{len(kept)}.{digest}.jsonl"
        (self.folder / name).write("".join([f"{json.dumps(head)}\n", *(letter.to_line() for letter in kept)]).encode())
        return replace(letters, file=name)

    def files(self, is_wanted: Callable[[str], bool] = lambda _: True) -> list[LetterFile]:
        """The files there are, in the order of their pairs, of tables whose full names are wanted."""
        names = []
        for name in self.folder.names():
            match = _NAME.fullmatch(name)
            source = None if match is None else self._source_of(match)
            if match is not None and source is not None and is_wanted(source):
                numbers = [int(group) for group in match.groups()[1:]]
                names.append(LetterFile(name, source, (numbers[0], numbers[1]), (numbers[2], numbers[3]), numbers[4]))
        return sorted(names, key=lambda file: (file.source, file.first))

    def _source_of(self, match: re.Match[str]) -> str | None:
        """The table whose letters a file of this name has; None where the name alone does not say, and it is gone."""
        if _CUT not in match[1]:
            return unquote(match[1])
        letters = self._read(match[0])
        return None if letters is None else letters.source

    def count(self) -> int:
        """How many letters there are."""
        return sum(file.count for file in self.files())

    def check(self) -> None:
        """Raises `LimitExceeded` where there are more than there may be."""
        count = self.count()
        if count > self.count_max:
            raise self.too_many(count)

    def too_many(self, count: int) -> LimitExceeded:
        """The error for so many."""
        return LimitExceeded(
            f"outputs.{self.output}: {count} rows were refused and are dead letters, more than "
            f"dead_letters_max={self.count_max}: `databus dead-letters list FILE` (FILE is the pipeline's file) says "
            f"why. Correct the cause and replay them, drop them, or raise the limit"
        )

    def by_source(self, is_wanted: Callable[[str], bool]) -> dict[str, list[Letters]]:
        """The letters of tables whose full names are wanted."""
        while True:
            files = self.files(is_wanted)
            read = [self.find(file) for file in files]
            if None not in read:
                break  # else a part of a file was replayed meanwhile: the rest is in another file now
        made: dict[str, list[Letters]] = {}
        for letters in read:
            if letters is not None:
                made.setdefault(letters.source, []).append(letters)
        return made

    def read(self, file: LetterFile) -> Letters:
        """What a file holds. Raises `CorruptData`."""
        letters = self.find(file)
        if letters is None:
            raise CorruptData(f"{self.folder / file.name}: cannot be read as dead letters: it is gone")
        return letters

    def find(self, file: LetterFile) -> Letters | None:
        """What a file holds; None where it is gone: it was replayed or dropped. Raises `CorruptData`."""
        return self._read(file.name)

    def _read(self, name: str) -> Letters | None:
        content = (self.folder / name).read()
        if content is None:
            return None
        try:
            head, *lines = _lines(content.content.decode())
            header: Any = json.loads(head)
            letters = tuple(map(Letter.from_line, lines))
            return Letters(str(header["source"]), TableSchema.from_json(header["table"]), letters, name)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"{self.folder / name}: cannot be read as dead letters: {error!r}") from error

    def has(self, letters: Letters) -> bool:
        """Whether letters that were read still are as they were then."""
        return (self.folder / letters.file).exists()

    def keep(self, file: LetterFile, left: Sequence[Letter]) -> None:
        """Have only these be left of a file, if it is still there."""
        letters = self.find(file)
        if letters is not None and len(left) < len(letters.letters):
            self.rewrite(letters, left)

    def rewrite(self, letters: Letters, left: Sequence[Letter]) -> Letters | None:
        """Have these stand in the place of letters that were read, if their file is still there; what stands there."""
        if not self.has(letters):
            return None
        kept = self._write(replace(letters, letters=tuple(left))) if left else None
        if kept is None or kept.file != letters.file:
            (self.folder / letters.file).remove()
        return kept

    def move(self, to: "DeadLetters") -> int:
        """Have them be those of another output, file by file; returns how many there are now. While nothing writes."""
        for file in () if to.folder == self.folder else self.files():
            content = (self.folder / file.name).read()
            if content is not None:
                to.folder.make()
                (to.folder / file.name).write(content.content)
                (self.folder / file.name).remove()
        return to.count()

    def ids_below(self, source: str, pair: Pair) -> list[str]:
        """What a target calls the letters of a table that are below a pair."""
        groups = self.by_source(lambda name: name == source).get(source, ())
        return sorted({letter.id for group in groups for letter in group.letters if letter.pair < pair})

    def release(self, source: str, pair: Pair) -> None:
        """Forget letters of a table that are below a pair: a truncation or a whole snapshot has overtaken them."""
        for file in self.files(lambda name: name == source):
            if file.first < pair:
                self._forget(file, lambda letter: letter.pair < pair)

    def release_overtaken(self, taken: Mapping[str, Taken]) -> None:
        """Forget letters whose documents have a newer row now. A replay would put them back, once the target has
        forgotten that the newer row deleted its document, and where both rows are of one transaction. Looks once, for
        a look at an object store takes its time.

        taken: by full name of a table, what the target took of it.
        """
        for file in self.files(taken.__contains__) if taken else ():
            letters = taken[file.source]
            if file.first < letters.last:
                self._forget(file, letters.overtakes)

    def _forget(self, file: LetterFile, is_over: Callable[[Letter], bool]) -> None:
        letters = self.find(file)
        if letters is not None:
            self.keep(file, [letter for letter in letters.letters if not is_over(letter)])


def released_below(batch: Batch, control: TableControl) -> Pair | None:
    """Below which pair a control says that no row of its table is there any more; None where it says nothing of it.

    That is so of a truncation, a drop, and the end of a whole snapshot whose begin was given too.
    """
    if control.kind in (ControlKind.TRUNCATE, ControlKind.DROP):
        return control.pair
    is_end = control.kind is ControlKind.SNAPSHOT_END and control.body.get("complete", False)
    if not is_end or not batch.has_begin_of(control):
        return None
    scn, seq = control.body["begin"]
    return int(scn), int(seq)


def _in_name(source: str) -> str:
    """A table's name in a file's."""
    text = quote(source, safe="")
    if len(text) <= _SOURCE_CHARS_MAX:
        return text
    return f"{text[: _SOURCE_CHARS_MAX - 17]}{_CUT}{sha256(source.encode()).hexdigest()[:16]}"


def _lines(text: str) -> list[str]:
    """Split at line feeds alone: `str.splitlines` does at U+2028 and others too, which JSON may hold as they are."""
    return text.removesuffix("\n").split("\n")
