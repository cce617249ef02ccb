"""Sockets that other threads may have to end."""

import contextlib
import http.client
import os
import select
import socket
import threading
from collections.abc import Iterator

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


def has_unasked(sock: socket.socket) -> bool:
    """Whether a kept connection has something to read before anything is asked: its end, or what would be taken for the
    answer to the next request, such as a proxy's 408 before it hangs up.
    """
    look = select.poll()
    look.register(sock, select.POLLIN)
    return bool(look.poll(0))


class Kept:
    """One connection, kept between a thread's requests to one address. A request that goes wrong ends it, and is not
    sent again: the next makes another connection. `close` may come from another thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[tuple[str, int], int, http.client.HTTPConnection] | None = None
        self._is_closed = False

    def take(self, address: tuple[str, int]) -> http.client.HTTPConnection | None:
        """The connection to this address, if there is one that nobody has ended."""
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return None
        there, pid, connection = held
        # that of a parent is used by the parent
        if there == address and pid == os.getpid() and connection.sock is not None and not has_unasked(connection.sock):
            return connection
        connection.close()
        return None

    def put(self, address: tuple[str, int], connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose last answer has been read to its end."""
        with self._lock:
            if not self._is_closed:
                self._held = address, os.getpid(), connection
                return
        connection.close()

    def close(self) -> None:
        """Let go of it, and keep none any more. Callable twice."""
        with self._lock:
            self._is_closed = True
            held, self._held = self._held, None
        if held is not None:
            held[2].close()


@contextlib.contextmanager
def shut_after(sock: socket.socket, limit_s: float) -> Iterator[None]:
    """Bound a request from its first byte to the last one of its answer, however slowly the other side takes or gives
    them: a timeout of the socket's bounds the wait for one byte. Raises `TimeoutError`.
    """
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        shut(sock)

    clock = threading.Timer(limit_s, end)
    clock.daemon = True
    clock.start()
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        if is_over.is_set():
            raise TimeoutError(f"no whole answer within {limit_s:g} s") from error
        raise
    finally:
        clock.cancel()
    if is_over.is_set():  # what was read may end where it was cut
        raise TimeoutError(f"no whole answer within {limit_s:g} s")
