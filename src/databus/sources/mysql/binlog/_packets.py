"""PacketSplitter: the packets of a replication connection -> contiguous whole events.

A packet is 3 bytes of length, 1 byte of sequence number, and its payload. One of 0xFFFFFF bytes goes on in the next. A
message begins with 0x00 and an event, or is an error (0xFF) or the end (0xFE).
"""

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from databus.core import (
    CorruptData,
    DatabusError,
    InputError,
    LimitExceeded,
    PositionPurged,
    ServiceUnavailable,
    SourceChanged,
)
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._byte_reader import ByteReader
from databus.sources.mysql.binlog._event_types import HEADER_BYTES, EventType
from databus.sources.mysql.binlog._failures import LARGER

EVENT_BYTES_MAX: Final = 256 << 20
_ERROR_BYTES_MAX = 1 << 16
_FATAL_READING_BINLOG = 1236
_MISCONFIGURED = 1593
_DENIED = frozenset({1044, 1045, 1227})
_INSIDE_TRANSACTIONS = frozenset(
    {
        EventType.TABLE_MAP,
        EventType.WRITE_ROWS_V1,
        EventType.UPDATE_ROWS_V1,
        EventType.DELETE_ROWS_V1,
        EventType.WRITE_ROWS,
        EventType.UPDATE_ROWS,
        EventType.DELETE_ROWS,
        EventType.PARTIAL_UPDATE_ROWS,
        *range(EventType.WRITE_ROWS_COMPRESSED_V1, EventType.DELETE_ROWS_COMPRESSED + 1),
    }
)


class DumpRefused(ServiceUnavailable):
    """The server ended the dump with an error."""

    code: int
    """As the server sent it, as are `sqlstate` and `text`."""
    sqlstate: str
    text: str


class DumpEnded(ServiceUnavailable):
    """The server ended the dump without an error: it stops, or that session was killed, or it is MySQL 8.0.31, which
    also does so where something is logged while it sends a heartbeat. What it sent before that is whole.
    """


