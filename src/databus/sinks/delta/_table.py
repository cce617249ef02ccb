"""One Delta table on disk: what it holds, the pair that it has, commits that store the next pair, upkeep.

The pair (SCN, `_seq`) and the log's number are `txn` actions of the same commit as the rows they speak of, so that a
commit is either there with its pair or not at all. Nothing here knows what the rows mean.
"""

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    COMMIT_VERSION,
    SOURCE,
    CorruptData,
    DatabusError,
    LockHeld,
    ServiceUnavailable,
    UnsupportedFeature,
    crash_point,
)
from databus.disk import Location, finished_name
from databus.flow import GROUP_ROWS_MAX, DataFile, Stored, is_data_file, write_data_file
from databus.operate import logger_of
from databus.places import ASKED, Held, place_at
from databus.sinks.delta._commits import Mark, SeenCommits, check_commits, commit_path, is_commit
from databus.sinks.delta._layout import LiveFile, live_files
from databus.sinks.delta._read import BATCH_ROWS, dataset_of, opened_delta
from databus.sinks.delta._rewrite_job import Change, JoinJob, RemakeJob, Work, groups_to_join

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

# What others may have given a Delta table that tasks, which write its files, do not look at: such tables are refused.
#
# Delta's engine looks at conditions on rows where it writes them. Of ours it gets the names of files alone.


_LOCAL_TIMES: Final = "timestampNtz"
_FEATURES: Final = frozenset({_LOCAL_TIMES})
"""Features of Delta that readers must have, and that our tables may."""

_CONDITION: Final = "delta.constraints."
_OF_COLUMNS: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


def check_features(path: Location, table: "DeltaTable") -> None:
    """Refuse what we do not look for in a table's files and log: rows that are marked as deleted, other names; and
    conditions on its rows, and columns that are computed, which databus would not keep. Raises `UnsupportedFeature`.
    """
    properties = table.metadata().configuration
    features = set(table.protocol().reader_features or ()) - _FEATURES
    if properties.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    if features:
        raise UnsupportedFeature(
            f"{path}: the table has {', '.join(sorted(features))}, which databus does not write. "
            f"Take it away (`ALTER TABLE ... DROP FEATURE`), or rebuild it with `databus rebuild`"
        )
    if properties.get("delta.enableChangeDataFeed", "").lower() == "true":
        logger_of("databus.pipeline").warning(
            f"{path}: Delta's change data feed is switched on. Its columns `_change_type`, `_commit_version` "
            f"and `_commit_timestamp` have the names of ours, so that it cannot be read. Switch it off (`ALTER TABLE "
            f"... SET TBLPROPERTIES (delta.enableChangeDataFeed = false)`); `mode: history` has all changes"
        )
    conditions = [name.removeprefix(_CONDITION) for name in properties if name.startswith(_CONDITION)]
    if conditions:
        raise UnsupportedFeature(
            f"{path}: the table has the constraint {', '.join(sorted(conditions))}, and databus writes "
            f"rows as the source has them, whether they meet it or not. Take it away (`ALTER TABLE ... DROP CONSTRAINT "
            f"{conditions[0]}`); a filter of the pipeline can leave such rows out"
        )
    made = [field.name for field in table.schema().fields if any(name in field.metadata for name in _OF_COLUMNS)]
    if made:
        raise UnsupportedFeature(
            f"{path}: the table has columns with a rule of their own ({', '.join(made)}: generated, "
            f"identity or checked), which databus does not keep. Put them into a view, and rebuild it with "
            f"`databus rebuild`"
        )


def lacks_local_times(table: "DeltaTable", schema: pa.Schema) -> bool:
    """Whether a schema has times without a zone, and the table does not say so to its readers. The engine commits such
    a schema all the same, and then opens the table no more.
    """
    has_some = any(pa.types.is_timestamp(field.type) and field.type.tz is None for field in schema)
    return has_some and _LOCAL_TIMES not in (table.protocol().reader_features or ())


def check_may_remove(path: Location, table: "DeltaTable") -> None:
    """Raises `UnsupportedFeature` where rows of the table are never to be removed."""
    if table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        raise UnsupportedFeature(
            f"{path}: `delta.appendOnly` is set on the table, of which rows are to be removed now. Set it to "
            f"false (`ALTER TABLE ... SET TBLPROPERTIES`), or use `mode: history`"
        )


