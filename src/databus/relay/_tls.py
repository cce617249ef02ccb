"""TLS between a socket and the HTTP server: `Tls` is fed what came from the network, and speaks to the server in clear.

asyncio's own TLS is not used, because a connection must stand at the door from its first byte on, also one that never
says hello; because a client that is refused must learn why (asyncio drops the alert); and because what waits for a
client must be bounded by what the socket's transport holds, and no second buffer behind it.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable
from typing import Any, Final

_READ_BYTES: Final = 64 << 10
_HELLO: Final = 0x16
"""With this byte everything begins that speaks TLS."""

_ASK_BY_TLS: Final = (
    "this port speaks TLS; ask by https://, and give the certificate of the relay's authority as `ca_file` "
    "(at the command line --ca-file)"
)
_SHOW_AGAIN: Final = (
    "this relay wants a certificate with each connection, and a resumed session of TLS 1.2 shows none; have the client "
    "resume no sessions, or speak TLS 1.3"
)


class TlsTransport(asyncio.Transport):
    """The server's side: what it writes is encrypted and handed to the socket's transport, `raw`."""

    def __init__(self, tls: "Tls", raw: asyncio.Transport) -> None:
        super().__init__()
        self._tls = tls
        self.raw = raw
        self.is_full = False
        self._waiting: list[Callable[[], None]] = []

    def when_writable(self, ready: Callable[[], None]) -> Callable[[], None]:
        """Call `ready` once when the socket's transport takes more, or has ended. Returns how to have it not called."""
        waiting = self._waiting
        if not self.is_full or self.raw.is_closing():
            return asyncio.get_running_loop().call_soon(ready).cancel
        waiting.append(ready)

        def end() -> None:
            if ready in waiting:
                waiting.remove(ready)

        return end

    def became_full(self, is_full: bool) -> None:
        """Take note of what the socket's transport says."""
        self.is_full = is_full
        if not is_full:
            waiting = self._waiting[:]
            self._waiting.clear()
            for ready in waiting:
                ready()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt all of it, and send it as the socket takes it."""
        self._tls.write(data)

    def close(self) -> None:
        """Send what waits, and say that this was all."""
        self._tls.close()

    def abort(self) -> None:
        """End at once, so that the peer sees that something is missing."""
        self.raw.abort()

    def is_closing(self) -> bool:
        """Whether it has been closed, or the peer has gone."""
        return self.raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As asyncio's own."""
        match name:
            case "ssl_object":
                return self._tls.tls
            case "sslcontext":
                return self._tls.tls.context
            case "peercert":
                return self._tls.tls.getpeercert()
        return self.raw.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that the socket has not taken yet."""
        return self.raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The bounds at which the server must wait, and may go on."""
        self.raw.set_write_buffer_limits(high, low)

    def is_reading(self) -> bool:
        """Whether the socket is read."""
        return self.raw.is_reading()

    def pause_reading(self) -> None:
        """Leave what comes in the socket."""
        self.raw.pause_reading()

    def resume_reading(self) -> None:
        """Read it again."""
        self.raw.resume_reading()

    def can_write_eof(self) -> bool:
        """Never: the end is a message of TLS."""
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have what comes given to another."""
        assert isinstance(protocol, asyncio.Protocol)  # noqa: S101 - of a stream
        self._tls.server = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is given what comes."""
        assert self._tls.server is not None  # noqa: S101 - it has this transport
        return self._tls.server


class Tls(asyncio.Protocol):
    """One connection, on the network's side.

    protocol: makes the server's side once the handshake is done; who is not let in costs the server nothing.
    note: called with +1 when a handshake begins and -1 when it has ended.
    """

    def __init__(
        self, context: ssl.SSLContext, protocol: Callable[[], asyncio.Protocol], note: Callable[[int], None]
    ) -> None:
        self._protocol = protocol
        self._note = note
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._is_shaking = False
        self._is_first = True
        self._is_over = False  # nothing that comes is looked at any more
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.server: asyncio.Protocol | None = None

    # What the network says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a hello."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a TCP connection
        self._raw = transport
        self._transport = TlsTransport(self, transport)
        self._is_shaking = True
        self._note(1)

    def data_received(self, data: bytes) -> None:
        """Decrypt; what is in clear goes to the server."""
        if self._is_over:
            return
        if self._is_first:
            self._is_first = False
            if data[0] != _HELLO and data[:1].isalpha():
                self._refuse(_answer("400 Bad Request", "ConfigError", _ASK_BY_TLS))
                return
        self._incoming.write(data)
        if self._is_shaking:
            self._shake()
        if self.server is not None:
            self._read(self.server)

    def eof_received(self) -> None:
        """The peer has gone, with or without having said so."""
        if self.server is not None and not self._is_over:
            self.server.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """The end."""
        self._is_over = True
        self._end_handshake()
        self._transport.became_full(False)
        if self.server is not None:
            self.server.connection_lost(error)

    def pause_writing(self) -> None:
        """The socket is full."""
        self._transport.became_full(True)
        if self.server is not None:
            self.server.pause_writing()

    def resume_writing(self) -> None:
        """It is not any more."""
        if self.server is not None:
            self.server.resume_writing()
        self._transport.became_full(False)

    def _shake(self) -> None:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError:
            self._refuse(self._outgoing.read())
            return
        if self.tls.session_reused and self.tls.context.verify_mode is ssl.CERT_REQUIRED:
            # its certificate was looked at hours ago, perhaps, and its time may be over
            self.tls.write(_answer("403 Forbidden", "AccessDenied", _SHOW_AGAIN))
            self._refuse(self._outgoing.read())
            return
        self._flush()
        self._end_handshake()
        self.server = self._protocol()
        self.server.connection_made(self._transport)

    def _end_handshake(self) -> None:
        if self._is_shaking:
            self._is_shaking = False
            self._note(-1)

    def _refuse(self, answer: bytes) -> None:
        """Send the reason, and wait for the peer to close: a reset could overtake the answer. The door waits no longer
        than for any other.
        """
        self._is_over = True
        self._end_handshake()
        if not self._raw.is_closing():
            self._raw.write(answer)
            self._raw.write_eof()

    def _read(self, server: asyncio.Protocol) -> None:
        while not self._is_over:
            try:
                plain = self.tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:  # also where the peer says that it has nothing more to say
                plain = b""
            if not plain:
                self._is_over = True
                server.eof_received()
                self.close()
                return
            server.data_received(plain)
        self._flush()

    # What the server says

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._raw.is_closing():
            return
        left = memoryview(data).cast("B")
        try:
            while left:
                left = left[self.tls.write(left) :]
        except ssl.SSLError:  # what the peer sent is no TLS any more
            self._raw.abort()
            return
        self._flush()

    def close(self) -> None:
        """Say that this was all, and end the connection when it is sent."""
        if self._raw.is_closing():
            return
        with contextlib.suppress(ssl.SSLError):  # the peer need not answer
            self.tls.unwrap()
        self._flush()
        self._is_over = True
        self._raw.close()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())


def _answer(status: str, error: str, message: str) -> bytes:
    """An answer in HTTP to a client that does not get as far as the server."""
    body = json.dumps({"error": error, "message": message}).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\nx-dbus-error: {error}\r\nx-dbus-error-message: {message}\r\n\r\n"
    )
    return head.encode() + body
