"""A port where one connection is taken, by a thread that ends before the port is given back."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def taken_by(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port. Whoever connects first is served; the connection is closed after that.

    A thread that still waited in `accept` would take what comes for the next socket with its number.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def take() -> None:
            try:
                connection, _ = listening.accept()
            except OSError:  # nobody came
                return
            with connection:
                serve(connection)

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