_UNSUPPORTED: Final = re.compile(r"Unsupported table features required: \[(.*)\]")


@contextmanager
def engine_errors(path: Location, owner: str, verb: str) -> Iterator[None]:
    """Turn the engine's errors into ours, which say what to do. owner: the source of the table; verb: what is done."""
    from deltalake.exceptions import (
        CommitFailedError,
        DeltaError,
        DeltaProtocolError,
        SchemaMismatchError,
        TableNotFoundError,
    )

    try:
        yield
    except DatabusError:
        raise
    except CommitFailedError as error:
        if (trouble := path.trouble(error)) is not None:
            raise trouble from None
        if (lacking := _UNSUPPORTED.search(str(error))) is not None:
            raise UnsupportedFeature(
                f"{path}: could not {verb} the table: it has {lacking[1]}, which databus does "
                f"not write. Take it away (`ALTER TABLE ... DROP FEATURE`), or rebuild the table with "
                f"`databus rebuild`"
            ) from error
        raise LockHeld(
            f"{path}: could not {verb} the table, because another process writes it ({error}); a table has "
            f"one writer. Stop the other one, and start this pipeline again"
        ) from error
    except (TableNotFoundError, DeltaProtocolError, SchemaMismatchError, DeltaError, OSError, ValueError) as error:
        if (trouble := path.trouble(error)) is not None:
            raise trouble from None
        raise CorruptData(
            f"{path}: could not {verb} the table of {owner}: {error}. Nothing was committed. Restore "
            f"the folder; or rebuild it with `databus rebuild`"
        ) from error


