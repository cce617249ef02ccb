"""Files: each batch of each table as Parquet or JSON lines, named by the pairs that it holds.

    orders/<first SCN>.<first seq>-<last SCN>.<last seq>.<log>.parquet

A file appears whole, by a rename, after it is on the disk. What its name says is done stays done: rows at or below the
greatest pair in the folder are not written again, so a repeated batch adds nothing, whatever its boundaries. Controls
are files too (`_….control.json`); readers of a folder of Parquet or JSON pass over names that begin with `_`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from databus.core import Pair, UnsupportedFeature, crash_point
from databus.disk import Location
from databus.flow import (
    PartWriter,
    Restage,
    StagedBatch,
    StagedRows,
    Stored,
    TableControl,
    Tasks,
    control_text,
    log_number,
)
from databus.formats import BigIntegers
from databus.places import Held, Noted, place_at
from databus.plugins import Delivery, Output, OutputConfig, OutputContext, Written
from databus.sinks._paths import TableFolders, folders_of, path_of, remove_folders, root_of, target_at
from databus.sinks.files._loose_files import LooseName, LooseWriter, first_staged, is_staged_file, pairs_in_file

_SUFFIXES: Final = {"parquet": "parquet", "json": "jsonl"}


class FilesConfig(OutputConfig):
    """Parquet or JSON files, a folder for each table; every change is a row."""

    takes_stores: ClassVar[bool] = True
    type: Literal["files"] = "files"
    path: str = Field(
        description="Folder of the files, here or in an object store. `{physical}`, `{db}` and `{table}` stand for the "
        "source's names; without any of them, `/{table}` is added. A table's folder is its "
        "output's alone.",
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


_THERE: Final = "files"  # a mark: those of a folder say no more


def _stored_in(path: Location) -> Stored:
    """What the names in a source's folder say is done. Raises `InputError`."""
    names = filter(None, map(LooseName.parse, path.names()))
    return max((Stored(name.last, name.log) for name in names), key=lambda stored: stored.pair, default=Stored())


class _Folder:
    """The files of one source.

    staged: names of files in it that are about to be shown; others of that kind are of tasks that were killed, or of
    another run.
    """

    def __init__(self, path: Location, staged: Collection[str]) -> None:
        self.path = path
        path.make()
        self.stored = _stored_in(path)
        self.remove(name for name in path.names() if is_staged_file(name) and name not in staged)

    def show(self, rows: StagedRows, suffix: str, end: Stored) -> None:
        """Give staged files their names. end: what is done then."""
        for number, (file, last) in enumerate(zip(rows.files, rows.ends, strict=True), 1):
            stored = end if number == len(rows.files) else Stored(last, end.log)
            crash_point("files.before_rename")
            (self.path / file.name).give_name(
                str(LooseName(first_staged(file.name), stored.pair, end.log or 0, suffix))
            )
            crash_point("files.after_rename")
            self.stored = stored

    def put_control(self, pair: Pair, text: str, end: Stored) -> None:
        """Make the file of a control."""
        with (self.path / str(LooseName.of_control(pair, end.pair, end.log or 0))).writing() as file:
            file.write(text.encode())
        self.stored = end

    def remove(self, names: Iterable[str]) -> None:
        """Remove staged files."""
        for name in names:
            (self.path / name).remove()


