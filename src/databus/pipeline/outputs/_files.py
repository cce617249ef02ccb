"""Files: each batch of each table as Parquet or JSON lines, named by the pairs that it holds.

    orders/<first SCN>.<first seq>-<last SCN>.<last seq>.<log>.parquet

A file appears whole, by a rename, after it is on the disk. What its name says is done stays done: rows at or below the
greatest pair in the folder are not written again, so a repeated batch adds nothing, whatever its boundaries. Controls
are files too (`_….control.json`); readers of a folder of Parquet or JSON pass over names that begin with `_`.
"""

import re
from collections.abc import Collection, Iterator
from typing import ClassVar, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from databus.core import Pair, UnsupportedFeature, crash_point
from databus.disk import Location
from databus.formats import BigIntegers
from databus.pipeline._contract import Delivery, Output, OutputConfig, OutputContext, Place
from databus.pipeline.outputs._lines import control_text, row_lines
from databus.pipeline.outputs._paths import TableFolders, path_of, remove_folders, root_of
from databus.tasks import ChangeBatch, Stored, TableControl, TableRows, first_pair, last_pair, log_number, rows_above

_NAME: Final = re.compile(r"_?(\d{19})\.(\d{19})-(\d{19})\.(\d{19})\.([0-9a-f]{16})\.(parquet|jsonl|control\.json)")
_CONTROL: Final = "control.json"


class FilesConfig(OutputConfig):
    """Options of the output `files`."""

    type: Literal["files"] = "files"
    path: str = Field(
        description="Folder of the files, here or in an object store. `{physical}`, `{db}` and `{table}` stand for the "
        "source's names; without any of them, `/{table}` is added.",
        examples=["out", "out/{physical}/{db}.{table}"],
    )
    format: Literal["parquet", "json"] = Field(
        "parquet", description="`parquet`, or `json`: see docs/http.md, Changes as JSON."
    )
    big_integers: Literal["number", "string"] = Field(
        "number", description="JSON: how integers beyond 2^53 are written."
    )
    compression: Literal["none", "snappy", "zstd"] = Field("zstd", description="Of Parquet files.")
    on_gap: Literal["stop", "continue"] = Field(
        "stop",
        description="What to do at the start where files of a table that were written are gone: stop, or go on with "
        "what comes next. Only the newest file of each folder is looked for, so older ones may be taken away.",
    )
    rows_per_file_max: int = Field(
        1_000_000, ge=1, le=100_000_000, description="Most rows of one file; a larger batch makes several."
    )


def file_name(first: Pair, last: Pair, log: int, suffix: str) -> str:
    """The name that says what a file holds; names of rows sort as their pairs do, and so do those of controls."""
    hidden = "_" if suffix == _CONTROL else ""
    return f"{hidden}{first[0]:019d}.{first[1]:019d}-{last[0]:019d}.{last[1]:019d}.{log:016x}.{suffix}"


def _stored_in(path: Location) -> Stored:
    """What the names in a source's folder say is done. Raises `InputError`."""
    stored = Stored()
    for match in filter(None, map(_NAME.fullmatch, path.names())):
        last = (int(match[3]), int(match[4]))
        stored = max(stored, Stored(last, int(match[5], 16)), key=lambda each: each.pair)
    return stored


class _Folder:
    """The files of one source."""

    def __init__(self, path: Location) -> None:
        self.path = path
        path.make()
        self.stored = _stored_in(path)

    def put(self, first: Pair, stored: Stored, suffix: str, pieces: Iterator[str] | pa.Table, codec: str) -> None:
        """Make one file, whole or not at all."""
        name = file_name(first, stored.pair, stored.log or 0, suffix)
        with (self.path / name).writing(before_visible=_crash_before_rename) as file:
            if isinstance(pieces, pa.Table):
                pq.write_table(pieces, file, compression=codec)
            else:
                file.writelines(piece.encode() for piece in pieces)
        crash_point("files.after_rename")
        self.stored = stored


def _crash_before_rename() -> None:
    crash_point("files.before_rename")


