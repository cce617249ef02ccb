"""Sending to a client that speaks TLS: what is read from the log's files is encrypted in this process.

What waits for a client that does not read is what its socket's transport holds, at most `PIECE_BYTES` and a little.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from databus.core import CorruptData
from databus.log import Span
from databus.relay._send import ClientGone, Sender
from databus.relay._tls import TlsTransport

PIECE_BYTES: Final = 128 << 10
"""What is encrypted before others get their turn."""


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
        for each in islice(buffers, 1, None):
            if size >= PIECE_BYTES:
                break
            pieces.append(memoryview(each)[: PIECE_BYTES - size])
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

    def when_writable(self, ready: Callable[[ClientGone | None], None]) -> Callable[[], None]:
        """Call `ready` once when the connection takes bytes again or has ended, or with an error when it has not for
        too long. Returns how to have it not called any more.
        """

        def end() -> None:
            timer.cancel()
            cancel()

        def writable() -> None:
            end()
            ready(None)

        def late() -> None:
            end()
            ready(self._late())

        timer = self._loop.call_later(self._write_s_max, late)
        cancel = self._tls.when_writable(writable)
        return end
