"""Noting: looks at what the pipeline has written, and notes how far the log store is, and each state.

The tables of a state belong together if none has more than the ledger says that all have: the ledger is put after the
tables' commits. A table that is ahead is looked at in the version before.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from databus.bootstrap._config import LOG, STATE, UNNAMED_HOURS, BootstrapConfig
from databus.bootstrap._cut import cut_off
from databus.bootstrap._keep import forgotten
from databus.bootstrap._standing import standing_at
from databus.core import (
    BUS_SEQ_MIN,
    SEQ_DONE,
    DatabusError,
    Pair,
    ServiceUnavailable,
    SourceCheckpoint,
    crash_point,
    split_physical,
)
from databus.filters import matches
from databus.flow import log_number
from databus.link import RelayClient, addresses_of
from databus.log import SchemaVersion
from databus.operate import logger_of
from databus.pipeline import PipelineConfig, load_pipeline, positions_of
from databus.places import Noted, chosen_by
from databus.schema import TableSchema, sink_schema
from databus.sinks import drop_files
from databus.stores import (
    HeadNote,
    KnownSchemas,
    LogLook,
    LogStore,
    LogTableNote,
    NoteFolder,
    StateNote,
    StateTable,
    StoreTable,
    definition_at,
    table_folder,
)

_UNNAMED: Final = "unnamed-"
"""So begins the name of a log of which only the number is known."""
_LOOK_S: Final = 0.5
_RELOOK_S: Final = 60.0
_VERSIONS_BACK_MAX: Final = 100
_CUT_S: Final = 3600.0
_DAY_US: Final = 86_400_000_000

_logger = logger_of("databus.bootstrap")


@dataclass(frozen=True)
class Stand:
    """How far an output is."""

    position: SourceCheckpoint = field(default_factory=SourceCheckpoint)
    incomplete: frozenset[str] = frozenset()
    """Tables, by `db.table`, whose older rows come with a snapshot that has not ended."""
    marks: Mapping[str, Noted] = field(default_factory=dict)
    """Of tables, by `db.table`, what the ledger notes with each batch that writes them."""


class Noting:
    """One physical source. One thread uses it."""

    def __init__(self, config: BootstrapConfig, physical: str) -> None:
        self.physical = physical
        self._config = config
        self._folder = NoteFolder(config.root, physical)
        self._store = LogStore(config.root / LOG, self._folder)
        self._log = self._store.look()
        self._tables: dict[str, StoreTable] = {}
        self._log_tables: dict[str, LogTableNote] = {}  # as they were noted last, by source
        self._opened_at: dict[str, Noted | None] = {}  # by source, the mark before its table was opened last
        self._looked_s = time.monotonic()
        self._looked_at: tuple[SourceCheckpoint, Stand] | None = None
        """Where the stores stood at the last look."""
        self.relook_s = _RELOOK_S
        self._cut_s: float | None = None
        self.cut_every_s = _CUT_S
        self.unnamed_hours = UNNAMED_HOURS
        self.merge_ms = 0
        """How long the last merge took."""
        self.other_logs: Callable[[], Iterable[str]] = tuple
        """The logs of all relays that answer: one of these is meant where the log is not that of the relay asked."""

    def is_at_rest(self, log: SourceCheckpoint, state: "Stand", published: tuple[int, int]) -> bool:
        """Whether the stores stand where they did at the last look, so that another one would note nothing but where
        the relay is; that is noted. To open all tables again and again takes long where there are many.
        """
        before = self._folder.head()
        if before is None or self._looked_at != (log, state) or self._is_relook_due:
            return False
        if before.published != published:
            self._folder.put_head(replace(before, published=published))
        return True

    @property
    def definitions(self) -> tuple[SchemaVersion, ...]:
        """Those that are noted."""
        head = self._folder.head()
        return () if head is None else head.definitions

    def open_log(self, marks: Mapping[str, Noted] | None = None) -> LogLook:
        """The log store as it is now, from where it begins to count. marks: see `Stand.marks`. Now and then all tables
        are opened, since others may have arranged their rows otherwise.
        """
        if self._is_relook_due:
            self._store.relist()
        return self._store.look(self._folder.head(), (marks or {}).get)

    def look(
        self,
        log: SourceCheckpoint,
        state: "Stand",
        definitions: tuple[SchemaVersion, ...],
        uuid: str,
        published: tuple[int, int] = (0, 0),
        opened: LogLook | None = None,
    ) -> StateNote | None:
        """Note what is new. log, state: how far the stores are by their ledgers. uuid: of the relay's log. published:
        where the relay is. opened: the log store as it was after the ledgers. Returns the state that was noted.
        """
        before = self._folder.head()
        self._log = opened or self.open_log()
        if self._is_relook_due:
            self._opened_at.clear()
        sources = list(dict.fromkeys(version.table.source for version in definitions))
        self._note_files(sources)
        low = before.low if before is not None else self._log.first(sources) or log.pair
        if before is not None and self._is_wider(before, sources):  # of the tables that were added, it lacks the past
            low = max(low, (published[0], SEQ_DONE))
        logs = self._logs(before, sources, log.pair, uuid)
        known, cut = (before.definitions, before.cut) if before is not None else ((), None)
        kept = tuple(self._config.options.tables)
        at = replace(log, log=logs[-1][1])
        head = HeadNote(at, low, _with_known(definitions, known), kept, published, cut, logs)
        states, is_cutting = self._folder.states(), self._is_cutting()
        if is_cutting:
            head = self._cut(head, states)
        if head != before:
            self._folder.put_head(head)
        if is_cutting:
            self._drop_files(head)
        crash_point("bootstrap.note.between")
        if before is not None and head.cut != before.cut:
            self._log = self._store.look(head, lambda _: None)
        is_same = bool(states) and states[-1].position.pair == state.position.pair
        # whoever stands below the cut is given tables whole, by a state that says so
        lags = bool(states) and any(table.horizon < head.low for table in states[-1].tables.values())
        self._looked_at = None  # until all is noted
        if states and states[-1].position.pair >= state.position.pair and not (is_same and (lags or self._is_time())):
            self._looked_at = log, state
            return None
        noted = self._note(state, head, sources, states)
        if is_same and noted.tables == states[-1].tables:
            self._looked_at = log, state
            return None
        self._folder.add(noted)
        self._looked_at = log, state
        crash_point("bootstrap.note.after")
        keep = self._config.options.keep
        self._folder.forget(forgotten([*states, noted], head, keep, noted.noted_us))
        return noted

    def _logs(
        self, before: HeadNote | None, sources: Iterable[str], reached: Pair, uuid: str
    ) -> tuple[tuple[Pair, str], ...]:
        """See `HeadNote.logs`. The relay that answers need not be the one that the newest rows came from: each table
        says by a number which log that was. Where the log has changed since the last look, the rows since then may be
        of both, and no position is compared with those by its numbers: they are of a log of their own.
        """
        application = f"databus/{self._config.name}/{LOG}/{{}}/{self.physical}"
        written = (self._store.newest(source, application.format(source)) for source in sources)
        newest = max((stored for stored in written if stored is not None), default=None)
        known = () if before is None else before.logs
        if newest is None:
            return known or (((0, -1), uuid),)
        _, number = newest
        if known and number == _number_of(known[-1][1]):
            return known
        names = (log for log in (uuid, *(log for _, log in known), *self.other_logs()) if log_number(log) == number)
        log = next(names, f"{_UNNAMED}{number:x}")
        if before is None or not known:
            return (((0, -1), log),)
        return (*known, (before.position.pair, f"{known[-1][1]}+{log}"), (reached, log))

    def _is_wider(self, before: HeadNote, sources: Iterable[str]) -> bool:
        """Whether tables are kept by now that were not before."""
        names = (f"{self.physical}/{source}" for source in sources)
        return any(matches(name, self._config.options.tables) and not matches(name, before.tables) for name in names)

    def _note_files(self, sources: Iterable[str]) -> None:
        """Note by what the files of the log store are known again, where they are not those that were noted last."""
        for source in sources:
            now = self._log.note(source)
            if source not in self._log_tables:
                self._log_tables[source] = self._folder.log_table(source)
            if now != self._log_tables[source]:
                self._folder.put_log_table(source, now)
                self._log_tables[source] = now

    def _is_cutting(self) -> bool:
        """Whether to see how much of the log store is older than it has to be."""
        now_s, last = time.monotonic(), self._cut_s
        if self._config.options.log_days is None or (last is not None and now_s - last < self.cut_every_s):
            return False
        self._cut_s = now_s
        return True

    def _cut(self, head: HeadNote, states: Sequence[StateNote]) -> HeadNote:
        """The head of a log store that has lost what is older than `log_days`."""
        sources = head.sources
        at_us = time.time_ns() // 1000 - (self._config.options.log_days or 0) * _DAY_US
        old = [pair for source in sources if (pair := self._log.last_until(source, at_us)) is not None]
        if not old:
            return head
        if states and states[-1].incomplete:
            waits = ", ".join(sorted(states[-1].incomplete))
            _logger.warning("log_days: older changes stay, since tables are not whole", tables=waits)
        controls = {source: self._log.controls(source) for source in sources}
        schemas = KnownSchemas(self.physical, head.definitions)
        return cut_off(head, states, max(old), at_us, controls, self._log.first_after, schemas)

    def _drop_files(self, head: HeadNote) -> None:
        """Remove the files of the log store that do not count behind the cut. Killed half-way, the next look does the
        rest: the head says what counts.
        """
        if head.cut is None:
            return
        crash_point("bootstrap.cut.before_files")
        for source in head.sources:
            files = sorted(self._store.files(source), key=lambda file: file.last)
            old = {file.path.name for file in files[:-1] if file.last <= head.cut.at}
            if files:
                folder = table_folder(self._config.root / LOG, self.physical, source)
                drop_files(folder, old, self.unnamed_hours)
            crash_point("bootstrap.cut.between_tables")

    def _is_time(self) -> bool:
        """Whether to look again at what nothing was written to: somebody may have arranged its rows otherwise, and the
        files that were noted go some day.
        """
        is_due = self._is_relook_due
        self._looked_s = time.monotonic() if is_due else self._looked_s
        return is_due

    @property
    def _is_relook_due(self) -> bool:
        return time.monotonic() - self._looked_s >= self.relook_s

    def _note(self, stand: "Stand", head: HeadNote, sources: Iterable[str], states: list[StateNote]) -> StateNote:
        position, tables, incomplete = stand.position, dict[str, StateTable](), set(stand.incomplete)
        for source in sources:
            standing = standing_at(self._log.controls(source), position.pair)
            if standing.is_incomplete:
                incomplete.add(source)
            if source in head.keyless or standing.is_gone(partial(self._log.first_after, source), position.pair):
                continue
            table = self._at(source, position.pair, stand.marks.get(source))
            if table is None:
                if self._has_begun(source, position.pair):  # it was removed, or is being filled again
                    incomplete.add(source)
                continue
            definition = self._definition_at(source, position.pair, table, head)
            held = [file for file in table.files() if file.rows]
            files, digests = tuple((file.path.name, file.rows) for file in held), {f.path.name: f.digest for f in held}
            horizon = states[-1].tables[source].horizon if states and source in states[-1].tables else (0, 0)
            horizon = max(horizon, head.low)
            tables[source] = StateTable(files, definition, horizon, digests, standing.is_narrowed)
        earlier = (state.end + 1 for state in states if state.position.scn == position.scn)
        base = max(BUS_SEQ_MIN, position.pair[1] + 1, *earlier, 0)
        known = tuple(sorted({*tables, *(name for state in states for name in state.known), *incomplete}))
        sizes = {
            "log_bytes": self._store.size_bytes,
            "state_bytes": sum(table.size_bytes for table in self._tables.values()),
        }
        measured = {**sizes, "merge_ms": self.merge_ms}
        return StateNote(position, base, tables, frozenset(incomplete), known, time.time_ns() // 1000, measured)

    def _definition_at(self, source: str, pair: Pair, table: StoreTable, head: HeadNote) -> TableSchema:
        controls = self._log.controls(source)
        if controls and controls[0].pair <= pair:
            definition = definition_at(source, pair, controls, KnownSchemas(self.physical, head.definitions))
            if definition is not None:
                return definition
        return self._definition_of(source, table, head)

    def _has_begun(self, source: str, until: Pair) -> bool:
        """Whether the log store has something of a table up to a pair."""
        first = self._log.first([source])
        return first is not None and first <= until

    def _at(self, source: str, until: Pair, mark: Noted | None) -> StoreTable | None:
        """The table in its last version that has nothing above a pair; None if there is none yet. mark: of the table,
        in the ledger.
        """
        table = self._tables.get(source)
        if table is None:
            folder = table_folder(self._config.root / "state", self.physical, source)
            table = self._tables[source] = StoreTable(folder)
        opened_at = self._opened_at.pop(source, None)
        if (mark is None or mark != opened_at) and not table.refresh():
            return None
        application = f"databus/{self._config.name}/{STATE}/{source}/{self.physical}"
        for number in range(_VERSIONS_BACK_MAX):
            stored = table.stored(application)
            if stored is None:
                return None
            if stored <= until:
                if not number:  # one that was ahead has more than this version, under the same mark
                    self._opened_at[source] = mark
                return table
            table.go_to(table.version - 1)
        raise ServiceUnavailable(f"{table.folder}: was written {_VERSIONS_BACK_MAX} times since its ledger was")

    @staticmethod
    def _definition_of(source: str, table: StoreTable, head: HeadNote) -> TableSchema:
        """Of a table of which no control tells: the newest definition whose columns the files have."""
        names = set(table.schema().names)
        of_table = [version.table for version in head.definitions if version.table.source == source]
        fitting = [table for table in of_table if set(sink_schema(table).names) <= names]
        return (fitting or of_table)[-1]


class NoteTaker:
    """A thread that looks all the time, until `close`."""

    def __init__(self, config: BootstrapConfig) -> None:
        self._config = config
        self._relay = config.relay()
        self._noting: dict[str, Noting] = {}
        self._definitions: dict[str, tuple[SchemaVersion, ...]] = {}  # by physical source, as the relay said them last
        self._pipeline: PipelineConfig | None = None
        self._closing = threading.Event()
        self._said = ""
        self._merge_ms: dict[str, int] = {}  # by physical source
        self._thread = threading.Thread(target=self._run, name="bootstrap-notes", daemon=True)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take note of a batch of the pipeline."""
        if event["event"] == "batch" and event["output"] == STATE and "physical" in event:
            self._merge_ms[event["physical"]] = round(event["batch_ms"])

    def start(self) -> None:
        """Begin. Whoever has not the lock of the state notes what `erase` is removing in another process."""
        self._thread.start()

    def close(self) -> None:
        """End, and wait for it."""
        self._closing.set()
        self._relay.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_S):
            try:
                self.look()
                self._said = ""
            except Exception as error:  # noqa: BLE001 - whatever it is: without this thread states end in silence
                if not self._closing.is_set() and str(error) != self._said:  # it may be so for hours
                    self._said = str(error)
                    is_defect = not isinstance(error, DatabusError | OSError)
                    facts = {"error": type(error).__name__, "message": str(error), "exc_info": is_defect}
                    _logger.warning("the stores could not be looked at", **facts)

    def look(self) -> None:
        """Note what is new of all physical sources, also where one cannot be looked at. Raises what that does."""
        pipeline = self._pipeline = self._pipeline or load_pipeline(self._config.pipeline_path).config
        log, state = _stands(pipeline, LOG), _stands(pipeline, STATE)
        failed: Exception | None = None
        for physical in sorted(log):
            try:
                self._look(physical, log[physical], state.get(physical, Stand()))
            except Exception as error:  # noqa: BLE001 - raised below
                failed = failed or error
        if failed is not None:
            raise failed

    def _look(self, physical: str, log: Stand, state: Stand) -> None:
        noting = self._noting.setdefault(physical, Noting(self._config, physical))
        noting.other_logs = partial(self._logs_of_all, physical)
        noting.merge_ms = self._merge_ms.get(physical, 0)
        head = self._relay.head(physical)
        end = head.published.scn, head.published.ts_us
        if not noting.is_at_rest(log.position, state, end):
            opened = noting.open_log(log.marks)
            noting.look(log.position, state, self._definitions_of(noting, opened), head.log, end, opened)

    def _logs_of_all(self, physical: str) -> Iterator[str]:
        for address in addresses_of(self._relay.url):
            relay = self._config.relay(address)
            with suppress(DatabusError), closing(relay):
                yield relay.head(physical).log

    def _definitions_of(self, noting: Noting, opened: LogLook) -> tuple[SchemaVersion, ...]:
        """All definitions of a physical source. The relay is asked for them only where it has one in force, or the log
        store one in a control, that is not held: with many tables they are large.
        """
        physical = noting.physical
        held = self._definitions.get(physical, ())
        last = {version.table.source: version.table.fingerprint for version in held}
        there = [source for source in self._relay.sources() if source.physical == physical]
        known = {version.table.fingerprint for version in (*held, *noting.definitions)}  # a relay may lack older ones
        is_in_force = all(last.get(source.table) == source.fingerprint for source in there)
        named = (control.table.fingerprint for source in last for control in opened.controls(source))
        if not is_in_force or not known.issuperset(named):
            held = self._definitions[physical] = definitions_of(self._relay, physical)
        return held


