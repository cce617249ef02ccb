"""Sending: bytes of the log to a client's socket, past every buffer in between.

The kernel copies from the page cache to the socket (`sendfile`); nothing is buffered in this process, so a client that
does not read costs a file descriptor and nothing else, and is cut off when it has read nothing for `write_ms_max`.
The socket is asyncio's; it is written to through a duplicate of its descriptor, once asyncio has sent the headers.
With TLS, what is read from the log's files is encrypted in this process (`TlsSender`): for a client that does not read
there waits what its socket's transport holds, at most `PIECE_BYTES` and a little.
"""

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from databus.core import CorruptData, DatabusError
from databus.log import Span
from databus.relay._tls import TlsTransport

SENDFILE_BYTES_MIN: Final = 64 << 10
"""Below this, copying a span through user space is cheaper than a system call of its own."""

BURST_BYTES_MAX: Final = 1 << 20
"""What one client may be sent before others get their turn."""
_GATHER_BYTES_MAX: Final = 256 << 10


_DRAIN_POLL_S: Final = 0.01  # nothing tells when a peer has acknowledged
PIECE_BYTES: Final = 128 << 10
"""What is encrypted before others get their turn."""


class ClientGone(DatabusError):
    """The client closed the connection, or did not read for too long; ends its request and nothing else."""