_OWNER: Final = "databus.source"
_AHEAD: Final = ("/schema", "/schema/seq")
_NUMBERS: Final = ("", "/seq", "/log", "/way", "/db", "/seed", *_AHEAD)
"""What ids of transactions end with, whose versions say how far a table has come."""
_SEEDS_FROM: Final = 2  # generations of snapshots; below stand none, and one that was asked for


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How a table is kept small; see `DeltaConfig`, where each of these is an option."""

    compact_every_commits: int = 200
    vacuum_hours: int = 168
    log_hours: int = 24
    checkpoint_every_commits: int = 50
    file_bytes_max: int = 64 << 20
    rewrite_bytes_max: int = 16 << 30
    group_rows_max: int = GROUP_ROWS_MAX

    def properties(self, owner: str) -> dict[str, str]:
        """As properties of a Delta table."""
        return {
            _OWNER: owner,
            "delta.checkpointInterval": str(self.checkpoint_every_commits),
            "delta.logRetentionDuration": f"interval {self.log_hours} hours",
            "delta.deletedFileRetentionDuration": f"interval {self.vacuum_hours} hours",
            "delta.targetFileSize": str(self.file_bytes_max),
        }


@dataclass(frozen=True, slots=True)
class Marks:
    """Of which key marks stay true in a partition whose values change, as `RemakeJob` has it; elsewhere all do."""

    partition: Mapping[str, str]
    of_key: str


class DeltaTarget:
    """A Delta table that this output alone writes.

    owner: full name of the source, kept in the table, so that two sources never share one unawares. application: the id
    that the pair is stored under. `exists` is false until it is created. crash_points: those before and after a commit.
    is_shared: whether several sources share the table, which is then partitioned by `_source`; each has a target of its
    own over it, and is to `refresh` that before it writes. named: has the files that commits spoke of, and the
    versions that these were to make: a store may carry out a commit after it has answered with an error.
    seen: what all targets over a table know of its commits. may_change: whether others may change rows of it.
    pinned: the files that upkeep leaves alone whatever the table says, by their names; None where there are none such.
    """

    def __init__(
        self,
        path: Location,
        owner: str,
        application: str,
        upkeep: Upkeep,
        crash_points: tuple[str, str],
        *,
        is_shared: bool = False,
        named: dict[str, int] | None = None,
        seen: SeenCommits | None = None,
        may_change: bool = False,
        pinned: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self.path = path
        self._pinned = pinned
        self._named = {} if named is None else named
        self._seen = seen or SeenCommits()
        self._is_shared = is_shared
        self._may_change = may_change
        self._crash_points = crash_points
        self.owner = owner
        self.upkeep = upkeep
        self._application = application
        self._version_seen = 0  # by `maintain`
        self._tried_on: int | None = None  # the version for which the last commit was made, if others came first
        self._vacuumed_s: float | None = None
        self._table: DeltaTable | None = None
        self._stored: Stored | None = None
        self._stored_of: int | None = None  # version
        self._next: Stored | None = None  # what the commit that is being made stores
        self._adding: frozenset[str] = frozenset()  # the files that it adds
        self._live: tuple[object, list[LiveFile]] | None = None  # as asked for last
        self._open()

    def _open(self) -> None:
        if self._was_begun():
            with self._errors("open"):
                self._table = opened_delta(self.path)
            self._version_seen = self._table.version()
            if self._seen.version < 0:
                self._seen.version = self._version_seen
            check_features(self.path, self._table)
            self._check_owner(self._table)

    def _was_begun(self) -> bool:
        """Whether there is a table, sound or not. A kill in the middle of its creation leaves a log without a commit,
        and beside it at most what tasks have written and no commit shows.
        """
        log = self.path / "_delta_log"
        names = [name for name in self.path.names() if not is_data_file(finished_name(name))]
        return log.name in names and (len(names) > 1 or any(name[0].isdigit() for name in log.names()))

    def refresh(self, *, alone: bool = False) -> bool:
        """See what others have committed; returns whether they have. alone: whether no other source has, either.

        Raises `CorruptData` where others have changed rows, `LockHeld` where another databus writes, and
        `UnsupportedFeature` for what a table has been given that we do not write.
        """
        if self._table is None:
            self._open()
            return self._table is not None
        before = self.mark({}) if alone else Mark(self._table.version())
        with self._errors("read"):
            self._table.update_incremental()
        self._tried_on = before.version
        since = before.version if alone else self._seen.version
        version: int = self._table.version()
        if version > since:
            check_features(self.path, self._table)
            self._check_owner(self._table)
            marks = (before, self.mark({})) if alone else None
            check_commits(self.path, since, version, marks, may_change=self._may_change)
            self._seen.version = max(self._seen.version, version)
        return version > before.version

    def _check_owner(self, table: "DeltaTable") -> None:
        owner = table.metadata().configuration.get(_OWNER)
        if owner != self.owner:
            whose = f"the copy of {owner}" if owner else "a Delta table that databus did not make"
            raise UnsupportedFeature(
                f"{self.path}: is {whose}, and would get {self.owner}; give this output another `path` "
                f"(`{{physical}}`, `{{db}}` and `{{table}}` stand for the source's names), or remove the folder"
            )
        if not self._is_shared and self.stored() is None and table.file_uris():
            raise UnsupportedFeature(
                f"{self.path}: holds rows, but not of {self._application}; a renamed pipeline or output does not know "
                f"where its table stands. Say so with `databus rename`, give it its name back, or another `path`, "
                f"where it begins as at a first start"
            )

    @property
    def exists(self) -> bool:
        """Whether the table has been created."""
        return self._table is not None

    @property
    def table(self) -> "DeltaTable":
        """The open table; for a table that exists."""
        if self._table is None:
            raise RuntimeError(f"{self.path}: not created yet")
        return self._table

    def create(self, schema: pa.Schema) -> None:
        """Make an empty table."""
        from deltalake import DeltaTable

        with self._errors("create"):
            self._table = DeltaTable.create(
                self.path.engine_uri,
                schema,
                storage_options=self.path.engine_options,
                partition_by=SOURCE if self._is_shared else None,
                configuration=self.upkeep.properties(self.owner),
                raise_if_key_not_exists=False,
            )
        self._seen.version = self._table.version()

    def stored(self) -> Stored | None:
        """The pair that the table has; None where nothing was stored."""
        version = self.table.version()
        if self._stored_of != version:  # to find it out takes milliseconds, and in a store many requests
            self._stored, self._stored_of = self._read_stored(), version
        return self._stored

    def _read_stored(self) -> Stored | None:
        scn = self.table.transaction_version(self._application)
        if scn is None:
            return None
        said = {name: self.table.transaction_version(f"{self._application}{name}") for name in _NUMBERS[1:]}
        if (seq := said["/seq"]) is None:
            raise CorruptData(f"{self.path}: stores SCN {scn} and no `_seq`; another program changed its transactions")
        ahead, after = (said[name] or 0 for name in _AHEAD)
        way, db, seed = (said[name] or 0 for name in ("/way", "/db", "/seed"))
        older = (None, ASKED)[seed] if seed < _SEEDS_FROM else seed - _SEEDS_FROM
        return Stored((scn, seq), said["/log"], (ahead, after), _digits(way), _digits(db), older)

    def held(self, mark: str) -> Held | None:
        """What the table says of itself; None where nothing was stored. mark: by which it is known."""
        said = self.stored()
        if said is None:
            return None
        return Held(place_at(said.pair, _digits(said.log or 0) or None), mark, said.db, said.way, said.seed)

    def schema(self) -> pa.Schema:
        """The table's columns in Arrow, as we write them."""
        return pa.schema(self.table.schema().to_arrow())

    def bytes_total(self) -> int:
        """Size of the files that the table is made of."""
        sizes = pa.table(self.table.get_add_actions()).column("size_bytes")
        return sum(sizes.to_pylist())

    @property
    def is_empty(self) -> bool:
        """Whether the table has no files."""
        return not self.table.file_uris()

    def commit(self, stored: Stored) -> "CommitProperties":
        """Properties of a commit that stores the pair."""
        from deltalake import CommitProperties, Transaction

        self._next = stored
        scn, seq = stored.pair
        numbers = {"": scn, "/seq": seq} | ({} if stored.log is None else {"/log": stored.log})
        numbers |= {name: int(text, 16) for name, text in (("/way", stored.way), ("/db", stored.db)) if text}
        seed = stored.seed
        numbers["/seed"] = _SEEDS_FROM + seed if isinstance(seed, int) else int(seed is not None)
        if stored.ahead > stored.pair:
            numbers |= zip(_AHEAD, stored.ahead, strict=True)
        transactions = [Transaction(f"{self._application}{name}", number) for name, number in numbers.items()]
        return CommitProperties(app_transactions=transactions, max_commit_retries=0)

    def append(self, rows: pa.Table, stored: Stored, partition: Mapping[str, str] | None = None) -> None:
        """Add rows and store the pair; see `replace`."""
        rows = rows.drop_columns([*(partition or ())])
        files = [write_data_file(self.path, rows)] if rows.num_rows else []
        self.replace(files, (), stored, partition)

    def replace(
        self,
        files: Iterable[DataFile],
        removes: Iterable[LiveFile],
        stored: Stored,
        partition: Mapping[str, str] | None = None,
        *,
        is_data: bool = True,
    ) -> None:
        """Make files in the table's folder part of it in the place of others, and store the pair.

        partition: columns that stand in no file, and the value that all these rows have. is_data: whether rows change.
        """
        from deltalake.transaction import RemoveAction

        now_ms, values = time.time_ns() // 1_000_000, dict(partition or {})
        gone = [
            RemoveAction(remove.name, is_data, now_ms, partition_values=values, size=remove.size_bytes)
            for remove in removes
        ]
        if gone and is_data:
            check_may_remove(self.path, self.table)
        with self._committing("write to"):
            added = self._added(files, values, now_ms, is_data=is_data)
            self._transact([*added, *gone], "append", self.table.schema(), stored)

    def overwrite(self, schema: pa.Schema, files: Iterable[tuple[DataFile, Mapping[str, str]]], stored: Stored) -> None:
        """Put files, each with its partition, in another schema, in the place of all, and store the pair."""
        from deltalake import Schema, TableFeatures

        if lacks_local_times(self.table, schema):  # a commit of its own keeps the pair that the table has
            with self._committing("prepare"):
                kept, feature = self.stored() or stored.nothing, TableFeatures.TimestampWithoutTimezone
                self.table.alter.add_feature(feature, True, commit_properties=self.commit(kept))
        now_ms = time.time_ns() // 1_000_000
        actions = [action for file, values in files for action in self._added([file], values, now_ms)]
        check_may_remove(self.path, self.table)
        with self._committing("rewrite"):
            self._transact(actions, "overwrite", Schema.from_arrow(schema), stored)
        self._check_schema(schema)

    def remade(self, change: Change, schema: pa.Schema, stored: Stored, marks: Marks | None = None) -> Work[None]:
        """Change all rows and the columns that there are, and store the pair. change: gives rows of `schema`."""
        files: list[tuple[DataFile, Mapping[str, str]]] = []
        for partition in self.partitions():
            held = self.live((), partition)
            if held:
                kept = marks.of_key if marks is not None and marks.partition == partition else None
                most = self.upkeep.group_rows_max
                done = yield RemakeJob(self.path, held, self.file_schema(), change, partition, kept, most)
                files += [(file, partition) for file in done.added]
        self.overwrite(schema, files, stored)

    @staticmethod
    def _added(
        files: Iterable[DataFile], partition: Mapping[str, str], now_ms: int, *, is_data: bool = True
    ) -> list[Any]:
        from deltalake.transaction import AddAction

        return [
            AddAction(file.name, file.size_bytes, dict(partition), now_ms, data_change=is_data, stats=file.stats)
            for file in files
        ]

    def _transact(self, actions: list[Any], mode: Any, schema: Any, stored: Stored) -> None:
        from deltalake.transaction import AddAction

        partition_by = [SOURCE] if self._is_shared else None
        self._named |= dict.fromkeys((action.path for action in actions), self.table.version() + 1)
        self._adding = frozenset(action.path for action in actions if isinstance(action, AddAction))
        self.table.create_write_transaction(
            actions, mode, schema, partition_by=partition_by, commit_properties=self.commit(stored)
        )
        self.table.update_incremental()

    def _join(self) -> Work[None]:
        """Join small files. Rows stay what they are, so that who follows the table's commits sees no change."""
        for partition in self.partitions():
            files = self.live([COMMIT_VERSION], partition)
            groups = groups_to_join(files, self.upkeep.file_bytes_max)
            stored = self.stored()
            if not groups or stored is None:
                continue
            done = yield JoinJob(self.path, groups, self.file_schema())
            gone = frozenset(done.removed)
            removes = (file for file in files if file.name in gone)
            self.replace(done.added, removes, stored, partition, is_data=False)

    def live(self, columns: Sequence[str], partition: Mapping[str, str] | None = None) -> list[LiveFile]:
        """The files of the table, or of a partition of it, with bounds of these columns."""
        asked = (self.table.version(), tuple(columns), dict(partition or {}))
        if self._live is None or self._live[0] != asked:
            self._live = asked, live_files(self._actions(partition or {}), columns)
        return [*self._live[1]]

    def mark(self, partition: Mapping[str, str]) -> Mark:
        """How it is now; of a partition."""
        return Mark.of(self.table.version(), self._actions(partition))

    def _actions(self, partition: Mapping[str, str]) -> pa.Table:
        with self._errors("read"):
            actions = pa.table(self.table.get_add_actions(flatten=True))
        for name, value in partition.items():
            actions = actions.filter(pc.equal(actions.column(f"partition.{name}"), value))
        return actions

    def partitions(self) -> list[dict[str, str]]:
        """Those that have files; one, without columns, of a table that is not divided."""
        if not self._is_shared:
            return [{}]
        actions = pa.table(self.table.get_add_actions(flatten=True))
        return [{SOURCE: value} for value in pc.unique(actions.column(f"partition.{SOURCE}")).to_pylist()]

    def file_schema(self) -> pa.Schema:
        """The columns that stand in its files."""
        return pa.schema([field for field in self.schema() if not (self._is_shared and field.name == SOURCE)])

    def discard(self, names: Collection[str]) -> None:
        """Remove files in its folder that no commit has named, and none can any more: another has taken its version."""
        before = (self.table.version() if self._tried_on is None else self._tried_on) if self.exists else -1
        self._open()
        now = self.table.version() if self.exists else -1
        held = {uri.rpartition("/")[2] for uri in self.table.file_uris()} if self.exists else set()
        kept = {name for name, version in self._named.items() if not before < version <= now}
        for name in set(names) - kept - held:
            (self.path / name).remove()

    def add_columns(self, fields: Iterable[pa.Field], stored: Stored) -> None:
        """Add columns that are null in all rows, and store the pair."""
        from deltalake import write_deltalake

        wider = pa.schema([*self.schema(), *(pa.field(f.name, f.type) for f in fields)])
        with self._committing("add columns to"):
            write_deltalake(
                self.table,
                wider.empty_table(),
                mode="append",
                schema_mode="merge",
                commit_properties=self.commit(stored),
            )
        self._check_schema(wider)

    def _check_schema(self, wanted: pa.Schema) -> None:
        schema = self.schema()
        if {field.name: field.type for field in schema} != {field.name: field.type for field in wanted}:
            raise CorruptData(f"{self.path}: wrote columns {wanted.names} and found {schema.names}, or other types")

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, in bounded batches."""
        with self._errors("read"):
            yield from self._dataset().scanner(columns=columns, batch_size=BATCH_ROWS).to_batches()

    def read(self) -> pa.Table:
        """All rows at once: for tests and comparisons."""
        with self._errors("read"):
            return self._dataset().to_table()

    def _dataset(self) -> Any:
        return dataset_of(self.table, self.path, self.schema())

    def maintain(self, *, joins: bool) -> Work[None]:
        """Remove files and log entries that are not needed any more, now and then.

        The table's version says when, so that runs of one batch each come to it, too. joins: whether small files
        are joined before.
        """
        from deltalake import PostCommitHookProperties

        seen, self._version_seen = self._version_seen, self.table.version()
        every = self.upkeep.compact_every_commits
        if self._version_seen // every == seen // every:
            return
        if joins:
            yield from self._join()
        with self._errors("clean up"):
            now_s = time.monotonic()
            if self._vacuumed_s is None or now_s - self._vacuumed_s >= 3600:
                self._vacuumed_s = now_s
                if self._pinned is None:
                    self.table.vacuum(
                        self.upkeep.vacuum_hours,
                        dry_run=False,
                        enforce_retention_duration=False,
                        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
                    )
                self._remove_left()

    def _remove_left(self) -> None:
        """Remove what tasks that were killed have left, which is in no log; nothing that may be another program's, such
        as the files of a table in a folder below. Of a table with pinned files, also what no version needs.
        """
        hours, pinned = self.upkeep.vacuum_hours, self._pinned
        kept = frozenset[str]() if pinned is None else frozenset(pinned())
        for name in self.table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True):
            is_mine = is_data_file(name) or (pinned is not None and "/" not in name)
            if is_mine and name not in kept:
                (self.path / name).remove()
        self.path.remove_half_written(is_data_file, older_than_s=hours * 3600)

    @contextlib.contextmanager
    def _committing(self, verb: str) -> Iterator[None]:
        crash_point(self._crash_points[0])
        known, before = self.stored(), self.table.version()
        self._adding, self._tried_on = frozenset(), None
        try:
            with self._errors(verb):
                yield
        except LockHeld:
            if not commit_path(self.path, before + 1).exists():  # such as S3's 409, of another request under way
                raise ServiceUnavailable(
                    f"{self.path}: the store refused to {verb} the table for a request that was under way; this is "
                    f"tried again"
                ) from None
            if self._next is None or not is_commit(self.path, before + 1, self._application, self._next, self._adding):
                raise
            with self._errors(verb):  # the store carried it out, said that it had not, and was asked once more
                self.table.update_incremental()
        if self.table.version() == before + 1 and self._next is not None:
            self._stored, self._stored_of = self._next.over(known), before + 1
            self._seen.version += self._seen.version == before
        crash_point(self._crash_points[1])

    def _errors(self, verb: str) -> contextlib.AbstractContextManager[None]:
        return engine_errors(self.path, self.owner, verb)


def give_names(path: Location, applications: Mapping[str, str], before: str, owner: str) -> bool:
    """Have a table say under other ids what it says under some, in one commit; returns whether it says anything under
    these. applications: the new id by the old one. before, owner: whose table it says to be, and is to say.

    Delta forgets no id: the old ones stay, and say what they said then.
    """
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import TableNotFoundError

    with engine_errors(path, owner, "rename"):
        try:
            table = opened_delta(path)
        except TableNotFoundError:
            return False
        known, numbers = False, dict[str, int]()
        for old, new in applications.items():
            if table.transaction_version(old) is None:
                continue
            known = True
            for name in _NUMBERS:
                number, there = (table.transaction_version(f"{prefix}{name}") for prefix in (old, new))
                if number != there:
                    numbers[f"{new}{name}"] = number or 0
        commit = CommitProperties(
            app_transactions=[Transaction(name, number) for name, number in numbers.items()], max_commit_retries=0
        )
        if known and owner != before and table.metadata().configuration.get(_OWNER) == before:
            table.alter.set_table_properties({_OWNER: owner}, raise_if_not_exists=False, commit_properties=commit)
        elif numbers:
            columns = table.metadata().partition_columns or None
            table.create_write_transaction([], "append", table.schema(), partition_by=columns, commit_properties=commit)
    return known


def _digits(number: int) -> str:
    """A version of a transaction as an identity is written; 0 is none."""
    return f"{number:016x}" if number else ""