def definitions_of(relay: RelayClient, physical: str) -> tuple[SchemaVersion, ...]:
    """All definitions that a relay knows; of each table the one in force last, though it may have been there before."""
    there = [schema for schema in relay.register([f"{physical}/*"]) if schema.name.startswith(f"{physical}/")]
    return tuple(
        SchemaVersion(schema.id, schema.version, schema.table)
        for schema in sorted(there, key=lambda schema: schema.is_current)
    )


def _number_of(log: str) -> int:
    return int(log.removeprefix(_UNNAMED), 16) if log.startswith(_UNNAMED) else log_number(log)


def _with_known(now: tuple[SchemaVersion, ...], known: Iterable[SchemaVersion]) -> tuple[SchemaVersion, ...]:
    """The relay's definitions, and those before them that were noted and that it does not know: it may be younger than
    the stores. Of its numbers none is given to two tables.
    """
    fingerprints, ids = (
        {version.table.fingerprint for version in now},
        {version.table.source: version.source_id for version in now},
    )
    taken, older = {*ids.values()}, list[SchemaVersion]()
    for version in known:
        if version.table.fingerprint in fingerprints:
            continue
        source = version.table.source
        if source not in ids:
            ids[source] = version.source_id if version.source_id not in taken else max(taken) + 1
            taken.add(ids[source])
        older.append(replace(version, source_id=ids[source]))
    return (*older, *now)


def _stands(pipeline: PipelineConfig, output: str) -> dict[str, Stand]:
    """By physical source, how far all tables of an output are."""
    stands: dict[str, Stand] = {}
    for output_positions in positions_of(pipeline):
        if output_positions.error is not None:
            raise output_positions.error
        for physical, position in output_positions.positions.items() if output_positions.output == output else ():
            least = position.least(position.tables)
            if least is not None:
                lacks = (name for name in position.seeds if chosen_by(position.tables, name))
                marks = {split_physical(name)[1]: noted for name, noted in position.marks.items()}
                stands[physical] = Stand(least, frozenset(split_physical(name)[1] for name in lacks), marks)
    return stands
