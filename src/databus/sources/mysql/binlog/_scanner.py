"""Scanner: contiguous event bytes in, runs of captured rows events out, in log order. No I/O.

Feed it bytes cut anywhere, then call `next` until it answers None. A kernel walks the events; the few kinds that need
Python are the methods `_on_...` here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from databus.core import (
    CorruptData,
    DatabusError,
    LimitExceeded,
    PositionPurged,
    SourceChanged,
    UnsupportedFeature,
)
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._byte_reader import ByteReader
from databus.sources.mysql.binlog._event_types import (
    CHECKSUM_BYTES,
    ENCRYPTED_FILE_MAGIC,
    FILE_MAGIC,
    FLAG_ARTIFICIAL,
    FLAG_IGNORABLE,
    HEADER_BYTES,
    EventType,
    matches_checksum,
    name_of,
    parse_format,
)
from databus.sources.mysql.binlog._failures import DomainRestarted, failure
from databus.sources.mysql.binlog._gtid import GtidSet, GtidState
from databus.sources.mysql.binlog._log_statements import HELD_KINDS, StatementWalk
from databus.sources.mysql.binlog._named_tables import KnownTables
from databus.sources.mysql.binlog._position import Flavor, LogPosition, Scheme
from databus.sources.mysql.binlog._prepared import Prepared
from databus.sources.mysql.binlog._savepoints import Savepoints
from databus.sources.mysql.binlog._scan_buffer import frozen
from databus.sources.mysql.binlog._scanned import Abandoned, Heartbeat, LogItem, Rotated
from databus.sources.mysql.binlog._table_map import TableMap, packed

_HEARTBEATS: Final = (EventType.HEARTBEAT, EventType.HEARTBEAT_V2)
_INNER_KINDS: Final = frozenset(
    {EventType.QUERY, EventType.QUERY_COMPRESSED, EventType.XA_PREPARE, EventType.EXECUTE_LOAD_QUERY}
)


@dataclass(frozen=True, slots=True)
class ScannerStats:
    """How much the scanner has read so far."""

    events: int
    bytes: int
    skipped_bytes: int
    """Bytes of rows events that are not captured."""
    transactions: int
    skipped_transactions: int
    kinds: Mapping[str, int]
    """Events by the name of their kind, including those inside compressed transactions."""


class Scanner(StatementWalk):
    """Walks the log of one server, from one place on, to its end.

    flavor: whose log it is. wants: whether a table's rows are to be captured; asked once for each different table map.
    start: transactions up to here are passed over in silence (the log may begin earlier); None: from the first one on,
    as the log's own list of what was before says. scheme: how ordinals are made. server_uuid: of the server that the
    log comes from, None for files. wants_database: whether rows of this database are captured, for statements that are
    logged instead of rows; the default is True. is_file: the bytes are those of files, nothing dropped; each is
    announced by `open_file`. prepared: holds XA transactions until they are committed; without, one that changes a
    captured table raises `UnsupportedFeature`. holds_skipped: also those that were prepared up to `start`. begins_us:
    rows of such that were committed before are not given, since nobody wants them.
    event_bytes_max: a larger event raises `LimitExceeded`. run_events_max: rows events and transactions in one run.
    inflate_bytes_max: what the compressed events of one run may take once inflated.
    """

    def __init__(
        self,
        flavor: Flavor,
        wants: Callable[[TableMap], bool],
        start: LogPosition | None = None,
        *,
        scheme: Scheme,
        server_uuid: str | None = None,
        wants_database: Callable[[str], bool] = lambda _: True,
        is_file: bool = False,
        prepared: Prepared | None = None,
        holds_skipped: bool = False,
        begins_us: int = 0,
        event_bytes_max: int = 256 << 20,
        run_events_max: int = 1 << 15,
        inflate_bytes_max: int = 16 << 20,
        table_maps_max: int = 1 << 16,
    ) -> None:
        super().__init__(
            flavor,
            KnownTables(wants, table_maps_max, is_mariadb=flavor == "mariadb"),
            start or LogPosition(),
            scheme=scheme,
            server_uuid=server_uuid,
            is_file=is_file,
            event_bytes_max=event_bytes_max,
            run_events_max=run_events_max,
            inflate_bytes_max=inflate_bytes_max,
        )
        self._wants_database = wants_database
        self._prepared, self._begins_us = prepared, begins_us
        self._savepoints, self._savepoints_of = Savepoints(), -1
        self._held_tables, self._held_of, self._held_is_whole = {}, -1, True
        self._is_replayed = False
        self._state[s.HOLDS_SKIPPED] = holds_skipped and prepared is not None
        self._announced = ""
        self._deleted: set[int] = set()  # domains of MariaDB's GTIDs
        self._is_used_up = False  # the kernel has seen all of the buffer that is whole
        self._error: Exception | None = None

    # --- what the caller sees ---

    @property
    def tables(self) -> list[TableMap]:
        """The captured tables by slot."""
        return self._known.tables

    @property
    def stats(self) -> ScannerStats:
        """What went through so far."""
        state = self._state
        kinds = {name_of(int(kind)): int(self._kinds[kind]) for kind in np.flatnonzero(self._kinds)}
        return ScannerStats(
            events=int(self._kinds.sum()),
            bytes=int(state[s.COUNT_BYTES]),
            skipped_bytes=int(state[s.COUNT_SKIPPED]),
            transactions=int(state[s.COUNT_TX]),
            skipped_transactions=int(state[s.COUNT_TX_SKIPPED]),
            kinds=kinds,
        )

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return bool(self._state[s.TX_STATE] != s.OUTSIDE)

    @property
    def wanted(self) -> int:
        """At least so many bytes more are needed before `next` can go on; 0 if it can now."""
        return max(self._needed() - self._pending_bytes, 0)

    def feed(self, data: NDArray[np.uint8] | bytes) -> None:
        """More of the log. The bytes are not copied if they begin an event: they must not change any more."""
        if self._pending_bytes > self._event_bytes_max:
            raise LimitExceeded(
                f"{self.place}: {self._pending_bytes} bytes wait to be scanned, event_bytes_max is "
                f"{self._event_bytes_max}; "
                f"call `next` until it answers None before feeding more"
            )
        if len(data):
            array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
            self._pending.append(frozen(array))
            self._pending_bytes += len(array)

    def open_file(self, file: str) -> None:
        """The bytes fed from here on are those of the log file of this name, from its beginning, magic number
        included.
        """
        if self._rest or self._pending_bytes:
            self._stop(CorruptData(f"{self.place}: the file ends inside an event; the rest of it is missing"))
        self._enter_file(file, 0)
        self._is_format_known = False

    def next(self) -> LogItem | None:
        """What comes next in the log; None if more bytes are needed. Once it has raised, it raises the same again."""
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._is_used_up and not self._refill():
                return None
            self._is_used_up = False
            try:
                if not self._advance():
                    return None
            except DatabusError as error:
                self._keep_run()
                self._error = error
        return self._ready.popleft()

    def _advance(self) -> bool:
        """Go on until something is ready. False: more bytes are needed."""
        if not self._is_format_known and not self._check_first():
            return self._more()
        status = self._scan()
        if status == s.NEED_MORE:
            return self._more()
        if status == s.FULL:
            self._keep_run()
        elif status == s.FAILED:
            self._raise_if_restarted()
            raise failure(int(self._state[s.ERROR]), self._where(), self._event_kind(), int(self._state[s.SIZE]))
        elif status == s.NEW_TABLE:
            self._learn_table()
        elif status == s.NEW_SID:
            at = int(self._state[s.POS]) + HEADER_BYTES + 1
            self._executed.add_sid(self._buffer[at : at + 16].tobytes(), self._state)
        elif status == s.NEW_DOMAIN:
            at = int(self._state[s.POS]) + HEADER_BYTES + 8
            self._executed.add_domain(int.from_bytes(self._buffer[at : at + 4].tobytes(), "little"), self._state)
        elif status == s.GROW_SET:
            self._executed.grow()
        else:
            self._handle()
        return True

    def _more(self) -> bool:
        """The buffer is used up: keep what it gave, go on to the next one."""
        self._keep_run()
        if self._levels:
            self._next_inner()
            return True
        self._is_used_up = not self._refill()
        return not self._is_used_up or bool(self._ready)

    # --- events that are Python's ---

    def _handle(self) -> None:
        kind = self._event_kind()
        is_held = self._state[s.TX_IS_XA] and kind in HELD_KINDS
        handler = StatementWalk.hold if is_held else self._HANDLERS.get(kind)
        if self._state[s.IS_INNER] and kind not in _INNER_KINDS and not is_held:
            self._corrupt("a kind that may not stand inside a compressed transaction")
        if handler is not None:
            try:
                handler(self)
            except ValueError as error:
                self._corrupt(str(error))
        elif self._flags() & FLAG_IGNORABLE:
            self._consume()
        else:
            raise UnsupportedFeature(
                f"{self._where()}: an event of the kind {name_of(kind)}, which this version does not know and the "
                f"server does not let "
                f"pass. Nothing was skipped; a newer databus may know it"
            )

    def _check_first(self) -> bool:
        """A log, and each file, begins with its format. False: not enough bytes to know."""
        state = self._state
        if self._at_magic:
            if self._rest < len(FILE_MAGIC):
                return False
            at = int(state[s.POS])
            magic = self._buffer[at : at + len(FILE_MAGIC)].tobytes()
            if magic == ENCRYPTED_FILE_MAGIC:
                raise UnsupportedFeature(f"{self._file}: an encrypted file can be read through its server only")
            if magic != FILE_MAGIC:
                raise CorruptData(f"{self._file} at 0: begins with {magic.hex()}, a binary log with {FILE_MAGIC.hex()}")
            state[s.POS] += len(FILE_MAGIC)
            state[s.OFFSET] = len(FILE_MAGIC)
        if self._rest < HEADER_BYTES:
            return False
        if self._event_kind() not in (EventType.FORMAT_DESCRIPTION, EventType.ROTATE, *_HEARTBEATS):
            state[s.SIZE] = 0
            self._corrupt("the log does not begin with its format description")
        return True

    def _learn_table(self) -> None:
        at, state = int(self._state[s.POS]) + HEADER_BYTES, self._state
        width = int(state[s.TABLE_ID_BYTES])
        table_id = int.from_bytes(self._buffer[at : at + width].tobytes(), "little")
        try:
            self._known.learn(table_id, self._buffer[at + width : int(state[s.BODY_END])].tobytes(), state)
        except ValueError as error:
            self._corrupt(str(error))

    def _on_rotate(self) -> None:
        state = self._state
        at, size = int(state[s.POS]), int(state[s.SIZE])
        is_artificial = bool(self._flags() & FLAG_ARTIFICIAL) or self._log_pos() == 0
        # A dump begins with a ROTATE, before its format description: only its own bytes show whether it has a checksum.
        has_checksum = matches_checksum(self._buffer[at : at + size].tobytes())
        if state[s.HAS_CHECKSUM] and not has_checksum and (self._is_file_mode or not is_artificial):
            raise failure(s.BAD_CHECKSUM, self._where(), EventType.ROTATE, size)
        if has_checksum and (is_artificial or state[s.HAS_CHECKSUM]):
            state[s.BODY_END] -= CHECKSUM_BYTES
        body = self._body()
        file = body[8:].decode("utf-8", "replace")
        if not file:
            self._corrupt("it names no file")
        if not is_artificial and state[s.TX_STATE] != s.OUTSIDE:
            self._corrupt("a transaction does not end in the file that it began in")
        self._consume()
        if is_artificial and not self._is_file_mode:
            self._enter_file(file, int.from_bytes(body[:8], "little") & 0x7FFFFFFFFFFFFFFF)

    @property
    def _is_file_mode(self) -> bool:
        return bool(self._state[s.IS_FILE])

    def _on_format(self) -> None:
        state = self._state
        at, size = int(state[s.POS]), int(state[s.SIZE])
        file_format = parse_format(self._buffer[at : at + size].tobytes())
        if not file_format.is_sound:
            raise failure(s.BAD_CHECKSUM, self._where(), EventType.FORMAT_DESCRIPTION, size)
        self._keep_run()
        self._began_s = file_format.written_s
        state[s.HAS_CHECKSUM] = file_format.has_checksum
        state[s.TABLE_ID_BYTES] = file_format.table_id_bytes
        if state[s.TX_STATE] != s.OUTSIDE:
            self._abandon()  # files end between two transactions: the server crashed while it wrote this one
        self._is_format_known = True
        self._consume()
        if self._file != self._announced:
            self._announced = self._file
            self._ready.append(Rotated(self._file, file_format.server_version))

    def _abandon(self) -> None:
        state = self._state
        if self._open_is_out:
            self._ready.append(Abandoned(self._origin(), self._where()))
        self._open_is_out = False
        state[s.TX_STATE] = s.OUTSIDE
        state[s.TX_ROW] = -1

    def _on_heartbeat(self) -> None:
        state = self._state
        kind, body = self._event_kind(), self._body()
        file, offset = body.decode("utf-8", "replace"), -1
        if kind == EventType.HEARTBEAT_V2:
            file, offset = _heartbeat_fields(body)
        if offset < 0:
            ahead = (self._log_pos() - int(state[s.OFFSET])) & 0xFFFFFFFF  # a header has the low 32 bits of an offset
            offset = int(state[s.OFFSET]) + (ahead if ahead < 0x80000000 else 0)
        self._consume()
        if state[s.TX_STATE] != s.OUTSIDE:
            return  # a reader cannot resume inside a transaction
        if file == self._file:
            state[s.OFFSET] = max(int(state[s.OFFSET]), offset)
            self._leaves_out = False
        self._keep_run()
        self._ready.append(Heartbeat(self.position.to_json()))

    def _on_previous_gtids(self) -> None:
        state = self._state
        before = GtidSet.decode(self._body())
        self._consume()
        if state[s.SCHEME] != s.BY_GTID:
            return
        if not state[s.SET_KNOWN]:
            self._take_for_executed(before)
            return
        executed = self.position.gtids
        missing = before.subtract(GtidSet.parse(executed or ""))
        if missing:
            self._stop_for_gap(str(missing))

    def _on_gtid_list(self) -> None:
        state = self._state
        reader = ByteReader(self._body())
        count = reader.integer(4)
        is_artificial = bool(self._flags() & FLAG_ARTIFICIAL) or count >> 28 != 0
        if state[s.SCHEME] != s.BY_DOMAINS or (is_artificial and state[s.SET_KNOWN]):
            self._consume()  # servers send these often, and they may be long
            return
        last: dict[int, tuple[int, int]] = {}
        for _ in range(count & 0x0FFFFFFF):
            domain, server, number = reader.integer(4), reader.integer(4), reader.integer(8)
            if domain not in last or last[domain][1] < number:
                last[domain] = (server, number)
        self._consume()
        before = GtidState(last)
        if not state[s.SET_KNOWN]:
            self._take_for_executed(before)
            return
        executed = GtidState.parse(self.position.gtids or "")
        if state[s.SKIP_BELOW] == 0:  # of all that is before this file, so it lacks what is ours only if it was deleted
            self._deleted |= set(before.lacks(executed).domains)
        missing = executed.lacks(before)
        if state[s.SKIP_BELOW] >= 0:  # lists name domains that are deleted further on, which the start was rid of
            missing = GtidState(
                {domain: gtid for domain, gtid in missing.domains.items() if domain in executed.domains}
            )
        if missing:
            self._stop_for_gap(f"up to {missing}")

    def _take_for_executed(self, before: GtidSet | GtidState) -> None:
        self._keep_run()
        self._executed.begin_with(before, self._state, is_start=False)
        self._state[s.LAST_ORDINAL] = before.size
        self._base = self._executed.snapshot(self._state)

    def _stop_for_gap(self, missing: str) -> NoReturn:
        if self._state[s.COUNT_TX] == 0:
            raise PositionPurged(
                f"{self.place}: the log begins after transactions that are needed to continue from {self._start}: "
                f"{missing}. "
                f"The server has purged them; snapshot the captured tables again, or take a server that still has them"
            )
        raise SourceChanged(
            f"{self.place}: the server says that these transactions precede this file, but they are not in its log: "
            f"{missing}. "
            f"They were set as executed without being logged; snapshot the captured tables again"
        )

    def _raise_if_restarted(self) -> None:
        """Raise `DomainRestarted` for a number that was there before, of a domain that was deleted meanwhile."""
        state = self._state
        if state[s.FLAVOR] != s.MARIADB or state[s.ERROR] != s.REPEATED:
            return
        domain = int(self._executed.domains[int(state[s.TX_A]), s.D_ID])
        if domain in self._deleted:
            raise DomainRestarted(
                f"{self._where()}: the GTID domain {domain} was deleted (FLUSH BINARY LOGS DELETE_DOMAIN_ID) and is "
                f"used again; capture goes on right before that, on a new timeline"
            )

    def _on_gtid_tagged(self) -> None:
        from databus.sources.mysql.binlog._gtid import parse_tagged

        state = self._state
        if state[s.FLAVOR] != s.MYSQL:
            raise failure(s.OTHER_FLAVOR, self._where(), EventType.GTID_TAGGED, int(state[s.SIZE]))
        if state[s.TX_STATE] != s.OUTSIDE:
            raise failure(s.INSIDE_TX, self._where(), EventType.GTID_TAGGED, int(state[s.SIZE]))
        gtid = parse_tagged(self._body())
        executed = self._executed
        sid = executed.add_name(gtid.name, state)
        while executed.counts[sid] + 1 >= executed.intervals.shape[1]:
            executed.grow()
        status = self._transaction_kernels.begin_tagged(
            state,
            executed.intervals,
            executed.counts,
            executed.start_intervals,
            executed.start_counts,
            sid,
            gtid.number,
            gtid.commit_us,
            self._when(),
        )
        if status == s.FAILED:
            raise failure(int(state[s.ERROR]), self._where(), EventType.GTID_TAGGED, int(state[s.SIZE]))
        self._consume()

    def _on_incident(self) -> None:
        if self._state[s.OFFSET] >= self._state[s.SKIP_BELOW] and not self._state[s.TX_SKIP]:
            raise SourceChanged(
                f"{self._where()}: the server logged an incident: changes were made that are not in the log. "
                f"Snapshot the captured tables "
                f"again, from a position behind it"
            )
        self._consume()

    def _on_start_encryption(self) -> None:
        if self._is_file_mode:
            raise UnsupportedFeature(
                f"{self._where()}: the rest of this file is encrypted; it can be read through its server only"
            )
        self._consume()

    # --- compressed transactions ---

    def _on_payload(self) -> None:
        state = self._state
        if state[s.TX_STATE] == s.OUTSIDE:
            raise failure(s.OUTSIDE_TX, self._where(), EventType.TRANSACTION_PAYLOAD, int(state[s.SIZE]))
        if state[s.TX_SKIP] and not state[s.HOLDS_SKIPPED]:  # what is held of it cannot be seen from outside
            self._finish(is_row=True)
            self._consume()
            return
        self._enter(self._unpack())

    _HANDLERS: ClassVar[Mapping[int, Callable[["Scanner"], None]]] = {
        EventType.QUERY: StatementWalk.on_query,
        EventType.QUERY_COMPRESSED: StatementWalk.on_query,
        EventType.EXECUTE_LOAD_QUERY: StatementWalk.on_query,
        EventType.ROTATE: _on_rotate,
        EventType.FORMAT_DESCRIPTION: _on_format,
        EventType.HEARTBEAT: _on_heartbeat,
        EventType.HEARTBEAT_V2: _on_heartbeat,
        EventType.PREVIOUS_GTIDS: _on_previous_gtids,
        EventType.GTID_LIST: _on_gtid_list,
        EventType.GTID_TAGGED: _on_gtid_tagged,
        EventType.INCIDENT: _on_incident,
        EventType.START_ENCRYPTION: _on_start_encryption,
        EventType.XA_PREPARE: StatementWalk.on_xa_prepare,
        EventType.TRANSACTION_PAYLOAD: _on_payload,
    }


def _heartbeat_fields(body: bytes) -> tuple[str, int]:
    reader = ByteReader(body)
    file, offset = "", -1
    while kind := packed(reader):
        field = reader.take(packed(reader))
        if kind == 1:
            file = field.decode("utf-8", "replace")
        elif kind == 2:
            offset = packed(ByteReader(field))
    return file, offset
