"""Results of the binary protocol, read from the socket into columns.

PyMySQL's connection prepares and executes the statement; the rows are then read past it, in large pieces, and decoded
by kernels. A result is read to its end, or its connection is closed: no query begins in the middle of a result.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pymysql
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from databus.core import CorruptData, LimitExceeded, StreamCut
from databus.sources.mysql.snapshot._keys import KeyColumn, KeyValues, read_place
from databus.sources.mysql.snapshot._result_codes import (
    BYTES,
    CODE,
    COLUMN,
    END,
    ENDED,
    ERROR,
    FINE,
    LARGE,
    LAST_FROM,
    LAST_TO,
    OP,
    ROWS,
    SEQUENCE,
    STATUS,
    VAR,
    WORDS,
)
from databus.sources.mysql.snapshot._result_shape import Bytes, Columns, ResultColumn, charset_name

_PREPARE: Final = 0x16
_EXECUTE: Final = 0x17
_CLOSE: Final = 0x19
_BUFFER_BYTES: Final = 1 << 20
_ROOM_BYTES: Final = 64 << 10  # read no less at a time
_BLOCK_ROWS: Final = 8_192
_PACKET_MAX: Final = 0xFFFFFF
_GUARD: Final = 8  # bytes behind the buffer's end, for loads of whole words


class PreparedStatement:
    """One query, executed. columns: of its result. Raises what PyMySQL raises."""

    def __init__(self, connection: pymysql.Connection, sql: str, charsets: Mapping[int, str]) -> None:
        self._inner: Any = connection  # its parts: PyMySQL has no public way to prepared statements
        self._command(_PREPARE, sql.encode())
        head = self._packet().get_all_data()
        self._id, columns, parameters = struct.unpack_from("<IHH", head, 1)
        if parameters:
            raise CorruptData(f"a query has {parameters} question marks in it that stand for parameters: {sql[:200]}")
        for _ in range(columns + 1 if columns else 0):
            self._packet()
        self._command(_EXECUTE, struct.pack("<IBI", self._id, 0, 1))
        count = self._packet().read_length_encoded_integer()
        self.columns = [self._column(charsets) for _ in range(count)]
        self._packet()

    def _command(self, command: int, argument: bytes) -> None:
        self._inner._execute_command(command, argument)  # noqa: SLF001 - as above

    def _packet(self, kind: type[Any] = MysqlPacket) -> Any:
        return self._inner._read_packet(kind)  # noqa: SLF001 - as above

    def _column(self, charsets: Mapping[int, str]) -> ResultColumn:
        packet = self._packet(FieldDescriptorPacket)
        charset = charset_name(charsets.get(packet.charsetnr, ""))
        return ResultColumn(packet.name, packet.type_code, packet.flags, charset, packet.scale, packet.charsetnr)

    def one_place(self, key: tuple[KeyColumn, ...]) -> KeyValues | None:
        """The key that the only row of the result is; None if there is none. Then the statement is closed."""
        place = None
        while True:
            packet = self._packet()
            if packet.is_eof_packet():
                self.close()
                return place
            place = read_place(key, len(self.columns), memoryview(packet.get_all_data()))

    def close(self) -> None:
        """Close it on the server. The result must have been read to its end."""
        self._command(_CLOSE, struct.pack("<I", self._id))


class RowReader:
    """The rows of an executed statement, as they come.

    read_into: reads at least one byte into a view and says how many; 0 at the end of the connection. row_bytes_max:
    the largest row that is taken.
    """

    def __init__(self, read_into: Callable[[memoryview], int], sequence: int, row_bytes_max: int, place: str) -> None:
        self._read_into = read_into
        self._row_bytes_max = row_bytes_max
        self._place = place
        self._buffer = np.zeros(_BUFFER_BYTES + _GUARD, np.uint8)
        self._lo = 0
        self._hi = 0
        self._status = np.zeros(STATUS, np.int64)
        self._status[SEQUENCE] = sequence
        self.has_ended = False
        self.bytes = 0

    @classmethod
    def of(cls, connection: pymysql.Connection, row_bytes_max: int, place: str) -> "RowReader":
        """The reader of the statement that was executed last on this connection."""
        inner: Any = connection  # as above
        stream = inner._rfile  # noqa: SLF001 - as above

        def read_into(view: memoryview) -> int:
            # readinto1 would wait for the socket although the stream holds bytes, if a view is larger than its buffer
            held = b"" if read_into_socket else stream.peek(1)
            if not held:
                read_into_socket.append(True)
                return int(stream.raw.readinto(view) or 0)
            count = min(len(held), len(view))
            view[:count] = stream.read(count)
            if count == len(held):
                read_into_socket.append(True)
            return count

        read_into_socket: list[bool] = []
        return cls(read_into, inner._next_seq_id, row_bytes_max, place)  # noqa: SLF001 - as above

    def take(self, columns: Columns, bytes_max: int, key: tuple[KeyColumn, ...] = ()) -> KeyValues | None:
        """Decode rows into `columns` until it is full, their values exceed `bytes_max`, or the result ends.

        Returns the key of the last row taken, None if there was none. Raises `CorruptData`, `LimitExceeded`,
        `StreamCut`, and PyMySQL's error where the server broke off.
        """
        from databus.sources.mysql.snapshot._result_kernels import gather, walk_rows

        variable = sum(columns.program[:, OP] == BYTES)
        starts = np.zeros((max(variable, 1), _BLOCK_ROWS), np.int64)
        lengths = np.zeros_like(starts)
        var_columns = [int(row[VAR]) for row in columns.program if row[VAR] >= 0]
        last: KeyValues | None = None
        begun = self.bytes

        def decode(buffer: Bytes, at: int, end: int, payload: int) -> int:
            nonlocal last
            at = walk_rows(
                buffer,
                at,
                end,
                payload,
                columns.program,
                columns.rows,
                columns.rows_max,
                columns.arena,
                starts,
                lengths,
                self._status,
            )
            rows = int(self._status[ROWS])
            if rows:
                for var in var_columns:
                    text = columns.make_room(var, int(lengths[var, :rows].sum()))
                    columns.filled[var] = gather(
                        buffer,
                        starts[var],
                        lengths[var],
                        rows,
                        text,
                        columns.filled[var],
                        columns.offsets[var],
                        columns.rows,
                    )
                columns.rows += rows
                if key:
                    row = buffer.data[int(self._status[LAST_FROM]) : int(self._status[LAST_TO])]
                    last = read_place(key, len(columns.program), row)
            return at

        while not self.has_ended and columns.rows < columns.rows_max and self.bytes - begun < bytes_max:
            before = self._lo
            self._lo = decode(self._buffer, self._lo, self._hi, 0)
            self.bytes += self._lo - before
            self._judge(columns)
            if self._status[CODE] == LARGE:
                payload = self._large()
                decode(payload, 0, len(payload) - _GUARD, len(payload) - _GUARD)
                self.bytes += len(payload)
                self._judge(columns)
            elif self._lo == before and not self.has_ended:
                self._fill()
        return last

    def _judge(self, columns: Columns) -> None:
        code = int(self._status[CODE])
        self.has_ended = self._status[END] == ENDED
        if code in {FINE, LARGE}:
            return
        if code == ERROR:
            size = self._wait_for_packet()
            at = self._lo + 4
            pymysql.err.raise_mysql_exception(bytes(self._buffer[at : at + size]))
        column = int(self._status[COLUMN])
        raise CorruptData(f"{self._place}: row {columns.rows} of a result, its column {column}: {WORDS[code]}")

    def _wait_for_packet(self) -> int:
        """Read until the buffer has the whole next packet. Returns its size."""
        while self._hi - self._lo < 4 or self._hi - self._lo < 4 + self._size():
            self._fill()
        return self._size()

    def _size(self) -> int:
        return int.from_bytes(bytes(self._buffer[self._lo : self._lo + 3]), "little")

    def _fill(self) -> None:
        """Read more into the buffer, behind the bytes that are there."""
        held = self._hi - self._lo
        capacity = len(self._buffer) - _GUARD
        wanted = 4 + self._size() if held >= 4 else 4
        if wanted - 4 > self._row_bytes_max:
            raise self._too_large(wanted - 4)
        if held == 0:
            self._lo = self._hi = 0
        elif capacity - self._hi < _ROOM_BYTES or wanted > capacity - self._lo:
            larger = self._buffer
            if wanted + _ROOM_BYTES > capacity:
                larger = np.zeros(wanted + _ROOM_BYTES + _GUARD, np.uint8)
            larger[:held] = self._buffer[self._lo : self._hi]
            self._buffer, self._lo, self._hi = larger, 0, held
        count = self._read_into(self._buffer.data[self._hi : len(self._buffer) - _GUARD])
        if count == 0:
            raise StreamCut(f"{self._place}: the server closed the connection in the middle of a result")
        self._hi += count

    def _large(self) -> Bytes:
        """The payload that comes in several packets, of 16 MiB and more, put together; and the guard behind it."""
        whole = np.zeros(_GUARD, np.uint8)
        filled = 0
        size = _PACKET_MAX
        while size == _PACKET_MAX:
            while self._hi - self._lo < 4:
                self._fill_header()
            size = self._size()
            if int(self._buffer[self._lo + 3]) != self._status[SEQUENCE]:
                raise CorruptData(f"{self._place}: a packet of a large row is not the next one")
            self._status[SEQUENCE] = (self._status[SEQUENCE] + 1) & 255
            self._lo += 4
            if filled + size > self._row_bytes_max:
                raise self._too_large(filled + size)
            larger = np.zeros(filled + size + _GUARD, np.uint8)
            larger[:filled] = whole[:filled]
            whole = larger
            self._read_exactly(whole.data[filled : filled + size])
            filled += size
        return whole

    def _fill_header(self) -> None:
        held = self._hi - self._lo
        self._buffer[:held] = self._buffer[self._lo : self._hi].copy()
        self._lo, self._hi = 0, held
        count = self._read_into(self._buffer.data[held : len(self._buffer) - _GUARD])
        if count == 0:
            raise StreamCut(f"{self._place}: the server closed the connection in the middle of a large row")
        self._hi += count

    def _read_exactly(self, target: memoryview) -> None:
        """Move what the buffer holds, then read the rest straight to where it belongs."""
        at = min(self._hi - self._lo, len(target))
        target[:at] = self._buffer.data[self._lo : self._lo + at]
        self._lo += at
        while at < len(target):
            count = self._read_into(target[at:])
            if count == 0:
                raise StreamCut(f"{self._place}: the server closed the connection in the middle of a large row")
            at += count

    def _too_large(self, size: int) -> LimitExceeded:
        return LimitExceeded(
            f"{self._place}: a row has {size} bytes or more, above row_bytes_max {self._row_bytes_max}; raise it, or "
            f"leave its largest column out with `columns`"
        )