class Sender:
    """Writes to one client. `sent_bytes` counts; `close` gives the descriptor back, `abort` resets the connection."""

    def __init__(self, transport: asyncio.Transport, write_ms_max: int) -> None:
        sock = transport.get_extra_info("socket")
        if sock is None or transport.is_closing():
            raise ClientGone("the client closed the connection")
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._write_s_max = write_ms_max / 1e3
        # for one that is gone without a word, while too little is sent to block on
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * write_ms_max)
        self._fd = os.dup(sock.fileno())
        self.sent_bytes = 0

    def close(self) -> None:
        """Give the descriptor back; callable twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def drain(self) -> None:
        """Wait until the client's machine has all that was sent, as long as it takes anything. A reset right after
        `send` would drop what still waits here.
        """
        left, since = self._waiting_bytes(), self._loop.time()
        while left and not self._transport.is_closing() and self._loop.time() - since < self._write_s_max:
            await asyncio.sleep(_DRAIN_POLL_S)
            now_left = self._waiting_bytes()
            left, since = now_left, since if now_left == left else self._loop.time()

    def _waiting_bytes(self) -> int:
        """What was written to the socket and has not reached the peer's machine."""
        return int(struct.unpack("i", fcntl.ioctl(self._fd, termios.TIOCOUTQ, b"\0" * 4))[0])

    def abort(self) -> None:
        """Reset the connection, so that the client cannot take what came for the whole."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self._transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()
        self._transport.abort()

    async def after_headers(self) -> None:
        """Wait until asyncio has handed all its bytes to the kernel; they come before ours."""
        while self._transport.get_write_buffer_size():
            await self._writable()

    async def send(self, spans: Sequence[Span]) -> None:
        """Send spans in order. Raises `ClientGone`."""
        small: list[Span] = []
        small_bytes = 0
        for span in spans:
            if span.length < SENDFILE_BYTES_MIN:
                small.append(span)
                small_bytes += span.length
                if small_bytes >= _GATHER_BYTES_MAX:
                    await self._send_small(small)
                    small, small_bytes = [], 0
                continue
            if small:
                await self._send_small(small)
                small, small_bytes = [], 0
            await self._send_file(span)
        if small:
            await self._send_small(small)

    async def _send_small(self, spans: Sequence[Span]) -> None:
        await self.write(b"".join(os.pread(span.fd, span.length, span.offset) for span in spans))

    async def write(self, content: bytes) -> None:
        """Send bytes. Raises `ClientGone`."""
        left = memoryview(content)
        while left:
            try:
                count = os.write(self._fd, left[:BURST_BYTES_MAX])
            except BlockingIOError:
                await self._writable()
                continue
            except OSError as error:
                raise ClientGone(f"the client closed the connection: {error.strerror}") from error
            self.sent_bytes += count
            left = left[count:]
            if left:
                await asyncio.sleep(0)

    def try_write(self, buffers: Sequence[bytes], skipped: int = 0) -> int:
        """Send what the socket takes now of these buffers, as many as a call takes, without their first bytes;
        returns how much that was. Raises `ClientGone`.
        """
        try:
            if len(buffers) == 1 and not skipped:
                count = os.write(self._fd, buffers[0])
            else:
                count = os.writev(self._fd, [memoryview(buffers[0])[skipped:], *buffers[1:]])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ClientGone(f"the client closed the connection: {error.strerror}") from error
        self.sent_bytes += count
        return count

    async def _send_file(self, span: Span) -> None:
        offset, left = span.offset, span.length
        while left:
            try:
                count = os.sendfile(self._fd, span.fd, offset, min(left, BURST_BYTES_MAX))
            except BlockingIOError:
                await self._writable()
                continue
            except OSError as error:
                raise ClientGone(f"the client closed the connection: {error.strerror}") from error
            if count == 0:
                raise CorruptData(f"{span.file.path} at {offset}: the file ends here, {left} bytes too early")
            self.sent_bytes += count
            offset += count
            left -= count
            if left:
                await asyncio.sleep(0)

    async def _writable(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()

        def ready(error: ClientGone | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        cancel = self.when_writable(ready)
        try:
            await future
        finally:
            cancel()

    def when_writable(self, ready: Callable[[ClientGone | None], None]) -> Callable[[], None]:
        """Call `ready` once when the socket takes bytes again, or with an error when it has not for too long. Returns
        how to have it not called any more.
        """

        def end() -> None:
            timer.cancel()
            cancel()

        def writable() -> None:
            end()
            ready(None)

        def late() -> None:
            end()
            ready(ClientGone(f"the client read nothing for write_ms_max={self._write_s_max * 1e3:.0f}"))

        timer = self._loop.call_later(self._write_s_max, late)
        cancel = self._watch(writable)
        return end

    def _watch(self, writable: Callable[[], None]) -> Callable[[], None]:
        """Have it called when the connection takes bytes again or has ended. Returns how to have it not called."""
        fd, is_over = self._fd, False

        def end() -> None:
            nonlocal is_over
            if not is_over and self._fd >= 0:
                self._loop.remove_writer(fd)
            is_over = True

        self._loop.add_writer(fd, writable)
        return end


def sender_of(transport: asyncio.Transport, write_ms_max: int) -> Sender:
    """The sender for a connection, with TLS or without."""
    if isinstance(transport, TlsTransport):
        return TlsSender(transport, write_ms_max)
    return Sender(transport, write_ms_max)


class TlsSender(Sender):
    """As the one without TLS, but through the connection's transport."""

    def __init__(self, transport: TlsTransport, write_ms_max: int) -> None:
        super().__init__(transport, write_ms_max)
        self._tls = transport

    async def after_headers(self) -> None:
        """They go the same way."""

    async def write(self, content: bytes) -> None:
        """Send bytes. Raises `ClientGone`."""
        left = memoryview(content)
        while left:
            left = left[await self._write_piece(left[:PIECE_BYTES]) :]

    def try_write(self, buffers: Sequence[bytes], skipped: int = 0) -> int:
        """Encrypt a piece of these buffers if the socket has taken what came before; returns how much that was.

        Raises `ClientGone`.
        """
        self._check()
        if self._tls.is_full:
            return 0
        pieces = [memoryview(buffers[0])[skipped : skipped + PIECE_BYTES]]
        size = len(pieces[0])
        for buffer in islice(buffers, 1, None):
            if size >= PIECE_BYTES:
                break
            pieces.append(memoryview(buffer)[: PIECE_BYTES - size])
            size += len(pieces[-1])
        self._tls.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        self.sent_bytes += size
        return size

    async def _send_file(self, span: Span) -> None:
        offset, left = span.offset, span.length
        while left:
            piece = os.pread(span.fd, min(left, PIECE_BYTES), offset)
            if not piece:
                raise CorruptData(f"{span.file.path} at {offset}: the file ends here, {left} bytes too early")
            count = await self._write_piece(piece)
            offset += count
            left -= count

    async def _write_piece(self, piece: bytes | memoryview) -> int:
        self._check()
        while self._tls.is_full:
            await self._writable()
            self._check()
        self._tls.write(piece)
        self.sent_bytes += len(piece)
        await asyncio.sleep(0)
        return len(piece)

    def _check(self) -> None:
        if self._tls.is_closing():
            raise ClientGone("the client closed the connection")

    def _waiting_bytes(self) -> int:
        return super()._waiting_bytes() + self._tls.get_write_buffer_size()

    def _watch(self, writable: Callable[[], None]) -> Callable[[], None]:
        return self._tls.when_writable(writable)