class PacketSplitter:
    """Takes the bytes of one dump from right after the command on, cut anywhere. Holds at most one unfinished event.

    event_bytes_max: a larger event raises `LimitExceeded`. sequence: the number of the first packet.
    holds_transactions: what comes out ends between two transactions if that holds back less than half of it: the
    caller then has one run to handle instead of a large and a small one.
    """

    def __init__(
        self, *, event_bytes_max: int = EVENT_BYTES_MAX, sequence: int = 1, holds_transactions: bool = False
    ) -> None:
        from databus.sources.mysql.binlog import _packet_kernels as kernels

        self._split = kernels.split
        self._event_bytes_max = event_bytes_max
        self._holds_transactions = holds_transactions
        self._state = np.zeros(s.P_SIZE, np.int64)
        self._state[s.P_SEQUENCE] = sequence
        self._state[s.P_STATUS] = self._state[s.P_BEGIN] = -1
        self._out: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.ended: DatabusError | None = None
        """What ended the dump, once it has: raise it when the events before it are done with."""

    @property
    def held_bytes(self) -> int:
        """Of an unfinished event, and of its transaction."""
        return int(self._state[s.P_OUT])

    def feed(self, data: "NDArray[np.uint8] | bytes | bytearray | memoryview") -> NDArray[np.uint8]:
        """The events that these bytes complete, one right after another; the array is the caller's. Often empty.

        Raises `CorruptData` where the bytes are no packets of events, `LimitExceeded` for too large an event, and what
        has ended the dump when it is fed after that.
        """
        if self.ended is not None:
            raise self.ended
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        state = self._state
        self._make_room(len(array))
        status = self._split(array, self._out, state)
        whole = int(state[s.P_WHOLE])
        if status == s.SPLIT_SEQUENCE:
            raise CorruptData(
                "replication connection: a packet is missing or comes twice (its sequence number is not the expected "
                "one); connect again"
            )
        if status == s.SPLIT_LENGTH:
            raise CorruptData(
                f"replication connection: a packet of {int(state[s.P_OUT]) - whole} bytes holds an event that says "
                f"another size; connect again"
            )
        if status == s.SPLIT_OTHER:
            self.ended = _ending(int(state[s.P_STATUS]), self._out[whole : int(state[s.P_OUT])].tobytes())
            state[s.P_OUT] = whole
        self._check_unfinished(whole)
        end = self._end_of_transactions(whole)
        if not end:
            return self._out[:0]
        events = self._out[:end]
        rest = self._out[end : int(state[s.P_OUT])]
        self._out = rest.copy()
        state[s.P_OUT] = len(rest)
        state[s.P_WHOLE] = whole - end
        state[s.P_BEGIN] = 0 if end < whole else -1
        return events

    def _end_of_transactions(self, whole: int) -> int:
        """Up to where events are given out. A rows event is never the last one of its transaction."""
        begin = int(self._state[s.P_BEGIN])
        is_unfinished = int(self._state[s.P_KIND]) in _INSIDE_TRANSACTIONS
        may_hold = self._holds_transactions and self.ended is None
        return begin if may_hold and is_unfinished and 2 * begin >= whole else whole

    def _make_room(self, added_bytes: int) -> None:
        used, whole = self.held_bytes, int(self._state[s.P_WHOLE])
        if used + added_bytes > len(self._out):
            is_size_known = used - whole >= HEADER_BYTES
            size = int.from_bytes(self._out[whole + 9 : whole + 13].tobytes(), "little") if is_size_known else 0
            # from Arrow's pool, which keeps its pages: fresh ones would cost as much as the splitting
            larger = np.frombuffer(pa.allocate_buffer(max(used, whole + size) + added_bytes), np.uint8)
            larger[:used] = self._out[:used]
            self._out = larger

    def _check_unfinished(self, whole: int) -> None:
        state = self._state
        held = int(state[s.P_OUT]) - whole
        if state[s.P_STATUS] not in (-1, 0):
            if held > _ERROR_BYTES_MAX:
                raise CorruptData("replication connection: a message that is no event has no end; connect again")
        elif held >= HEADER_BYTES:
            size = int.from_bytes(self._out[whole + 9 : whole + 13].tobytes(), "little")
            if size > self._event_bytes_max:
                raise LimitExceeded(
                    f"replication connection: an event of {size} bytes is larger than event_bytes_max "
                    f"({self._event_bytes_max}). {LARGER}"
                )
            if held > size:
                raise CorruptData(
                    f"replication connection: an event that says {size} bytes does not end after {held}; connect again"
                )


def _ending(status: int, message: bytes) -> DatabusError:
    if status == 0xFE:
        return DumpEnded("the server ended the dump without an error; it may be about to stop")
    if status != 0xFF:
        return CorruptData(
            f"replication connection: a message that begins with {status:#04x}, which is no event, error or end"
        )
    reader = ByteReader(message)
    code, sqlstate = 0, ""
    if len(message) >= 2:
        code = reader.integer(2)
    rest = reader.rest()
    if rest[:1] == b"#" and len(rest) >= 6:
        sqlstate, rest = rest[1:6].decode("ascii", "replace"), rest[6:]
    return refusal(code, sqlstate, rest.decode("utf-8", "replace"))


def refusal(code: int, sqlstate: str, text: str) -> DatabusError:
    """What a server's error to a dump means: purged, another history, not allowed, or worth another try."""
    message = f"the server refused the dump with error {code} ({sqlstate}): {text}"
    lower = text.lower()
    if code == _FATAL_READING_BINLOG:
        if "purged" in lower or "could not find first log file" in lower or "not in the" in lower:
            return PositionPurged(
                f"{message}. Snapshot the captured tables again, or take a server that still has that log"
            )
        if any(
            word in lower
            for word in ("more gtids than", "diverged", "impossible position", "out-of-order", "not in the master")
        ):
            return SourceChanged(f"{message}. It is not the server, or not the log, that the position is of")
    if code == _MISCONFIGURED or code in _DENIED:
        return InputError(f"{message}. `databus check-source` says what to grant or to set")
    error = DumpRefused(message)
    error.code, error.sqlstate, error.text = code, sqlstate, text
    return error
