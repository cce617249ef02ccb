"""Delta tables kept identical to their sources (`mode: mirror`), or holding every change (`mode: history`).

Exactly once: the commit that holds a batch's rows also stores the pair at the batch's end, and rows at or below the
stored pair are dropped, whatever batch they come in. Start with `DeltaOutput.commit`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from databus.core import (
    ControlKind,
    CorruptData,
    Pair,
    TransientError,
    UnsupportedFeature,
)
from databus.disk import Location
from databus.flow import (
    FolderWriter,
    PartWriter,
    Restage,
    StagedBatch,
    StagedRows,
    Stored,
    TableControl,
    Tasks,
    is_passing_file,
    log_number,
    own_name,
    spelled,
    user_rows_schema,
)
from databus.operate import logger_of
from databus.places import Held, Noted, identity, place_at
from databus.plugins import Delivery, Output, OutputConfig, OutputContext, Written
from databus.schema import TableSchema
from databus.sinks._paths import TableFolders, folders_of, path_of, remove_folders, root_of, target_at
from databus.sinks.delta._at_once import KnownMirrors, KnownTable, MirrorWriter
from databus.sinks.delta._commits import Mark, SeenCommits, commit_path, still_holds
from databus.sinks.delta._config import DeltaConfig
from databus.sinks.delta._erase import Erased, Finds, erase_rows
from databus.sinks.delta._history import HistoryTable
from databus.sinks.delta._known import Known
from databus.sinks.delta._mirror import Mirror, mirror_schema
from databus.sinks.delta._read import dataset_of, opened_delta, pairs_in
from databus.sinks.delta._rewrite_job import Work, run_all
from databus.sinks.delta._shared import SOURCE_FIELD, SharedHistory, SharedMirror
from databus.sinks.delta._table import DeltaTarget, give_names
from databus.stores import NoteFolder

StagedItem = StagedRows | TableControl


def is_of(item: StagedRows, target: DeltaTarget) -> bool:
    """Whether what a task has made at once is of the table as it is."""
    return item.at_once is None or (target.exists and item.at_once.version == target.table.version())


def begins(item: StagedItem) -> bool:
    """Whether nothing of the table from before this item is needed."""
    if not isinstance(item, TableControl):
        return False
    if item.kind is ControlKind.SCHEMA:
        return not item.body.get("previous")
    return item.kind in (ControlKind.SNAPSHOT_BEGIN, ControlKind.TRUNCATE, ControlKind.DROP)


def pair_of(item: StagedItem) -> Pair:
    """Up to which a table is once it has been applied."""
    return item.last if isinstance(item, StagedRows) else item.pair


def count_of(item: StagedItem) -> int:
    """Its rows."""
    return item.count if isinstance(item, StagedRows) else 0


_HOW_TO_BEGIN_ANEW: Final = (
    "To begin the service's stores anew, stop it, move its folders log/, state/ and notes/ away, and start it; see "
    'docs/bootstrap.md, "When a file is missing"'
)
_CRASH_POINTS: Final = {
    "mirror": ("delta.mirror.before_commit", "delta.mirror.after_commit"),
    "history": ("delta.history.before_commit", "delta.history.after_commit"),
}


@dataclass(frozen=True)
class _TableCopy:
    """The copy of one source, in one of the two modes."""

    target: DeltaTarget
    kind: Mirror | HistoryTable


class DeltaOutput(Output):
    """Writes Delta tables, one for each source. Spark's tasks write files; the driver commits them with delta-rs."""

    config_model: ClassVar[type[OutputConfig]] = DeltaConfig
    delivery: ClassVar[Delivery] = Delivery.EXACTLY_ONCE
    config: DeltaConfig

    def __init__(self, config: DeltaConfig, context: OutputContext) -> None:
        super().__init__(config, context)
        self._copies: dict[tuple[str, str], _TableCopy] = {}
        self._places = TableFolders(config.path, context, spelled)
        self._known: Known | None = None
        self._named: dict[tuple[str, str], dict[str, int]] = {}  # see `DeltaTarget`, of each table's last batch
        self._seen: dict[Location, SeenCommits] = {}
        self._notes: dict[str, NoteFolder] = {}  # by physical source; of all its tables: each state names them all
        self._already: Counter[str] = Counter()  # by source, rows of the batch under way that it had before
        self._written: dict[str, set[str]] = {}  # by source, files of the batch under way that it may be left with
        self._known_mirrors = KnownMirrors()

    def table_path(self, physical: str, source: str) -> Location:
        """Where the copy of `source` (`db.table`) is."""
        return path_of(self.config.path, self.context, physical, source, spelled)

    def ledger_folder(self) -> Location:
        """The folder that all of its tables are in."""
        return root_of(self.config.path, self.context)

    def held(self, tables: Mapping[str, Noted | None]) -> Mapping[str, Held]:
        """See `Output.held`. A table of which something is noted is opened only if its log has gone on since then."""
        return {name: word for name, noted in tables.items() if (word := self._held(name, noted)) is not None}

    def _held(self, name: str, noted: Noted | None) -> Held | None:
        path = self.table_path(*name.split("/", 1))
        if noted is None or not noted.mark:
            return self._now(name)
        if not still_holds(path, noted, lambda: self._now(name), appends_only=self.config.mode == "history"):
            return self._now(name)
        version = Mark.parse(noted.mark).version
        if commit_path(path, version).exists() and not commit_path(path, version + 1).exists():
            return Held(place_at(noted.pair), noted.mark)
        now = self._now(name)
        return None if now is None else replace(now, mark=noted.mark)

    def _now(self, name: str) -> Held | None:
        """What the table says, once it is opened."""
        copy = self._copy(*name.split("/", 1))
        return copy.target.held(str(copy.target.mark(copy.kind.partition))) if copy.target.exists else None

    def _noted(self, name: str) -> Noted | None:
        """What is there of a table now: the version, and how many rows that has, up to which SCN."""
        copy = self._copy(*name.split("/", 1))
        stored = copy.target.stored() if copy.target.exists else None
        return None if stored is None else Noted(stored.pair, str(copy.target.mark(copy.kind.partition)))

    def find(
        self, physical: str, source: str, key: Mapping[str, Any], about: Collection[Pair]
    ) -> Sequence[Pair] | None:
        """See `FindsKeys.find`."""
        del about
        from deltalake.exceptions import TableNotFoundError

        place = self.table_path(physical, source)
        try:
            return pairs_in(dataset_of(opened_delta(place), place), f"{physical}/{source}", key)
        except TableNotFoundError:
            return []

    def target_of(self, physical: str, source: str) -> tuple[str, str]:
        """See `NamesTargets.target_of`."""
        return target_at(self.table_path(physical, source))

    def check_table(self, table: TableSchema) -> None:
        """See `ChecksTables.check_table`: a mirror needs a key."""
        if self.config.mode == "mirror":
            self._key(table)

    def tables(self) -> Collection[str]:
        """See `Removes.tables`."""
        return self._read_known().tables

    def part_writer(self) -> PartWriter:
        """See `Output.part_writer`."""
        folders = folders_of(self.config.path, self.context, spelled)
        if self.config.mode == "history":
            return FolderWriter(folders)
        return MirrorWriter(folders, self.config.merge_rows_max, self._known_mirrors.said())

    def discard(self, batch: StagedBatch) -> None:
        """See `Discards.discard`. What a commit names stays, also one that a store may carry out later."""
        written, self._written = self._written, {}
        for item in batch.items:
            if isinstance(item, StagedRows):
                written.setdefault(item.table.source, set()).update(file.name for file in item.written)
        for source, names in written.items():
            self._copy(batch.physical, source).target.discard(names)

    def commit(self, batch: StagedBatch, tasks: Tasks) -> Written:
        """See `Output.commit`. Each table's rows are one commit, more where controls or size divide them."""
        known = self._read_known()
        known.meet(batch.physical, begins_at_zero=batch.start.scn == 0)
        by_source: dict[str, list[StagedItem]] = {item.table.source: [] for item in batch.items}
        for item in batch.items:
            by_source[item.table.source].append(item)
        works = [self._write_source(known, batch, source, items) for source, items in by_source.items()]
        self._written = {}
        self._already.clear()
        try:
            counts = run_all(works, tasks, side_by_side=not self.config.merge)
            if self.config.merge:
                self._maintain_shared(batch, by_source, tasks)
        except (Restage, TransientError):
            raise
        except Exception as error:  # a commit that was refused, or a task that found no file, wrapped by Spark
            moved = self._moved(batch.physical, by_source)
            if not moved:
                raise
            raise Restage(above=moved) from error
        noted = {name: self._noted(name) for name in (f"{batch.physical}/{source}" for source in by_source)}
        marks = {name: mark for name, mark in noted.items() if mark is not None}
        return Written(dict(zip(by_source, counts, strict=True)), marks, already=dict(self._already))

    def _moved(self, physical: str, sources: Iterable[str]) -> dict[str, Pair]:
        """The tables, by full name, to which others have committed something without changing rows, each with the pair
        that it has: what was made for an older version of them is made again. Raises what `DeltaTarget.refresh` does.
        """
        pairs: dict[str, Pair] = {}
        for source in sources:
            name, copy = f"{physical}/{source}", self._copies.get((physical, source))
            if copy is not None and copy.target.exists and copy.target.refresh(alone=True):
                self._known_mirrors.forget(name)
                stored = copy.target.stored()
                pairs[name] = (0, 0) if stored is None else stored.pair
        return pairs

    def _maintain_shared(self, batch: StagedBatch, sources: Iterable[str], tasks: Tasks) -> None:
        """Once all are committed: what tasks have written for another source may be older than upkeep leaves alone."""
        targets = [self._copy(batch.physical, source).target for source in sources]
        for target in {target.path: target for target in targets if target.exists}.values():
            target.refresh()
            run_all([target.maintain(joins=self.config.mode == "history")], tasks)

    def _read_known(self) -> Known:
        if self._known is None:
            self._known = Known.load(self._known_file(self.context))
        return self._known

    def _known_file(self, context: OutputContext) -> Location:
        return root_of(self.config.path, context) / f".databus-{context.pipeline}-{context.output}.tables.json"

    def take_name(self, before: OutputContext, tables: Collection[str]) -> int:
        """See `TakesName.take_name`: one commit for each table. The file of tables goes last."""
        known = Known.load(self._known_file(before))
        by_path: dict[Location, dict[str, str]] = {}
        for name in sorted({*known.tables, *tables}):
            physical, source = name.split("/", 1)
            old, new = (_application(context, physical, source) for context in (before, self.context))
            by_path.setdefault(self.table_path(physical, source), {})[old] = new
        count = 0
        for path, ids in by_path.items():
            owners = (_owner_of_several(before), _owner_of_several(self.context)) if self.config.merge else ("", "")
            count += len(ids) if give_names(path, ids, *owners) else 0
        if known.path.exists():
            replace(known, path=self._known_file(self.context)).save()
            known.path.remove()
        return count

    def remove(self, tables: Collection[str]) -> list[Location]:
        """See `Removes.remove`. Raises `UnsupportedFeature` for one of several sources that share a table, and for what
        a bootstrap service serves as all that has happened.
        """
        if self._is_log_store:
            raise UnsupportedFeature(
                f"outputs.{self.context.output}: is the log store of the bootstrap service in {self.config.pins}, "
                f"which says that it holds every change; what has left the relay's log would be gone in silence. "
                f"{_HOW_TO_BEGIN_ANEW}"
            )
        known = self._read_known()
        if self.config.merge and not set(tables).issuperset(known.tables):
            raise UnsupportedFeature(
                f"outputs.{self.context.output}: with `merge: true` several sources share a table; have the whole "
                f"output rebuilt: `databus rebuild FILE {self.context.output}` (FILE is the pipeline's file)"
            )
        folders = remove_folders(self.config.path, self.context, tables, spelled)
        known.remove(tables)
        return folders

    def erase(self, physical: str, source: str, finds: Finds, also: Collection[str]) -> Erased:
        """Take rows out of the table of `source` (`db.table`), and out of files besides; see `erase_rows`."""
        target = self._copy(physical, source).target
        return erase_rows(target, finds, also) if target.exists else Erased()

    def close(self) -> None:
        """See `Output.close`."""
        self._copies.clear()
        self._known_mirrors.clear()
        self._known, self._seen = None, {}

    def _write_source(self, known: Known, batch: StagedBatch, source: str, items: Sequence[StagedItem]) -> Work[int]:
        """Returns how many rows were new."""
        self._named.setdefault((batch.physical, source), {}).clear()
        count = yield from self._noting(source, self._work(known, batch, source, items))
        written = self._written.pop(source, set())
        given = {file.name for item in items if isinstance(item, StagedRows) for file in item.files}
        for name in filter(is_passing_file, given | written):
            (self.table_path(batch.physical, source) / name).remove()
        return count

    def _noting(self, source: str, work: Work[int]) -> Work[int]:
        """The same, with a note of the files that its jobs have written."""
        try:
            job = next(work)
            while True:
                done = yield job
                self._written.setdefault(source, set()).update(file.name for file in done.added)
                job = work.send(done)
        except StopIteration as end:
            return int(end.value)

    def _work(self, known: Known, batch: StagedBatch, source: str, items: Sequence[StagedItem]) -> Work[int]:
        copy = self._copy(batch.physical, source)
        if self.config.merge:
            copy.target.refresh()
        name = f"{batch.physical}/{source}"
        said = _said(batch, name)
        new = self._new_items(copy, batch, source, items)
        if not new:
            return 0
        is_new = not copy.target.exists or (self.config.merge and copy.target.stored() is None)
        if is_new:
            self._check_new(known, copy, batch, items[0])
        self._make(copy, said, new[0].table, is_new=is_new)
        said = replace(said, ahead=(yield from self._follow_ahead(copy, batch, said, new[0].table, is_new=is_new)))
        for item in new[:-1]:
            yield from self._apply_item(copy.kind, item, replace(said, pair=pair_of(item)))
        # A snapshot that is open at the end counts only for who was given its begin.
        seed = replace(batch, items=tuple(items)).seeds_after().get(name, batch.end.snapshots.get(source))
        yield from self._apply_item(copy.kind, new[-1], replace(said, pair=batch.end.pair, seed=seed))
        if copy.target.stored() is not None:
            known.add(name, copy.target.path)
        if not self.config.merge:
            yield from copy.target.maintain(joins=self.config.mode == "history")  # changes join a mirror's
        self._note(name, copy, new[-1].table)
        return sum(count_of(item) for item in new)

    def _make(self, copy: _TableCopy, said: Stored, table: TableSchema, *, is_new: bool) -> None:
        """Have the table be there."""
        if not copy.target.exists:
            copy.target.create(self._schema(table))
        if is_new and self.config.merge:  # the table does not say by being there that this source has begun
            copy.target.append(copy.target.schema().empty_table(), said)

    def _note(self, name: str, copy: _TableCopy, table: TableSchema) -> None:
        """Have the next task hear how this mirror stands. One that shares its table is rewritten in its turn."""
        stored = copy.target.stored()
        self._known_mirrors.forget(name)
        if not isinstance(copy.kind, Mirror) or self.config.merge or stored is None:
            return
        key, version = self._key(table), copy.target.table.version()
        files = copy.target.live(key)
        layout = copy.kind.layout(files, key)
        self._known_mirrors.add(name, KnownTable(version, stored.pair, table.fingerprint, tuple(files), layout))

    def _apply_item(self, kind: Mirror | HistoryTable, item: StagedItem, stored: Stored) -> Work[None]:
        if isinstance(item, TableControl):
            if item.kind is not ControlKind.SCHEMA or item.pair > stored.ahead:
                yield from kind.control(item, stored)
        elif isinstance(kind, Mirror):
            yield from kind.commit(item, self._key(item.table), stored)
        else:
            yield from kind.commit(item, stored)

    def _follow_ahead(
        self, copy: _TableCopy, batch: StagedBatch, said: Stored, table: TableSchema, *, is_new: bool
    ) -> Work[Pair]:
        """Make what the copy has into rows of the schema that this batch's are in; returns up to where that goes."""
        stored = copy.target.stored() or said
        if batch.ahead is None:
            return stored.ahead
        steps = None if is_new else batch.ahead.steps(stored.follows)
        through = max(stored.ahead, batch.ahead.through)
        if steps is not None and isinstance(copy.kind, Mirror):
            following = replace(stored, ahead=through)
            yield from copy.kind.follow(table, steps, following, "a change of its schema")
            if copy.target.stored() != following:  # nothing to change; but what comes next begins behind the changes
                copy.target.append(copy.target.schema().empty_table(), following)
        return through

    def _new_items(
        self, copy: _TableCopy, batch: StagedBatch, source: str, items: Sequence[StagedItem]
    ) -> list[StagedItem]:
        """What is above the stored pair, without controls that change nothing here."""
        stored = copy.target.stored() if copy.target.exists else None
        if stored is not None:
            self._check_log(copy, stored, batch, source)
        pair = stored.pair if stored is not None else (0, 0)
        new: list[StagedItem] = []
        is_awaited = f"{batch.physical}/{source}" in batch.seeds and source not in batch.start.snapshots
        for item in items:
            if isinstance(item, TableControl):
                is_awaited = is_awaited and item.kind is not ControlKind.SNAPSHOT_BEGIN
                says_nothing = self._says_nothing(batch, item, stored, is_awaited=is_awaited)
                if item.pair > pair and not says_nothing:
                    new.append(item)
                continue
            if item.first <= pair < item.last or not is_of(item, copy.target):
                self._known_mirrors.forget(f"{batch.physical}/{source}")
                raise Restage(above={f"{batch.physical}/{source}": pair})
            if item.first > pair:
                new.append(item)
            else:
                self._already[source] += item.count
        return new

    def _check_new(self, known: Known, copy: _TableCopy, batch: StagedBatch, first: StagedItem) -> None:
        """Refuse to make a table that was there before, or a mirror that would lack the rows before this batch."""
        owner, path = f"{batch.physical}/{first.table.source}", copy.target.path
        if self.config.on_gap == "continue" or owner in batch.seeds or begins(first):
            return
        if owner in known.tables:
            raise CorruptData(
                f"{path}: the table of {owner} is gone; it was in {known.tables[owner]}. Restore it. Or: "
                f"{self._reset(batch.physical, first.table.source)}"
            )
        if isinstance(copy.kind, Mirror) and batch.start.scn and not known.from_beginning[batch.physical]:
            raise UnsupportedFeature(
                f"{path}: would mirror {owner} from SCN {batch.start.scn} on, without the rows from before. Leave out "
                f"where the input starts. Or have the table read again (`databus snapshot {batch.physical} "
                f"{first.table.source}`) and say `on_gap: continue` in this output: the copy is right when that "
                f"snapshot has ended"
            )

    def _says_nothing(self, batch: StagedBatch, item: TableControl, stored: Stored | None, *, is_awaited: bool) -> bool:
        """Whether a control changes nothing here.

        is_awaited: the snapshot that completes the copy has not begun, so that a gap of a mirror, or the end of
        another snapshot, need not be minded. Raises what `_is_known_in_part` does.
        """
        if item.kind is ControlKind.SNAPSHOT_BEGIN:
            return stored is not None and not self.config.has_all_controls
        if item.kind is ControlKind.GAP:
            return is_awaited and self.config.mode == "mirror"
        return self._is_known_in_part(batch, item, is_awaited=is_awaited)

    def _is_known_in_part(self, batch: StagedBatch, item: TableControl, *, is_awaited: bool) -> bool:
        """Whether a snapshot ends of which a mirror did not get all, so that nothing follows for its older rows.

        Raises `UnsupportedFeature` unless the mirror is to go on with gaps.
        """
        is_end = item.kind is ControlKind.SNAPSHOT_END and item.body.get("complete", False)
        if not is_end or self.config.mode == "history" or batch.has_begin_of(item):
            return False
        if is_awaited:
            return True
        name = f"{batch.physical}/{item.table.source}"
        message = (
            f"{self.table_path(batch.physical, item.table.source)}: a snapshot of {name} ends whose begin never came"
        )
        if self.config.on_gap != "continue":
            again = self._reset(batch.physical, item.table.source)
            raise UnsupportedFeature(f"{message}, so that rows of it are missing. {again}")
        logger_of("databus.pipeline").warning(f"{message}: older rows stay", output=self.context.output)
        return True

    def _check_log(self, copy: _TableCopy, stored: Stored, batch: StagedBatch, source: str) -> None:
        if stored.is_part_of_other_log(batch.start.pair, batch.end.log):
            raise UnsupportedFeature(
                f"{copy.target.path}: holds a part of the transaction at SCN {stored.pair[0]} of {batch.physical}/"
                f"{source}, from another log than {batch.end.log}, whose rows cannot be told from those. "
                f"{self._reset(batch.physical, source)}"
            )

    @property
    def _is_log_store(self) -> bool:
        return self.config.mode == "history" and self.config.pins is not None

    def _reset(self, physical: str, source: str) -> str:
        if self._is_log_store:
            return _HOW_TO_BEGIN_ANEW
        table = "" if self.config.merge else f" {physical}/{source}"
        what = "the output" if self.config.merge else "the table"
        return (
            f"Have {what} rebuilt: `databus rebuild FILE {self.context.output}{table}` (FILE is the pipeline's file)."
        )

    def _copy(self, physical: str, source: str) -> _TableCopy:
        copy = self._copies.get((physical, source))
        if copy is not None:
            return copy
        name = f"{physical}/{source}"
        application = _application(self.context, physical, source)
        config, reset = self.config, {"how_to_reset": self._reset(physical, source)}
        points, upkeep = _CRASH_POINTS[config.mode], config.upkeep()
        rules: dict[str, Any] = {
            "key": config.key_choice,
            "on_gap": config.on_gap,
            "rows_max": config.merge_rows_max,
            **reset,
        }
        history: dict[str, Any] = {
            "all_controls": config.has_all_controls,
            "retypes": config.retype == "new_column",
            **reset,
        }
        is_mirror, named = self.config.mode == "mirror", self._named.setdefault((physical, source), {})
        given: dict[str, Any] = {"named": named, "may_change": not is_mirror or self.config.on_gap == "continue"}
        if config.pins is not None:
            notes = self._notes.setdefault(physical, NoteFolder(self.context.locate(config.pins), physical))
            given["pinned"] = partial(notes.pinned, source)
        kind: Mirror | HistoryTable
        if self.config.merge:
            path = self.table_path(physical, source)
            owner = _owner_of_several(self.context)
            seen = self._seen.setdefault(path, SeenCommits())
            target = DeltaTarget(path, owner, application, upkeep, points, is_shared=True, seen=seen, **given)
            kind = SharedMirror(target, name, **rules) if is_mirror else SharedHistory(target, name, **history)
        else:
            target = DeltaTarget(self._places.take(physical, source), name, application, upkeep, points, **given)
            kind = Mirror(target, **rules) if is_mirror else HistoryTable(target, **history)
        copy = self._copies[physical, source] = _TableCopy(target, kind)
        return copy

    def _schema(self, table: TableSchema) -> pa.Schema:
        if self.config.mode == "mirror":
            self._key(table)
        schema = user_rows_schema(table) if self.config.mode == "history" else mirror_schema(table)
        if self.config.mode == "history" and self.config.retype == "new_column":
            schema = pa.schema([field.with_name(own_name(field.name)) for field in schema])
        return schema.append(SOURCE_FIELD) if self.config.merge else schema

    def _key(self, table: TableSchema) -> tuple[str, ...]:
        """The columns that identify a row. Raises `UnsupportedFeature` for a mirror of a table that has none."""
        key = tuple(self.config.key_choice.of(table.source)) or table.key
        missing = [name for name in key if name not in table.names]
        if not key or missing:
            what = f"has no column {missing[0]!r}" if missing else "comes without a key"
            raise UnsupportedFeature(
                f"outputs.{self.context.output}: {table.source} {what}, by which a mirror tells its rows apart; name "
                f"columns that identify a row (`key: {{{table.source}: [...]}}`), use `mode: history`, or leave the "
                f"table out of the output's input (`inputs: ... exclude: [{table.source}]`)"
            )
        return key


def _said(batch: StagedBatch, name: str) -> Stored:
    """What is known of the rows of a table, by its full name, before those of a batch are there."""
    db = identity(batch.end.uuid) if batch.end.uuid else ""
    way, seed = batch.ways.get(name, ""), batch.seeds.get(name)
    return Stored(log=log_number(batch.end.log), way=way, db=db, seed=seed)


def _application(context: OutputContext, physical: str, source: str) -> str:
    """The id under which a table says how far the copy of a source has come."""
    return f"databus/{context.pipeline}/{context.output}/{source}/{physical}"


def _owner_of_several(context: OutputContext) -> str:
    """Whose table it says to be that several sources share."""
    return f"several, by {context.pipeline}/{context.output}"
