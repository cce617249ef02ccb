"""Dump: asks a server for its log as a replica does, and reads what it sends.

While the server has little to send, the thread that takes the log reads the socket: what came meanwhile is one block,
and no other thread is woken. Once much comes, or `take` was not called for a while, a thread drains the socket
meanwhile; what it reads waits in a `BlockQueue` bounded in bytes, and is taken together. When that is full the socket
is not read, and the server waits.
Protocol: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication.html and, for MariaDB,
https://mariadb.com/kb/en/3-binlog-network-stream/.
"""

import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pymysql

from databus.core import ServiceUnavailable
from databus.sources.mysql.binlog import FIRST_OFFSET, OFFSET_MAX, GtidSet, LogPosition, PacketSplitter
from databus.sources.mysql.binlog._packets import EVENT_BYTES_MAX
from databus.sources.mysql.server._connection import close_quietly, socket_of
from databus.sources.mysql.server._errors import telling

_REGISTER: Final = 0x15
_DUMP: Final = 0x12
_DUMP_GTID: Final = 0x1E
_THROUGH_GTID: Final = 0x04
_HEARTBEATS_MISSED_MAX: Final = 3  # then the connection counts as dead
_RECEIVE_BYTES: Final = 4 << 20
_BULK_BYTES: Final = 512 << 10  # a block of so much costs hardly more than its bytes
_BULK_WAIT_MS: Final = 1  # for more of it, while the server sends without a pause
_GATHER_S: Final = 0.002  # where many changes came while others were worked on: more of them cost hardly more
_MANY_BYTES: Final = 2 << 10  # so much at once comes from many changes
_TAKEN_BYTES: Final = 1 << 20  # of small blocks, taken together; more costs as much by byte
_AWAY_S: Final = 1.0  # after so long without `take` the thread drains the socket, else the server would give up
_JOIN_S_MAX: Final = 10.0
_ACCEPT_S_MAX: Final = 15.0  # less than a stop may take; what was read from a slow disk is in memory for the next try

Bytes = npt.NDArray[np.uint8]


class BlockQueue:
    """Blocks of event bytes between two threads, bounded in bytes (one block may always wait)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: deque[Bytes] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._is_closed = False
        self.bytes_waiting = 0

    def put(self, block: Bytes) -> bool:
        """Add a block, waiting for room. False if the queue is closed."""
        with self._changed:
            while self.bytes_waiting and self.bytes_waiting + len(block) > self._bytes_max and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return False
            self._blocks.append(block)
            self.bytes_waiting += len(block)
            self._changed.notify_all()
            return True

    def take(self, wait_s: float) -> Bytes | None:
        """The blocks that wait, as one while they are small; None if none came in time.

        Raises what ended the reading, after the last block.
        """
        with self._changed:
            if not self._blocks and self._error is None and wait_s > 0:
                self._changed.wait(wait_s)
            if self._blocks:
                blocks = self._take_waiting()
                self._changed.notify_all()
                return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
            if self._error is not None:
                raise self._error
            return None

    def _take_waiting(self) -> list[Bytes]:
        blocks = [self._blocks.popleft()]
        size = len(blocks[0])
        while self._blocks and size + len(self._blocks[0]) <= _TAKEN_BYTES:
            blocks.append(self._blocks.popleft())
            size += len(blocks[-1])
        self.bytes_waiting -= size
        return blocks

    @property
    def has_news(self) -> bool:
        """Whether `take` has an answer at once."""
        return bool(self._blocks) or self._error is not None

    def wait_for_first(self, wait_s: float) -> bool:
        """Wait until a block is there; False if none came in time. Raises what ended the reading before one came."""
        with self._changed:
            self._changed.wait_for(lambda: self._blocks or self._error is not None, wait_s)
            if not self._blocks and self._error is not None:
                raise self._error
            return bool(self._blocks)

    def fail(self, error: BaseException) -> None:
        """End the queue with this error, behind the blocks that wait."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wake(self) -> None:
        """Let `take` return at once."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Drop the blocks that wait, and take no more."""
        with self._changed:
            self._is_closed = True
            self._blocks.clear()
            self._changed.notify_all()


