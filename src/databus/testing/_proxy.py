"""A TCP proxy that misbehaves on purpose: delays, cuts, throttles, truncates, or falls silent.

    with TcpProxy("127.0.0.1", 11115) as proxy:
        client = RelayClient(f"http://127.0.0.1:{proxy.port}")
        proxy.truncate_after(1000)   # the next bytes down to the client end after so many
        proxy.cut()                  # every connection is reset now

Only the direction from the server to the client is disturbed; what the client sends passes as it is.
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

_CHUNK_BYTES: Final = 64 << 10
_WAKE_S: Final = 0.05
_LINGER_RESET: Final = struct.pack("ii", 1, 0)


@dataclass
class _Pair:
    """The two ends of a connection, and who passes bytes between them: they close both when the last has ended.

    No other thread does: the number of a closed descriptor belongs to another connection at once, and a thread that
    still waits for it would take what comes there.
    """

    client: socket.socket
    server: socket.socket
    threads: list[threading.Thread] = field(default_factory=list)
    pumps_left: int = 2

    def reset(self) -> None:
        """End both, and have the peers see a reset."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):  # already closed by its peer
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
                end.shutdown(socket.SHUT_RDWR)


class TcpProxy:
    """Passes connections on to `host:port`. Settings may change at any time, from any thread.

    delay_ms: how long each piece waits. bytes_per_s: how fast they pass, 0 for no limit. is_silent: nothing passes, and
    no connection is closed: half-open. chunk_bytes: how large a piece is at most.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self.delay_ms = 0.0
        self.bytes_per_s = 0
        self.is_silent = False
        self.chunk_bytes = _CHUNK_BYTES
        self._truncate_left: int | None = None
        self._flip_left: int | None = None
        self._pairs: list[_Pair] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, daemon=True, name="tcp-proxy")

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._acceptor.join()
        self._listener.close()
        self.cut()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    def turn_to(self, host: str, port: int) -> None:
        """Pass connections that are made from now on to another server, as a virtual address does that moves."""
        self._upstream = (host, port)

    def cut(self) -> None:
        """Reset every connection that is open now."""
        with self._lock:
            pairs = list(self._pairs)
            for pair in pairs:
                pair.reset()
        for pair in pairs:
            for thread in pair.threads:
                if thread is not threading.current_thread():
                    thread.join()

    def truncate_after(self, count: int) -> None:
        """Let so many more bytes through to a client, then close that connection properly. Happens once."""
        self._truncate_left = count

    def flip_after(self, count: int) -> None:
        """Flip one bit of the byte after so many more. Happens once."""
        self._flip_left = count

    def _accept(self) -> None:
        arriving = select.poll()  # `select.select` knows no file above 1,023
        arriving.register(self._listener, select.POLLIN)
        while not self._stopping.is_set():
            if not arriving.poll(_WAKE_S * 1e3):
                continue
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(self._upstream, timeout=10)
            except OSError:
                client.close()
                continue
            pair = _Pair(client, server)
            up = threading.Thread(target=self._pump, args=(pair, client, server, None), daemon=True)
            down = threading.Thread(target=self._pump, args=(pair, server, client, self._disturb), daemon=True)
            pair.threads += [up, down]
            with self._lock:  # who sees the pair may wait for its threads
                self._pairs.append(pair)
                up.start()
                down.start()

    def _pump(
        self, pair: _Pair, source: socket.socket, sink: socket.socket, disturb: Callable[[bytes], bytes | None] | None
    ) -> None:
        try:
            self._pass(pair, source, sink, disturb)
        finally:
            with self._lock:
                pair.pumps_left -= 1
                if not pair.pumps_left:
                    pair.client.close()
                    pair.server.close()
                    self._pairs.remove(pair)

    def _pass(
        self, pair: _Pair, source: socket.socket, sink: socket.socket, disturb: Callable[[bytes], bytes | None] | None
    ) -> None:
        with contextlib.suppress(OSError):  # reset by `cut`, or by either end
            while True:
                piece = source.recv(max(1, min(self.chunk_bytes, _CHUNK_BYTES)))
                if not piece:
                    sink.shutdown(socket.SHUT_WR)
                    return
                if disturb is None:
                    sink.sendall(piece)
                    continue
                wanted = len(piece)
                passed = disturb(piece)
                if passed is None:
                    return
                sink.sendall(passed)
                if len(passed) < wanted:
                    pair.client.shutdown(socket.SHUT_RDWR)
                    pair.server.shutdown(socket.SHUT_RDWR)
                    return

    def _disturb(self, piece: bytes) -> bytes | None:
        while self.is_silent:
            if self._stopping.wait(_WAKE_S):
                return None
        if self.delay_ms:
            time.sleep(self.delay_ms / 1e3)
        if self.bytes_per_s:
            time.sleep(len(piece) / self.bytes_per_s)
        if self._flip_left is not None:
            if self._flip_left < len(piece):
                changed = bytearray(piece)
                changed[self._flip_left] ^= 0x10
                piece, self._flip_left = bytes(changed), None
            else:
                self._flip_left -= len(piece)
        if self._truncate_left is not None:
            if self._truncate_left < len(piece):
                piece, self._truncate_left = piece[: self._truncate_left], None
            else:
                self._truncate_left -= len(piece)
        return piece