class FilesOutput(Output):
    """Writes files. Repeats are harmless: as long as the last file stays in its folder, there are none."""

    config_model: ClassVar[type[OutputConfig]] = FilesConfig
    delivery: ClassVar[Delivery] = Delivery.REPEATS_HARMLESS
    config: FilesConfig

    def __init__(self, config: FilesConfig, context: OutputContext) -> None:
        super().__init__(config, context)
        self._folders: dict[tuple[str, str], _Folder] = {}
        self._places = TableFolders(config.path, context)
        self._writer = LooseWriter(
            folders_of(config.path, context),
            config.compression if config.format == "parquet" else None,
            BigIntegers(config.big_integers),
            config.rows_per_file_max,
        )

    def ledger_folder(self) -> Location:
        """The folder that all of its tables are in."""
        return root_of(self.config.path, self.context)

    def held(self, tables: Mapping[str, Noted | None]) -> Mapping[str, Held]:
        """See `Output.held`: what the names of files say."""
        stored = {name: self._stored(name) for name in tables}
        known = {name: place for name, place in stored.items() if place.pair != (0, 0)}
        return {name: Held(place_at(place.pair, f"{place.log or 0:016x}"), _THERE) for name, place in known.items()}

    def find(
        self, physical: str, source: str, key: Mapping[str, Any], about: Collection[Pair]
    ) -> Sequence[Pair] | None:
        """See `FindsKeys.find`: in the files whose names say that they hold these pairs."""
        del key
        path = path_of(self.config.path, self.context, physical, source)
        pairs: set[Pair] = set()
        for name in path.names():
            said = LooseName.parse(name)
            if said is None or said.suffix not in _SUFFIXES.values():
                continue
            wanted = {pair for pair in about if said.first <= pair <= said.last}
            file = (path / name).read() if wanted else None
            if file is not None:
                pairs |= wanted & pairs_in_file(file.content, said.suffix)
        return sorted(pairs)

    def target_of(self, physical: str, source: str) -> tuple[str, str]:
        """See `NamesTargets.target_of`."""
        return target_at(path_of(self.config.path, self.context, physical, source))

    def part_writer(self) -> PartWriter:
        """See `Output.part_writer`."""
        return self._writer

    def discard(self, batch: StagedBatch) -> None:
        """See `Discards.discard`. What was shown has another name."""
        for item in batch.items:
            if isinstance(item, StagedRows):
                path = path_of(self.config.path, self.context, batch.physical, item.table.source)
                for file in item.files:
                    (path / file.name).remove()

    def commit(self, batch: StagedBatch, tasks: Tasks) -> Written:
        """See `Output.commit`."""
        del tasks
        by_source: dict[str, list[StagedRows | TableControl]] = {}
        for item in batch.items:
            by_source.setdefault(item.table.source, []).append(item)
        written, already, marks = dict.fromkeys(by_source, 0), Counter[str](), {}
        self._check_parts(batch)
        for source, items in by_source.items():
            staged = {file.name for item in items if isinstance(item, StagedRows) for file in item.files}
            folder, name = self._folder(batch.physical, source, staged), f"{batch.physical}/{source}"
            self._check_log(folder, batch, source)
            before = folder.stored.pair
            for index, item in enumerate(items):
                end = batch.end.pair if index == len(items) - 1 else None
                if isinstance(item, StagedRows) and item.last <= before:  # of a batch that came before, whole
                    folder.remove(file.name for file in item.files)
                    already[source] += item.count
                    continue
                written[source] += self._put(folder, name, item, before, end, log_number(batch.end.log))
            if folder.stored.pair != (0, 0):
                marks[name] = Noted(folder.stored.pair, _THERE)
        return Written(written, marks, already=already)

    def _check_parts(self, batch: StagedBatch) -> None:
        """Raises `Restage` for all tables that have a part of the rows that tasks have written."""
        rows = [item for item in batch.items if isinstance(item, StagedRows)]
        pairs = {name: self._stored(name).pair for name in {f"{batch.physical}/{row.table.source}" for row in rows}}
        above = {
            name: pairs[name]
            for row in rows
            if row.first <= pairs[name := f"{batch.physical}/{row.table.source}"] < row.last
        }
        if above:
            raise Restage(above=above)

    def _put(
        self, folder: _Folder, name: str, item: StagedRows | TableControl, before: Pair, end: Pair | None, log: int
    ) -> int:
        """Returns how many rows it had."""
        if isinstance(item, TableControl):
            if item.pair > before:
                text = control_text(name, item, self._writer.big_integers)
                folder.put_control(item.pair, text, Stored(end or item.pair, log))
            return 0
        folder.show(item, _SUFFIXES[self.config.format], Stored(end or item.last, log))
        return item.count

    def _check_log(self, folder: _Folder, batch: StagedBatch, source: str) -> None:
        stored = folder.stored
        if stored.is_part_of_other_log(batch.start.pair, batch.end.log):
            raise UnsupportedFeature(
                f"{folder.path}: holds a part of the transaction at SCN {stored.pair[0]} of {batch.physical}/{source}, "
                f"from another log than {batch.end.log}, whose rows cannot be told from those. Rebuild the table: "
                f"`databus rebuild FILE {self.context.output} {batch.physical}/{source}` (FILE is the "
                f"pipeline's file)"
            )

    def _folder(self, physical: str, source: str, staged: Collection[str]) -> _Folder:
        folder = self._folders.get((physical, source))
        if folder is None:
            folder = self._folders[physical, source] = _Folder(self._places.take(physical, source), staged)
        return folder

    def _stored(self, name: str) -> Stored:
        """What is done of a table, by its full name, whose folder need not be there."""
        physical, source = name.split("/", 1)
        folder = self._folders.get((physical, source))
        return (
            _stored_in(path_of(self.config.path, self.context, physical, source)) if folder is None else folder.stored
        )

    def tables(self) -> Collection[str]:
        """See `Removes.tables`: the names of folders do not say whose they are."""
        return ()

    def remove(self, tables: Collection[str]) -> list[Location]:
        """See `Removes.remove`."""
        return remove_folders(self.config.path, self.context, tables)

    def close(self) -> None:
        """See `Output.close`."""
        self._folders.clear()
