"""The MySQL and MariaDB source: what a relay calls. See `databus.sources._contract` for the order of calls.

What happens between `start` and `close` is in `_session`; here is how a session begins: which server, whether it is the
one that the log is of and still has what comes next, and at which place to go on.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pymysql

from databus.core import (
    Clock,
    ConfigError,
    Identity,
    InputError,
    UnknownSource,
    UnsupportedFeature,
    make_scn,
    name_parts,
    ordinal_of,
)
from databus.log import Resume
from databus.schema import TableSchema
from databus.sources._capabilities import Finding
from databus.sources._contract import SourceLag
from databus.sources._oracle import Oracle
from databus.sources.mysql._captured_tables import CapturedTables, TableSelection, json_form_of
from databus.sources.mysql._config import MysqlConfig, check_start
from databus.sources.mysql._definition import identifier
from databus.sources.mysql._definition_lookup import TableLookup, tables_there
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql._held_tables import held_after
from databus.sources.mysql._kernels import load_first_kernels, load_kernels
from databus.sources.mysql._oracle import mysql_oracle
from databus.sources.mysql._prepared_store import PreparedStore, forget_prepared, open_store
from databus.sources.mysql._rolled_back_rows import taking_back
from databus.sources.mysql._session import BinlogSession
from databus.sources.mysql._session_position import BEGINS_US, Gap, StreamPosition, held_at, held_entry
from databus.sources.mysql._session_source import OmissionReport, SessionSource
from databus.sources.mysql._start_position import is_time, new_start, start_us, without_domains
from databus.sources.mysql._unread_tables import Unread, unread_after
from databus.sources.mysql._xa_lookup import WantedTransaction, look_for_prepared, unfound
from databus.sources.mysql.binlog import FIRST_OFFSET, LoggedStatement, LogPosition, PreparedMissing, Scanner, TableMap
from databus.sources.mysql.binlog import ordinal_of as ordinal_at
from databus.sources.mysql.server import (
    ConnectedServer,
    Dump,
    EndWatch,
    Hosts,
    NoFeed,
    ServerFacts,
    Trouble,
    check,
    check_source,
    connect_again,
    distance_in,
    error_of,
    is_by_file,
    open_dump,
    pass_over,
    placed,
    refuse,
    replica_id,
    scheme_of,
    second_replica_id,
    server_facts,
    watch_end,
)
from databus.sources.mysql.snapshot import MysqlSnapshotReader
from databus.sources.mysql.tables import ServerKind, TableHistory, UnreadableStatement, tokens_of
from databus.sources.snapshots import Progress, SnapshotOptions
from databus.wire import Group, OpenSnapshot

_WARN_EVERY_S: Final = 600.0  # between two warnings that a purge is near
_PROGRESS_EVERY_S: Final = 10.0  # between two lines about snapshots
_NAMESPACE: Final = uuid.UUID("5f0d6c1e-7f0b-4a53-9d0c-6b1c1f3f4b1d")
_REASON_CHARACTERS_MAX: Final = 1_000  # of a gap's reason, which each table's control repeats
_READS_AT_FIRST: Final = frozenset({"initial", "when_needed", "only"})


class Notices:
    """Lines in the source's log, each kind no more often than it is of use."""

    def __init__(self, logger: Any, retention_warn_ms: int) -> None:
        self._logger = logger
        self._retention_warn_ms = retention_warn_ms
        self._warn_due_s = 0.0
        self.progress_due_s = 0.0

    def of_progress(self, tables: Sequence[Progress], unread: int) -> None:
        """Log now and then how far the snapshots are."""
        if not tables or time.monotonic() < self.progress_due_s:
            return
        self.progress_due_s = time.monotonic() + _PROGRESS_EVERY_S
        for table in tables:
            self._logger.info(
                "reading a table",
                table=table.source,
                rows=table.rows,
                bytes=table.bytes,
                percent_estimated=None if table.percent is None else round(table.percent, 1),
                left_s_estimated=None if table.left_s is None else int(table.left_s),
                elapsed_s=int(table.elapsed_s),
                tables_waiting=unread,
                **({"waits": table.waits_for} if table.waits_for else {}),
            )

    def of_purge(self, lag: SourceLag) -> None:
        """Warn that the server will soon purge what is not captured yet; at most once in ten minutes."""
        left_ms = lag.retention_left_ms
        if left_ms is None or left_ms >= self._retention_warn_ms or time.monotonic() < self._warn_due_s:
            return
        self._warn_due_s = time.monotonic() + _WARN_EVERY_S
        self._logger.warning(
            "the server purges what is not captured yet in less than retention_warn_ms",
            left_s=int(left_ms / 1e3),
            behind_s=int((lag.behind_ms or 0) / 1e3),
            mend="let capture catch up, or raise binlog_expire_logs_seconds on the server",
        )


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a session begins."""

    place: StreamPosition
    position: LogPosition
    tables: CapturedTables
    """What is known of the tables there."""
    snapshots: list[str]
    """The tables that are read."""
    gap: Gap | None
    unread: Unread
    """The tables that waited to be read."""
    by_file: bool = False
    """The server is asked by file and offset although it has GTIDs, since they do not show what was captured."""


class MysqlSource(SessionSource[MysqlConfig]):
    """Changes of one MySQL or MariaDB server, or of several that replicate each other, from the binary log."""

    config_model: ClassVar = MysqlConfig

    def __init__(self, physical: str, config: MysqlConfig, clock: Clock | None = None) -> None:
        super().__init__(physical, config, clock)
        self._hosts = Hosts(physical, config)
        self._folder: Path | None = None
        self._timeline = 0
        self._tables: CapturedTables | None = None
        self._notices = Notices(self._logger, config.retention_warn_ms)
        self._watch: EndWatch | None = None
        self._facts: ServerFacts | None = None  # of the server that the session follows

    def identify(self) -> Identity:
        """See `Source.identify`. With GTIDs all servers that share them are one source, named by the configuration."""
        facts = self._hosts.connected().facts
        scheme = scheme_of(facts)
        named = facts.uuid if scheme == "file-offset" else str(uuid.uuid5(_NAMESPACE, f"{scheme}/{self.physical}"))
        return Identity(named, scheme, ", ".join(self._config.hosts))

    def tables(self) -> Sequence[TableSchema]:
        """See `Source.tables`."""
        server = self._hosts.connected()
        keeper = self._keeper(server.facts, None)
        keeper.use(keeper.read_catalogue(server.connection))
        tables = self._tables_of(keeper, server.facts, {})
        keeper.refuse_unread(tables.selection.selects)
        return [tables.describe(definition) for definition in keeper.definitions() if tables.selects(definition)]

    @staticmethod
    def definitions(physical: str, config: MysqlConfig) -> Sequence[TableSchema]:
        """See `databus.sources.Describable`."""
        source = MysqlSource(physical, config)
        try:
            return source.tables()
        finally:
            source.close()

    def start(self, resume: Resume) -> None:
        """See `Source.start`."""
        is_read = resume.position is None and self._config.snapshot in _READS_AT_FIRST
        load_first_kernels(self.physical, self._say, reads=is_read or bool(resume.snapshots))
        server_id = replica_id(self._config, self.physical, resume.log_id)
        trouble: Trouble | None = None
        if resume.position is not None:
            trouble = self._hosts.settle(LogPosition.from_json(resume.position))
        server = self._hosts.connected()
        findings = check(server.connection, self._config, server.facts, server_id=server_id)
        for finding in findings:
            if finding.severity == "warning":
                self._logger.warning(finding.what, check=finding.name, server=finding.server, mend=finding.mend)
        refuse(findings)
        keeper = self._keeper(server.facts, resume.folder)
        reads_from = None
        if trouble is None:

            def dump(position: LogPosition) -> Dump:
                second_connection = ConnectedServer(connect_again(self._config, server.facts), server.facts)
                return open_dump(self._config, second_connection, position, server_id, by_file=True)

            reads_from, trouble = look_for_prepared(self.physical, self._config, server.facts, resume, dump)
        start = self._begin_at(server, keeper, resume, trouble)
        self._tables = start.tables
        self._omissions = OmissionReport(self._logger, start.tables.omitter)
        self._folder, self._timeline = resume.folder, start.place.timeline
        self._session = self._make_session(server, keeper, resume, start, server_id, reads_from)
        self._watch = watch_end(server.facts, config=self._config)
        self._facts = server.facts
        self._hosts.hand_over()  # the connection is the session's now

    def poll(self, wait_ms: int) -> Group | None:
        """See `Source.poll`."""
        try:
            return super().poll(wait_ms)
        except PreparedMissing as error:
            if self._folder is None:
                raise
            WantedTransaction(error.xid, make_scn(self._timeline, error.ordinal)).save(self._folder)
            raise unfound(error, self.physical) from error

    def durable(self, position: Mapping[str, Any]) -> None:
        """See `Source.durable`. A server keeps its log whatever was captured; only our own history gets shorter."""
        self._started().durable(position)

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        """See `Source.request_snapshot`. `where` is tried on the server at once."""
        session = self._session_with(sources)
        if where is not None:
            assert self._facts is not None  # noqa: S101 - a session that has started follows a server
            _try_condition(self.physical, self._config, self._facts, sources, where)
        session.want(sources, where)

    def cancel_snapshot(self, sources: Sequence[str]) -> None:
        """See `CancelsSnapshots`. A table of which a change was not understood is read all the same."""
        session = self._session_with(sources)
        held = [] if self._tables is None else sorted(self._tables.held.keys() & set(sources))
        if held:
            raise UnsupportedFeature(
                f"{self.physical}: {', '.join(held)}: nothing of it is captured until it has been read, since a change "
                f"of it was not understood; leave it out of `tables` of the source if it is not wanted"
            )
        session.want_no_more(sources)

    def _session_with(self, sources: Sequence[str]) -> BinlogSession:
        session = self._started()
        if session.is_over:
            raise UnknownSource(f"{self.physical}: `snapshot: only` has read all tables, and follows the log no more")
        for name in sources:
            if self._tables is None or name not in self._tables.in_force:
                known = ", ".join(sorted(self._tables.in_force if self._tables else ()))
                raise UnknownSource(f"{self.physical}: no captured table {name!r} to read; there are {known or 'none'}")
        return session

    def lag(self) -> SourceLag:
        """See `Source.lag`."""
        lag = super().lag()
        if self._session is None:
            return lag
        self._notices.of_purge(lag)
        self._notices.of_progress(self._session.progress(), self._session.tables_unread)
        if self._watch is not None:
            self._watch.look(self._session.rests_at())
        return lag

    def progress(self) -> list[Progress]:
        """How far each table is that is being read. Any thread."""
        return [] if self._session is None else self._session.progress()

    def close(self) -> None:
        """See `Source.close`."""
        self._watch, self._facts = None, None
        super().close()
        self._hosts.close()

    # What operators may ask of a server without capturing it (see `databus.sources._capabilities`)

    @staticmethod
    def check(config: MysqlConfig) -> Sequence[Finding]:
        """See `databus.sources.Checkable`."""
        return check_source(config)

    @staticmethod
    def warm_up(physical: str, say: Callable[[str], None]) -> None:
        """Compile the decoder."""
        load_kernels(physical, say)

    @staticmethod
    def check_place(place: str) -> None:
        """See `databus.sources.Movable`."""
        try:
            check_start(place)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @staticmethod
    def oracle(config: MysqlConfig, folder: Path) -> Oracle:
        """See `databus.sources.Comparable`."""
        del folder
        return mysql_oracle(config)

    # Decided by an operator, while no capture runs

    def move(self, resume: Resume, start: str, *, reads: bool) -> list[Group]:
        """What the log must say in order to go on at `start` (as the option of that name), with a gap recorded.

        reads: have all tables read again. Raises `ConfigError` for a place that the server does not have.
        """
        server = self._hosts.connected()
        keeper = self._keeper(server.facts, resume.folder)
        assert resume.position is not None  # noqa: S101 - its caller has looked
        trouble = self._hosts.trouble_at(LogPosition.from_json(resume.position))
        is_other = trouble is not None and trouble.is_other_history
        begin = self._begin_behind_a_gap(
            server, keeper, resume, start, f"moved to {start}", reads=reads, is_other=is_other
        )
        return self._first_groups(begin, keeper, {})

    def pass_over(self, resume: Resume, transactions: int, *, reads: bool) -> tuple[list[Group], list[str]]:
        """What the log must say in order to go on behind the next so many transactions; and their ids.

        Raises `ServiceUnavailable` if so many do not come.
        """
        assert resume.position is not None  # noqa: S101 - its caller has looked
        trouble = self._hosts.settle(LogPosition.from_json(resume.position))
        if trouble is not None:
            raise trouble.error(self.physical)
        server = self._hosts.connected()
        keeper = self._keeper(server.facts, resume.folder)
        begin = self._go_on(server, keeper, resume)
        scanner = self._scanner(server.facts, begin.position, _nothing, _nothing)
        server_id = replica_id(self._config, self.physical, resume.log_id)
        dump = open_dump(self._config, server, begin.position, server_id, by_file=begin.by_file)

        held = held_at(resume.position)

        def learn(statement: LoggedStatement) -> None:
            statement_scn = make_scn(begin.place.timeline, statement.scn)
            held_after(held, keeper.apply(statement, statement_scn), statement_scn)

        forget_prepared(resume.folder)
        try:
            skipped = pass_over(dump, scanner, transactions, learn)
        finally:
            dump.close()
            self._hosts.hand_over()
        timeline = begin.place.timeline
        scn = make_scn(timeline, skipped.ordinal)
        position = {**skipped.position, **held_entry(held)}
        place = StreamPosition(scn, 0, skipped.ids[-1], skipped.commit_us, position, timeline)
        gap = Gap(resume.scn, f"skipped: {', '.join(skipped.ids)}"[:_REASON_CHARACTERS_MAX])
        tables = begin.tables
        begin = replace(begin, place=place, snapshots=sorted(tables.in_force) if reads else [], gap=gap)
        return self._first_groups(begin, keeper, resume.snapshots), skipped.ids

    def _first_groups(self, begin: _Start, keeper: HistoryKeeper, snapshots: Mapping[str, OpenSnapshot]) -> list[Group]:
        """The groups of a session that begins there."""
        facts = self._hosts.connected().facts
        session = BinlogSession(
            self.physical,
            self._config,
            self._clock,
            place=begin.place,
            is_new=False,
            feed=NoFeed(),
            scanner=self._scanner(facts, begin.position, _nothing, _nothing),
            tables=begin.tables,
            history=keeper,
            scheme=scheme_of(facts),
            snapshots=snapshots,
            reader=None,
            unread=begin.unread,
        )
        session.begin(begin.snapshots, begin.gap)
        groups = list(iter(lambda: session.poll(0), None))
        session.close()
        return groups

    # Where to begin

    def _begin_at(
        self, server: ConnectedServer, keeper: HistoryKeeper, resume: Resume, trouble: Trouble | None
    ) -> _Start:
        if resume.position is not None and trouble is None:
            return self._go_on(server, keeper, resume)
        if trouble is not None:
            reason = f"{trouble.fault}: {trouble.missing}"
            is_other = trouble.is_other_history
            return self._begin_behind_a_gap(server, keeper, resume, "latest", reason, reads=True, is_other=is_other)
        place, position, tables = self._at_start(server, keeper, resume, self._config.start, is_other=False)
        reads = self._config.snapshot in _READS_AT_FIRST
        return _Start(place, position, tables, sorted(tables.in_force) if reads else [], None, Unread(resume.folder))

    def _begin_behind_a_gap(
        self,
        server: ConnectedServer,
        keeper: HistoryKeeper,
        resume: Resume,
        start: str,
        reason: str,
        *,
        reads: bool,
        is_other: bool,
    ) -> _Start:
        """At another place than the log's end. reads: whether all tables are read again, or those at hand only."""
        forget_prepared(resume.folder)
        place, position, tables = self._at_start(server, keeper, resume, start, is_other=is_other)
        for name, schema in resume.schemas.items():
            tables.in_force.setdefault(name, schema)
        unread = unread_after(resume)
        read = sorted(tables.in_force if reads else {*resume.snapshots, *unread.names, *held_at(resume.position)})
        unread.clear()  # `read` has all of them
        if read and start != "latest":
            raise ConfigError(
                f"{self.physical}: a table is read as it is now, so with tables to read again ({', '.join(read)}) the "
                f"log can only go on at `latest`"
            )
        return _Start(place, position, tables, read, Gap(resume.scn, reason[:_REASON_CHARACTERS_MAX]), unread)

    def _at_start(
        self, server: ConnectedServer, keeper: HistoryKeeper, resume: Resume, start: str, *, is_other: bool
    ) -> tuple[StreamPosition, LogPosition, CapturedTables]:
        """Where `start` is, and the tables as of there. On a new timeline if SCNs would not rise, or if what is there
        does not follow what was captured (is_other): a server that was reset may have grown beyond our SCN since.
        """
        scheme = scheme_of(server.facts)
        position = new_start(server.connection, server.facts, start, keeper)
        if start != "latest":  # at `latest` the catalogue has all tables
            keeper.doubt_unknown(resume.schemas)
        timeline = resume.timeline
        ordinal = ordinal_at(position, scheme)
        if is_other or (resume.position is not None and ordinal <= ordinal_of(resume.scn)):
            timeline += 1
        scn = make_scn(timeline, ordinal)
        keeper.begin(scn)
        begins = {BEGINS_US: start_us(start)} if is_time(start) else {}
        place = StreamPosition(scn, 0, "", self._clock.now_ns() // 1000, {**position.to_json(), **begins}, timeline)
        tables = self._tables_of(keeper, server.facts, {})
        for definition in keeper.definitions():
            if tables.selects(definition):
                tables.redefine(definition)
        return place, position, tables

    def _go_on(self, server: ConnectedServer, keeper: HistoryKeeper, resume: Resume) -> _Start:
        """Exactly after the log's end, with what was known there."""
        assert resume.position is not None  # noqa: S101 - its caller has looked
        captured = LogPosition.from_json(resume.position)
        log_place = placed(server.connection, server.facts, captured)
        position = log_place or captured
        tables = self._tables_of(keeper, server.facts, resume.schemas)
        keeper.load(resume.scn, resume.schemas, tables.describe, server.connection)
        now_us = self._clock.now_ns() // 1000
        place = StreamPosition(resume.scn, resume.seq, resume.txid, now_us, resume.position, resume.timeline)
        if position.gtids != captured.gtids:  # ordinals are made of GTIDs, so they fall
            place = without_domains(place, position)
            self._logger.warning("GTID domains were deleted on the server", before=captured.gtids, now=position.gtids)
        joined, held = [], held_at(resume.position)
        for definition in keeper.definitions():
            if definition.source in held:  # it was known again, and the log does not say so
                continue
            if tables.selects(definition) and definition.source not in tables.in_force:
                tables.redefine(definition)
                joined.append(definition.source)
        if self._config.snapshot == "never":
            joined = []
        by_file = is_by_file(server.facts, captured, log_place)
        return _Start(place, position, tables, sorted(joined), None, unread_after(resume), by_file)

    def _keeper(self, facts: ServerFacts, folder: Path | None) -> HistoryKeeper:
        fold = facts.lower_case_table_names != 0
        history = TableHistory(
            ServerKind(facts.flavor, facts.version),
            TableSelection(self._config, fold=fold).selects,
            fold=fold,
            explicit_timestamps=facts.variables.get("explicit_defaults_for_timestamp", "ON").upper() == "ON",
            zero_dates=self._config.zero_dates,
            system_zone=facts.variables.get("system_time_zone"),
            existing=partial(tables_there, partial(connect_again, self._config, facts)),
            tables_max=self._config.history_tables_max,
        )
        return HistoryKeeper(self.physical, history, folder)

    def _tables_of(
        self, keeper: HistoryKeeper, facts: ServerFacts, in_force: Mapping[str, TableSchema]
    ) -> CapturedTables:
        selection = TableSelection(self._config, fold=facts.lower_case_table_names != 0)
        return CapturedTables(
            self.physical,
            selection,
            self._config,
            keeper.definition,
            keeper.is_other,
            in_force,
            json_form_of(facts.flavor, facts.version),
            keeper.why_unknown,
        )

    def _scanner(
        self,
        facts: ServerFacts,
        position: LogPosition,
        wants: Callable[[TableMap], bool],
        wants_database: Callable[[str], bool],
        prepared: PreparedStore | None = None,
        holds_skipped: bool = False,
        begins_us: int = 0,
    ) -> Scanner:
        config = self._config
        return Scanner(
            facts.flavor,
            wants,
            position,
            scheme=scheme_of(facts),
            server_uuid=facts.uuid,
            wants_database=wants_database,
            prepared=prepared,
            holds_skipped=holds_skipped,
            begins_us=begins_us,
            event_bytes_max=config.event_bytes_max,
        )

    def _make_session(
        self,
        server: ConnectedServer,
        keeper: HistoryKeeper,
        resume: Resume,
        start: _Start,
        server_id: int,
        reads_from: str | None,
    ) -> BinlogSession:
        facts, config, tables = server.facts, self._config, start.tables
        scheme = scheme_of(facts)
        prepared = open_store(self.physical, config, resume, start.place.timeline)
        if resume.position is None:
            prepared.clear()
        scanner = self._scanner(
            facts,
            start.position,
            tables.wants,
            tables.selection.may_select_in,
            prepared,
            holds_skipped=reads_from is not None,
            begins_us=int(start.place.position.get(BEGINS_US) or 0),
        )
        if reads_from is None:
            dump = open_dump(config, server, start.position, server_id, by_file=start.by_file)
        else:
            begins = LogPosition(reads_from, FIRST_OFFSET, None, facts.uuid)
            dump = open_dump(config, server, begins, server_id, by_file=True)
        options = SnapshotOptions(
            connections=config.snapshot_connections,
            chunk_rows_max=config.chunk_rows_max,
            chunk_bytes_max=config.chunk_bytes_max,
            chunk_keys_max=config.chunk_keys_max,
            row_bytes_max=config.row_bytes_max if tables.omitter is None else config.row_bytes_read_max,
        )
        session = BinlogSession(
            self.physical,
            config,
            self._clock,
            scheme=scheme,
            place=start.place,
            is_new=resume.position is None,
            feed=dump,
            scanner=scanner,
            tables=tables,
            history=keeper,
            snapshots={} if start.gap is not None else resume.snapshots,
            taking_back=taking_back(self.physical, config, resume),
            prepared=prepared,
            reader=MysqlSnapshotReader(lambda: connect_again(config, facts), options, dump.wake),
            lookup=self._lookup(facts, keeper, server_id),
            unread=start.unread,
            expire_ms=None if facts.expire_s is None else facts.expire_s * 1e3,
            bytes_behind=distance_in(facts, config=config).behind,
        )
        session.go_on_reading()
        session.begin(start.snapshots, start.gap)
        return session

    def _lookup(self, facts: ServerFacts, keeper: HistoryKeeper, server_id: int) -> TableLookup:
        def open_server() -> ConnectedServer:
            connection = connect_again(self._config, facts)
            return ConnectedServer(connection, server_facts(connection, facts.server))

        def open_second(server: ConnectedServer, position: LogPosition) -> Dump:
            return open_dump(
                self._config, server, position, second_replica_id(server_id, facts.server_id), is_listed=False
            )

        def open_scanner(position: LogPosition) -> Scanner:
            return self._scanner(facts, position, _nothing, _nothing)

        return TableLookup(keeper, open_server, open_second, open_scanner)


def _nothing(_: object) -> bool:
    """No table of the log is wanted."""
    return False


def _check_condition(where: str, server: ServerKind) -> None:
    """Raise `InputError` unless it stays inside the brackets that it is put into.

    The server itself says whether it is a condition; what it cannot say is that the text closes our bracket, or ends
    our statement, and goes on with one of its own.

    >>> _check_condition("id IN (1, 2) AND name <> ')'", ServerKind("mysql", (8, 0, 31)))
    """
    depth = 0
    try:
        for token in tokens_of(where, server):
            sign = where[token.start : token.end]
            depth += (sign == "(") - (sign == ")")
            if depth < 0 or sign == ";":
                raise InputError(f"where: {where!r} is not one condition: it goes on behind its end, at {sign!r}")
    except UnreadableStatement as error:
        raise InputError(f"where: {where!r} is not one condition: {error}") from error
    if depth:
        raise InputError(f"where: {where!r} is not one condition: a bracket is not closed")


def _try_condition(physical: str, config: MysqlConfig, facts: ServerFacts, sources: Sequence[str], where: str) -> None:
    """Raise `InputError` if the server does not understand it for these tables: once a snapshot has begun, an error
    stops capture.
    """
    _check_condition(where, ServerKind(facts.flavor, facts.version))
    with closing(connect_again(config, facts)) as connection, connection.cursor() as cursor:
        try:
            for source in sources:
                table = identifier(*name_parts(source))
                cursor.execute(f"EXPLAIN SELECT 1 FROM {table} WHERE ({where}\n)")  # noqa: S608 - the operator's own
        except pymysql.MySQLError as error:
            raise InputError(f"{physical}: where: the server does not take {where!r}: {error_of(error)[1]}") from error