class _Reads(Enum):
    """Which thread reads the socket."""

    NONE = 0
    TAKER = 1
    THREAD = 2


class Dump:
    """One connection on which the server sends its log from `position` on."""

    def __init__(
        self,
        connection: "pymysql.Connection[Any]",
        server: str,
        position: LogPosition,
        *,
        is_mariadb: bool,
        is_listed: bool,
        by_gtid: bool,
        server_id: int,
        heartbeat_ms: int,
        buffer_bytes_max: int,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> None:
        """Ask for the log. is_listed: be among the replicas that the server lists.

        Raises `ServiceUnavailable` and what the server refuses.
        """
        self.queue = BlockQueue(buffer_bytes_max)
        self._connection = connection
        self._silence_s = max(heartbeat_ms * _HEARTBEATS_MISSED_MAX, 1_000) / 1e3
        self._is_closing = False
        self._is_bulk = False  # the last block was a large one
        self._is_accepted = False  # something came
        self.last_heard_s = time.monotonic()
        gtids = position.gtids if by_gtid else None
        if by_gtid and gtids is None:
            position = replace(position, offset=FIRST_OFFSET)  # the head of a file lists the GTIDs before it
        with telling(server, "asking for the log"):
            _prepare(connection, gtids if is_mariadb else None, is_mariadb=is_mariadb, heartbeat_ms=heartbeat_ms)
            if is_listed:
                _register(connection, server_id)
            _ask(connection, position, gtids, is_mariadb=is_mariadb, server_id=server_id)
        self._server = server
        self._socket = socket_of(connection)
        self._socket.settimeout(_ACCEPT_S_MAX)  # MariaDB says nothing at all while it looks for the place in its file
        self._readable = select.poll()  # unlike `select`, for any descriptor: a relay may have thousands
        self._readable.register(self._socket, select.POLLIN)
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._readable_or_woken = select.poll()
        self._readable_or_woken.register(self._socket, select.POLLIN)
        self._readable_or_woken.register(self._woken, select.POLLIN)
        self._splitter = PacketSplitter(event_bytes_max=event_bytes_max, holds_transactions=True)
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._roles = threading.Condition()
        self._reads = _Reads.THREAD
        self._takes = 0
        self._were_many = False
        self._thread = threading.Thread(target=self._run, name="mysql-dump", daemon=True)
        self._thread.start()
        self._wait_until_accepted()

    def _wait_until_accepted(self) -> None:
        """Wait for the first event; a server that has purged what comes next sends an error instead."""
        try:
            is_there = self.queue.wait_for_first(_ACCEPT_S_MAX)
        except BaseException:
            self.close()
            raise
        if not is_there:
            self.close()
            raise ServiceUnavailable(f"{self._server}: it sent nothing of its log within {_ACCEPT_S_MAX:.0f} s")

    def take(self, wait_s: float) -> Bytes | None:
        """What has come, all of it while that is little; None if nothing came in time. Raises what ended the dump."""
        deadline = time.monotonic() + wait_s
        while True:
            with self._roles:
                self._takes += 1
                # What the thread has read comes first.
                is_mine = self._reads is not _Reads.THREAD and not self.queue.has_news
                if is_mine:
                    self._reads = _Reads.TAKER
            if is_mine:
                return self._take_here(deadline)
            left_s = deadline - time.monotonic()
            block = self.queue.take(max(left_s, 0.0))
            if block is not None or left_s <= 0 or self._reads is _Reads.THREAD:
                return block
            # The thread has stopped reading, and woke this one: read here.

    def _take_here(self, deadline: float) -> Bytes | None:
        """Read the socket in this thread; if there is much, have the other go on."""
        events = None
        try:
            events = self._read_events(deadline)
        except Exception as error:  # noqa: BLE001 - raised below
            self.queue.fail(self._failure(error))
        with self._roles:
            self._reads = _Reads.THREAD if self._is_bulk else _Reads.NONE
            if self._is_bulk:
                self._roles.notify_all()
        return self.queue.take(0) if events is None else events  # `take` raises what ended the reading

    def _read_events(self, deadline: float) -> Bytes | None:
        """The first whole events; None if none came in time. A reader that is behind waits for some more of them."""
        if self._were_many and self._is_readable():
            time.sleep(_GATHER_S)  # the socket is readable already: no wait on it could say when there is more
        while not self.queue.has_news and self._waits_for_bytes(deadline):
            events = self._read_once()
            ended = self._splitter.ended
            if ended is not None:
                self.queue.fail(ended)  # behind these
            if len(events):
                self._were_many = len(events) >= _MANY_BYTES
                return events
        return None

    def _waits_for_bytes(self, deadline: float) -> bool:
        """Wait until there is something to read; False if nothing came in time, or `wake` was called."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        readable = self._readable_or_woken.poll(max(deadline - time.monotonic(), 0.0) * 1e3)
        if len(readable) == 1 and readable[0][0] == self._woken:
            os.read(self._woken, 1 << 16)
            return False
        if not readable and time.monotonic() - self.last_heard_s > self._silence_s:
            raise TimeoutError
        return bool(readable)

    def wake(self) -> None:
        """Let `take` return at once. Any thread."""
        self.queue.wake()
        with self._roles, suppress(BlockingIOError):  # the pipe is full of earlier wakes
            if not self._is_closing:
                os.write(self._wakes, b"w")

    def close(self) -> None:
        """End the connection and the thread; callable twice."""
        with self._roles:
            if self._is_closing:
                return
            self._is_closing = True
            self._roles.notify_all()
        # Before `join`: these end the thread's waits for room in the queue, and for bytes.
        self.queue.close()
        with suppress(OSError):  # the server has closed it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_JOIN_S_MAX)
        close_quietly(self._connection)
        os.close(self._woken)
        os.close(self._wakes)

    def _run(self) -> None:
        """The thread: reads while much comes, and when `take` was not called for a while."""
        try:
            while not self._is_closing:
                self._read_while_there_is_much()
                self._wait_until_needed()
        except BaseException as error:  # noqa: BLE001 - raised again where the log is read
            self.queue.fail(self._failure(error))

    def _failure(self, error: BaseException) -> BaseException:
        if isinstance(error, TimeoutError):
            silence = f"it said nothing for {self._silence_s:.1f} s, not even a heartbeat; connecting again"
            return ServiceUnavailable(f"{self._server}: {silence}")
        if isinstance(error, OSError):
            return ServiceUnavailable(f"{self._server}: the connection broke: {error.strerror or error}")
        return error

    def _read_while_there_is_much(self) -> None:
        while not self._is_closing:
            if self._is_accepted and not self._is_bulk and not self._is_readable():
                break
            events = self._read_once()
            if len(events):
                if not self._is_accepted:
                    self._is_accepted = True
                    self._socket.settimeout(self._silence_s)  # from the first event on, heartbeats come
                if not self.queue.put(events):
                    return
            if self._splitter.ended is not None:
                raise self._splitter.ended

    def _wait_until_needed(self) -> None:
        with self._roles:
            if self._reads is _Reads.THREAD:
                self._reads = _Reads.NONE
            self.queue.wake()  # a `take` that waits there may read the socket itself now
            while self._reads is not _Reads.THREAD and not self._is_closing:
                before = self._takes
                self._roles.wait(_AWAY_S)  # bounded: if `take` is not called meanwhile, this thread has to read
                if self._reads is _Reads.NONE and self._takes == before:
                    self._reads = _Reads.THREAD

    def _is_readable(self) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(self._readable.poll(0))

    def _read_once(self) -> Bytes:
        """Read what there is, at least one byte, and return the whole events."""
        # Less by what the splitter holds, so that both fit into the same group.
        held_bytes = min(self._splitter.held_bytes, _RECEIVE_BYTES // 2)
        count = self._receive(self._received[: _RECEIVE_BYTES - held_bytes])
        if count == 0:
            raise ServiceUnavailable(f"{self._server}: it closed the connection")
        self.last_heard_s = time.monotonic()
        return self._splitter.feed(self._received[:count])

    def _receive(self, space: memoryview) -> int:
        """What has come, at least one byte; and as long as the decoder has enough to do, what comes meanwhile.

        While the server sends in bulk a block is waited for until it is large: a quick decoder would have it in pieces
        otherwise, each of which costs a run and a group. A few changes, and the last ones, wait for nothing.
        """
        sock = self._socket
        filled = sock.recv_into(space)
        is_plain = not isinstance(sock, ssl.SSLSocket)  # TLS may hold bytes that a poll of the descriptor does not show
        while is_plain and 0 < filled < len(space):
            is_bulk = filled < _BULK_BYTES and self._is_bulk
            if not (is_bulk or self.queue.bytes_waiting):
                break
            if not self._readable.poll(_BULK_WAIT_MS if is_bulk else 0):
                break
            count = sock.recv_into(space[filled:])
            if count == 0:
                break  # the connection ended: the next call sees that too
            filled += count
        self._is_bulk = filled >= _BULK_BYTES // 16
        return filled


def _prepare(connection: "pymysql.Connection[Any]", gtids: str | None, *, is_mariadb: bool, heartbeat_ms: int) -> None:
    """Say what databus understands, before it asks for the log. gtids: where MariaDB is to begin."""
    heartbeat_ns = heartbeat_ms * 1_000_000
    settings = ["@master_binlog_checksum=@@global.binlog_checksum", f"@master_heartbeat_period={heartbeat_ns}"]
    if is_mariadb:
        settings.append("@mariadb_slave_capability=4")
        if gtids is not None:
            settings += [
                f"@slave_connect_state='{gtids}'",
                "@slave_gtid_strict_mode=1",
                "@slave_gtid_ignore_duplicates=0",
            ]
    else:
        settings += ["@source_binlog_checksum=@@global.binlog_checksum", f"@source_heartbeat_period={heartbeat_ns}"]
    with connection.cursor() as cursor:
        for setting in settings:
            cursor.execute(f"SET {setting}")


def _register(connection: "pymysql.Connection[Any]", server_id: int) -> None:
    """Have SHOW REPLICAS list this connection, so that others see its id."""
    name = socket.gethostname().encode()[:60]
    body = struct.pack("<I", server_id) + bytes([len(name)]) + name + b"\0\0" + struct.pack("<HII", 0, 0, 0)
    _command(connection, _REGISTER, body)
    connection._read_packet()  # type: ignore[no-untyped-call]  # noqa: SLF001 - as below


def _command(connection: "pymysql.Connection[Any]", number: int, body: bytes) -> None:
    connection._execute_command(number, body)  # type: ignore[attr-defined]  # noqa: SLF001 - PyMySQL has no public
    # way to send a command that is not a query


def _ask(
    connection: "pymysql.Connection[Any]", position: LogPosition, gtids: str | None, *, is_mariadb: bool, server_id: int
) -> None:
    """Ask for the log, by GTIDs or by file and offset."""
    if gtids is not None and not is_mariadb:
        encoded = GtidSet.parse(gtids).encode()
        head = struct.pack("<HII", _THROUGH_GTID, server_id, 0) + struct.pack("<QI", FIRST_OFFSET, len(encoded))
        _command(connection, _DUMP_GTID, head + encoded)
        return
    file, offset = (position.file, position.offset) if gtids is None else ("", FIRST_OFFSET)
    if offset > OFFSET_MAX:
        raise ServiceUnavailable(
            f"{file} at {offset}: the protocol cannot name a place beyond 4 GiB without GTIDs; switch GTIDs on, or "
            f"keep max_binlog_size at its default"
        )
    _command(connection, _DUMP, struct.pack("<IHI", offset, 0, server_id) + file.encode())