class FilesOutput(Output):
    """Writes files. Repeats are harmless: as long as the last file stays in its folder, there are none."""

    config_model: ClassVar[type[OutputConfig]] = FilesConfig
    delivery: ClassVar[Delivery] = Delivery.REPEATS_HARMLESS
    takes_stores: ClassVar[bool] = True
    config: FilesConfig

    def __init__(self, config: FilesConfig, context: OutputContext) -> None:
        super().__init__(config, context)
        self._folders: dict[tuple[str, str], _Folder] = {}
        self._places = TableFolders(config.path, context)

    def ledger_folder(self) -> Location | None:
        """The folder that all of its tables are in."""
        return root_of(self.config.path, self.context)

    def place(self, name: str) -> Place | None:
        """See `Output.place`."""
        pair = self._stored(name).pair
        return None if pair == (0, 0) else Place(pair)

    def holds(self, name: str, place: Place) -> bool:
        """See `Output.holds`."""
        return self.config.on_gap == "continue" or self._stored(name).pair >= place.pair

    def is_from(self, name: str, log: str) -> bool:
        """See `Output.is_from`."""
        return self._stored(name).log in (None, log_number(log))

    def write(self, batch: ChangeBatch) -> None:
        """See `Output.write`."""
        by_source: dict[str, list[TableRows | TableControl]] = {}
        for item in batch.items:
            by_source.setdefault(item.table.source, []).append(item)
        self.written = written = dict.fromkeys(by_source, 0)
        for source, items in by_source.items():
            folder = self._folder(batch.physical, source)
            self._check_log(folder, batch, source)
            before = folder.stored.pair
            for index, item in enumerate(items):
                end = batch.end.pair if index == len(items) - 1 else None
                full_name = f"{batch.physical}/{source}"
                written[source] += self._put(folder, full_name, item, before, end, log_number(batch.end.log))

    def _put(
        self, folder: _Folder, source: str, item: TableRows | TableControl, before: Pair, end: Pair | None, log: int
    ) -> int:
        """Returns how many rows were new."""
        form = BigIntegers(self.config.big_integers)
        if isinstance(item, TableControl):
            if item.pair > before:
                text = control_text(source, item, form)
                folder.put(item.pair, Stored(end or item.pair, log), _CONTROL, iter([text]), "none")
            return 0
        rows = rows_above(item.rows, before)
        for start in range(0, rows.num_rows, self.config.rows_per_file_max):
            part = rows.slice(start, self.config.rows_per_file_max)
            is_last = start + part.num_rows == rows.num_rows
            last = end if end is not None and is_last else last_pair(part)
            stored = Stored(last, log)
            if self.config.format == "parquet":
                folder.put(first_pair(part), stored, "parquet", part, self.config.compression)
            else:
                lines = row_lines(source, item.table, part, form)
                folder.put(first_pair(part), stored, "jsonl", lines, "none")
        return int(rows.num_rows)

    def _check_log(self, folder: _Folder, batch: ChangeBatch, source: str) -> None:
        stored = folder.stored
        if stored.is_part and stored.log != log_number(batch.end.log):
            raise UnsupportedFeature(
                f"{folder.path}: holds a part of the transaction at SCN {stored.pair[0]} of {batch.physical}/{source}, "
                f"from another log than {batch.end.log}, whose rows cannot be told from those. Have the table "
                f"made anew: `databus rebuild FILE {self.context.output} {batch.physical}/{source}`, FILE being the "
                f"pipeline's"
            )

    def _folder(self, physical: str, source: str) -> _Folder:
        folder = self._folders.get((physical, source))
        if folder is None:
            folder = self._folders[physical, source] = _Folder(self._places.take(physical, source))
        return folder

    def _stored(self, name: str) -> Stored:
        """What is done of a table, by its full name, whose folder need not be there."""
        physical, source = name.split("/", 1)
        folder = self._folders.get((physical, source))
        return (
            _stored_in(path_of(self.config.path, self.context, physical, source)) if folder is None else folder.stored
        )

    def remove(self, tables: Collection[str]) -> list[Location]:
        """See `Output.remove`."""
        return remove_folders(self.config.path, self.context, tables)

    def close(self) -> None:
        """See `Output.close`."""
        self._folders.clear()
