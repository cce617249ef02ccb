"""Sockets that other threads may have to end."""

import contextlib
import socket
import threading

from databus.core import ServiceUnavailable


class Sockets:
    """The sockets that are open now. `close` shuts them all, from any thread, and lets no new one in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.is_closed = False

    def add(self, sock: socket.socket) -> None:
        """Keep it. Raises `ServiceUnavailable` after `close`."""
        with self._lock:
            if self.is_closed:
                raise ServiceUnavailable("this relay client has been closed")
            self._open.add(sock)

    def discard(self, sock: socket.socket) -> None:
        """Forget it."""
        with self._lock:
            self._open.discard(sock)

    def close(self) -> None:
        """Shut every socket: whoever reads from one sees its end."""
        with self._lock:
            self.is_closed = True
            for sock in self._open:
                shut(sock)


def shut(sock: socket.socket) -> None:
    """End both directions; whoever blocks on it wakes up."""
    with contextlib.suppress(OSError):  # it was not connected any more
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # one with TLS would take what comes for clear text from then on
