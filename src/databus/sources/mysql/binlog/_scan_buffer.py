"""Walk: the bytes and the state of a scan, and the runs that come of it; what the events mean is the scanner's."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace as with_
from typing import Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from databus.core import CorruptData, DatabusError, PositionForeign
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._compressed import (
    PIECE_BYTES,
    EventTooLarge,
    inflate,
    inflate_event,
    mark,
    parse_payload,
    whole_events,
)
from databus.sources.mysql.binlog._event_types import FILE_MAGIC, HEADER_BYTES, EventType, name_of
from databus.sources.mysql.binlog._executed_set import ExecutedArrays
from databus.sources.mysql.binlog._failures import failure
from databus.sources.mysql.binlog._gtid import GtidSet, GtidState
from databus.sources.mysql.binlog._named_tables import KnownTables
from databus.sources.mysql.binlog._position import Flavor, LogPosition, Scheme, file_number, ordinal_of
from databus.sources.mysql.binlog._scanned import LogItem, LogRun, TransactionOrigin

_SCHEMES: Final[dict[str, int]] = {"gtid": s.BY_GTID, "domains": s.BY_DOMAINS, "file-offset": s.BY_FILE}
_EVERYTHING: Final = 1 << 62


class _Level(NamedTuple):
    """A buffer that waits until the pieces inside its event at `pos` are walked through."""

    buffer: NDArray[np.uint8]
    pos: int
    offset: int
    is_inner: int
    pieces: Iterator[NDArray[np.uint8]]


class Walk:
    """One log's bytes, in order, and what the scan kernel knows about them. `Scanner` is the class to use."""

    def __init__(
        self,
        flavor: Flavor,
        known: KnownTables,
        start: LogPosition,
        *,
        scheme: Scheme,
        server_uuid: str | None,
        is_file: bool,
        event_bytes_max: int,
        run_events_max: int,
        inflate_bytes_max: int,
    ) -> None:
        from databus.sources.mysql.binlog import _crc_kernels, _scan_kernels, _transaction_kernels

        self._scan_kernels = _scan_kernels
        self._transaction_kernels = _transaction_kernels
        self._crc = _crc_kernels.make_crc_table()
        self._known = known
        self._executed = ExecutedArrays()
        self._server_uuid = server_uuid
        self._start = start
        self._file = ""
        self._began_s = 0
        self._is_format_known = False
        self._event_bytes_max = event_bytes_max
        self._pending: deque[NDArray[np.uint8]] = deque()
        self._pending_bytes = 0
        self._buffer = frozen(np.empty(0, np.uint8))
        self._ready: deque[LogItem] = deque()
        self._open_is_out = False  # part of the open transaction has been given out
        self._leaves_out = scheme != "file-offset" and start.gtids is not None and not is_file  # what is before `start`
        self._levels: list[_Level] = []  # what is around the buffer at hand

        self._state = np.zeros(s.STATE_SIZE, np.int64)
        self._kinds = np.zeros(256, np.int64)
        self._events = np.empty((run_events_max, s.EV_COLUMNS), np.int64)
        self._transactions = np.empty((run_events_max + 2, s.TX_COLUMNS), np.int64)
        self._marks = np.zeros((s.MARKS_MAX, s.M_COLUMNS), np.int64)
        self._names = np.zeros(s.MARKS_MAX * s.NAME_BYTES_MAX, np.uint8)
        state = self._state
        state[s.FLAVOR] = s.MARIADB if flavor == "mariadb" else s.MYSQL
        state[s.SCHEME] = _SCHEMES[scheme]
        state[s.IS_FILE] = is_file
        state[s.EVENT_BYTES_MAX] = event_bytes_max
        state[s.INFLATE_BYTES_MAX] = inflate_bytes_max
        state[s.TABLE_ID_BYTES] = 6
        state[s.TX_ROW] = state[s.LAST_TABLE] = state[s.TX_A] = -1
        self._begin_at(scheme)
        self._base = self._executed.snapshot(state)

    def _begin_at(self, scheme: Scheme) -> None:
        start, state = self._start, self._state
        if scheme == "file-offset" and start.file and start.server_uuid != self._server_uuid:
            raise PositionForeign(
                f"the position {start} is one of the server {start.server_uuid}, the log one of {self._server_uuid}: "
                f"file and offset mean "
                f"something on one server only. Start again with a snapshot, or use GTIDs"
            )
        if scheme != "file-offset" and start.gtids is not None:
            gtids = GtidSet.parse(start.gtids) if scheme == "gtid" else GtidState.parse(start.gtids)
            self._executed.begin_with(gtids, state, is_start=True)
            state[s.START_HAS_GTIDS] = 1
        if scheme == "file-offset" or start.gtids is not None:
            state[s.LAST_ORDINAL] = ordinal_of(start, scheme)

    @property
    def position(self) -> LogPosition:
        """After the last transaction that was finished, given out or not.

        A server that is asked by GTIDs begins with the head of a file and leaves out what `start` has. Until a
        transaction or a heartbeat has shown where that ends, this is `start`; on another server an offset of 0.
        """
        state, start = self._state, self._start
        if self._leaves_out and state[s.COUNT_TX] == state[s.COUNT_TX_SKIPPED]:
            if start.server_uuid == self._server_uuid:
                return start
            return LogPosition(self._file, 0, start.gtids, self._server_uuid, self._began_s)
        gtids = self._executed.snapshot(state).after(np.empty((0, s.TX_COLUMNS), np.int64))
        offset = int(state[s.TX_START if state[s.TX_STATE] else s.OFFSET])
        return LogPosition(self._file, offset, gtids, self._server_uuid, self._began_s)

    @property
    def place(self) -> str:
        """Where the scanner stands, for errors."""
        return f"{self._file or 'the log'} at {int(self._state[s.OFFSET])}"

    # --- bytes ---

    @property
    def _rest(self) -> int:
        return len(self._buffer) - int(self._state[s.POS])

    def _needed(self) -> int:
        """How many bytes more than the buffer has the event at hand takes."""
        if self._levels:
            return 0
        rest = self._rest
        if rest < HEADER_BYTES:
            return (HEADER_BYTES if not self._at_magic else len(FILE_MAGIC)) - rest
        at = int(self._state[s.POS])
        return max(int.from_bytes(self._buffer[at + 9 : at + 13].tobytes(), "little") - rest, 0)

    @property
    def _at_magic(self) -> bool:
        return bool(self._state[s.IS_FILE]) and self._state[s.OFFSET] == 0 and not self._is_format_known

    def _refill(self) -> bool:
        """Put the waiting bytes behind the rest of the buffer, as far as they are needed."""
        needed = max(self._needed(), 1)
        if self._pending_bytes < needed:
            return False
        parts = [self._buffer[int(self._state[s.POS]) :]]
        size = 0
        while size < needed:
            parts.append(self._pending.popleft())
            size += len(parts[-1])
        self._pending_bytes -= size
        parts = [part for part in parts if len(part)]
        self._buffer = parts[0] if len(parts) == 1 else frozen(np.concatenate(parts))
        self._state[s.POS] = 0
        return True

    def _scan(self) -> int:
        known, executed = self._known, self._executed
        return int(
            self._scan_kernels.scan(
                self._buffer,
                len(self._buffer),
                self._state,
                self._kinds,
                self._crc,
                self._events,
                self._transactions,
                known.hashed,
                known.entries,
                known.pool,
                executed.sids,
                executed.intervals,
                executed.counts,
                executed.start_intervals,
                executed.start_counts,
                executed.domains,
                self._marks,
                self._names,
            )
        )

    # --- runs ---

    def _keep_run(self) -> None:
        """Make a run of what the kernel has gathered, and empty the arrays."""
        state = self._state
        transactions, events = int(state[s.N_TX]), int(state[s.N_EVENTS])
        state[s.N_TX] = state[s.N_EVENTS] = state[s.INFLATE_BYTES] = 0
        state[s.TX_GIVEN] = state[s.TX_ROWS_SEEN]
        if not transactions:
            return
        if state[s.TX_ROW] >= 0:
            state[s.TX_ROW] = -1
        base, self._base = self._base, self._executed.snapshot(state)
        if len(base.names) != len(self._base.names) or len(base.domains) != len(self._base.domains):
            # The run's transactions refer to servers and domains that it met itself: its base lists them, still empty.
            added = self._base.domains[len(base.domains) :].copy()
            added[:, s.D_SERVER : s.D_SEQ + 1] = 0
            base = with_(base, names=self._base.names, domains=np.concatenate([base.domains, added]))
        rows = self._events[:events].copy()
        buffer, is_inflated = self._inflated(rows)
        run = LogRun(
            buffer=buffer,
            file=self._file,
            began_s=self._began_s,
            events=rows,
            transactions=self._transactions[:transactions].copy(),
            executed=base,
            server_uuid=self._server_uuid,
            continues=self._open_is_out,
            is_inner=bool(state[s.IS_INNER]) or is_inflated,
        )
        self._open_is_out = not run.is_complete
        self._ready.append(run)

    def _inflated(self, events: NDArray[np.int64]) -> tuple[NDArray[np.uint8], bool]:
        """The buffer that holds the row images of these events; a new one if some of them are compressed."""
        if not (events[:, s.EV_INFLATED] >= 0).any():
            return self._buffer, False
        sizes = np.where(
            events[:, s.EV_INFLATED] >= 0, events[:, s.EV_INFLATED], events[:, s.EV_END] - events[:, s.EV_START]
        )
        ends = np.cumsum(sizes)
        buffer = np.empty(int(ends[-1]), np.uint8)
        for event, end, size in zip(events, ends.tolist(), sizes.tolist(), strict=True):
            data = self._buffer[event[s.EV_START] : event[s.EV_END]]
            if event[s.EV_INFLATED] >= 0:
                try:
                    data = np.frombuffer(inflate_event(data.data, size), np.uint8)
                except ValueError as error:
                    raise CorruptData(f"{self._file} at {int(event[s.EV_OFFSET])}: {error}") from None
            buffer[end - size : end] = data
        events[:, s.EV_START] = events[:, s.EV_BEGIN] = ends - sizes
        events[:, s.EV_END] = ends
        return frozen(buffer), True

    # --- compressed transactions ---

    def _enter(self, pieces: Iterator[NDArray[np.uint8]]) -> None:
        """Go on with what these pieces hold, then with the event at hand, which is not consumed by that."""
        self._keep_run()
        self._levels.append(self._level(pieces))
        self._take_piece()

    def _level(self, pieces: Iterator[NDArray[np.uint8]]) -> "_Level":
        state = self._state
        return _Level(self._buffer, int(state[s.POS]), int(state[s.OFFSET]), int(state[s.IS_INNER]), pieces)

    def _next_inner(self) -> None:
        """The next piece of inner events takes the buffer's place; after the last one the outer buffer returns."""
        state = self._state
        if state[s.IS_INNER] and self._rest:
            self._corrupt("it ends inside an event")
        self._take_piece()

    def _take_piece(self) -> None:
        state = self._state
        around = self._levels.pop()
        self._buffer, state[s.POS], state[s.OFFSET] = around.buffer, around.pos, around.offset
        state[s.IS_INNER] = around.is_inner
        piece = next(around.pieces, None)
        if piece is None:
            return
        self._levels.append(self._level(around.pieces))
        self._buffer = piece
        state[s.POS] = 0
        state[s.IS_INNER] = 1

    def _unpack(self) -> Iterator[NDArray[np.uint8]]:
        """The events of this and the following compressed transactions, inflated, with marks for their places.

        Runs while the log's own buffer is in place; many small transactions make one piece.
        """
        state = self._state
        piece = bytearray()
        while len(piece) < PIECE_BYTES:
            kind = self._event_kind()
            if kind == EventType.TRANSACTION_PAYLOAD:
                view = self._buffer.data[int(state[s.POS]) + HEADER_BYTES : int(state[s.BODY_END])]
                size, after = int(state[s.SIZE]), int(state[s.AFTER])
                piece += mark(after)
                try:
                    for events in whole_events(inflate(parse_payload(view)), self._event_bytes_max):
                        piece += events
                        if len(piece) >= PIECE_BYTES:
                            yield frozen(np.frombuffer(bytes(piece), np.uint8))
                            piece = bytearray(mark(after))
                except EventTooLarge as error:
                    raise failure(s.TOO_LARGE, self._where(), kind, error.size) from None
                except ValueError as error:
                    self._corrupt(str(error))
                state[s.SIZE], state[s.AFTER] = size, after  # what a piece holds was scanned in between
            elif kind in (EventType.GTID, EventType.ANONYMOUS_GTID):
                at, end = int(state[s.POS]), int(state[s.BODY_END])
                event = bytearray(self._buffer[at:end].tobytes())
                event[9:13] = len(event).to_bytes(4, "little")
                piece += mark(int(state[s.OFFSET])) + event
                self._kinds[kind] -= 1  # the kernel counts it, too
            else:
                break
            self._consume()
            if self._scan_kernels.look(self._buffer, len(self._buffer), state, self._crc) != s.ASK:
                break  # not all here, or damaged: the kernel will meet it again, and say so
        if piece:
            yield frozen(np.frombuffer(bytes(piece), np.uint8))

    # --- the event at hand ---

    def _event_kind(self) -> int:
        return int(self._buffer[int(self._state[s.POS]) + 4])

    def _flags(self) -> int:
        at = int(self._state[s.POS])
        return int(self._buffer[at + 17]) | int(self._buffer[at + 18]) << 8

    def _body(self) -> bytes:
        return self._buffer[int(self._state[s.POS]) + HEADER_BYTES : int(self._state[s.BODY_END])].tobytes()

    def _when(self) -> int:
        at = int(self._state[s.POS])
        return int.from_bytes(self._buffer[at : at + 4].tobytes(), "little")

    def _log_pos(self) -> int:
        at = int(self._state[s.POS])
        return int.from_bytes(self._buffer[at + 13 : at + 17].tobytes(), "little")

    def _where(self) -> str:
        inside = ", inside a compressed or prepared transaction" if self._state[s.IS_INNER] else ""
        return f"{self.place}{inside}"

    def _stop(self, error: Exception) -> NoReturn:
        raise error

    def _corrupt(self, what: str) -> NoReturn:
        raise CorruptData(
            f"{self._where()}: {name_of(self._event_kind())} event of {int(self._state[s.SIZE])} bytes: {what}. "
            f"Compare with what the server's "
            f"own `mysqlbinlog` says at that place"
        )

    def _consume(self) -> None:
        """Step over the event at hand."""
        state = self._state
        self._kinds[self._event_kind()] += 1
        if not state[s.IS_INNER]:
            state[s.COUNT_BYTES] += state[s.SIZE]
        state[s.POS] += state[s.SIZE]
        state[s.OFFSET] = state[s.AFTER]

    def _enter_file(self, file: str, offset: int) -> None:
        """What follows is at this place. The caller has kept the run."""
        state, start = self._state, self._start
        self._keep_run()
        self._file = file
        self._began_s = 0  # until its first event says
        state[s.OFFSET] = offset
        state[s.SKIP_BELOW] = -1
        is_numbered = state[s.SCHEME] == s.BY_FILE or start.file
        try:
            state[s.FILE_NUMBER] = number = file_number(file) if is_numbered else 0
        except DatabusError as error:
            self._stop(CorruptData(f"{self._file!r}: {error}"))
        if start.file and start.server_uuid == self._server_uuid:
            first = file_number(start.file)
            in_later_files = 0 if start.offset else -1
            state[s.SKIP_BELOW] = _EVERYTHING if number < first else start.offset if number == first else in_later_files

    def _finish(self, *, is_row: bool) -> None:
        executed = self._executed
        self._transaction_kernels.finish(
            self._state, self._transactions, executed.intervals, executed.counts, executed.domains, is_row
        )

    def _txid(self) -> str:
        """The open transaction's, or the last one's."""
        state, executed = self._state, self._executed
        index = int(state[s.TX_A])
        if index < 0:
            return f"{self._file}:{int(state[s.TX_START])}"
        if state[s.FLAVOR] == s.MARIADB:
            return f"{int(executed.domains[index, s.D_ID])}-{int(state[s.TX_C])}-{int(state[s.TX_B])}"
        return f"{executed.names[index]}:{int(state[s.TX_B])}"

    def _origin(self) -> TransactionOrigin:
        """Where the open transaction began."""
        return TransactionOrigin(
            self._server_uuid, self._file, int(self._state[s.TX_START]), int(self._state[s.TX_ORDINAL])
        )


def frozen(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same bytes, not to be written to."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
