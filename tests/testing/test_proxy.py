"""The proxy passes bytes on unchanged until it is told to misbehave, and then does just that."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from databus.testing import TcpProxy

SENT = bytes(range(256)) * 400


@pytest.fixture
def upstream() -> Iterator[int]:
    """A server that sends `SENT` to whoever connects, then closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.sendall(SENT)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


def received(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        parts = []
        while piece := connection.recv(65536):
            parts.append(piece)
        return b"".join(parts)


def test_bytes_pass_unchanged(upstream):
    with TcpProxy("127.0.0.1", upstream) as proxy:
        assert received(proxy.port) == SENT


def test_a_process_with_many_open_files_has_a_proxy_too(upstream):
    """`select.select` knows no file above 1,023; a run of all tests has more."""
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
    try:
        with TcpProxy("127.0.0.1", upstream) as proxy:
            assert received(proxy.port) == SENT
    finally:
        for each in held:
            os.close(each)


def test_a_truncated_connection_ends_after_just_so_many_bytes_and_the_next_is_whole(upstream):
    with TcpProxy("127.0.0.1", upstream) as proxy:
        proxy.truncate_after(1000)
        assert received(proxy.port) == SENT[:1000]
        assert received(proxy.port) == SENT


def test_one_bit_is_flipped_once(upstream):
    with TcpProxy("127.0.0.1", upstream) as proxy:
        proxy.flip_after(777)
        changed = received(proxy.port)
        assert [at for at in range(len(SENT)) if changed[at] != SENT[at]] == [777]
        assert received(proxy.port) == SENT


def test_small_pieces_and_delay_change_nothing_but_time(upstream):
    with TcpProxy("127.0.0.1", upstream) as proxy:
        proxy.chunk_bytes, proxy.delay_ms = 4096, 0.5
        assert received(proxy.port) == SENT


def test_a_cut_resets_connections_that_are_open(upstream):
    with TcpProxy("127.0.0.1", upstream) as proxy:
        proxy.is_silent = True
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(10)
            proxy.is_silent = False
            connection.recv(1)
            proxy.cut()
            with contextlib.suppress(ConnectionResetError):  # or a plain end, if all had arrived; never a time-out
                while connection.recv(65536):
                    pass


def test_a_cut_may_come_while_somebody_connects(upstream):
    with TcpProxy("127.0.0.1", upstream) as proxy:
        is_over, tries = threading.Event(), [0]

        def connect() -> None:
            while not is_over.is_set():
                tries[0] += 1
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", proxy.port), 5) as connection:
                    connection.recv(1)

        several = [threading.Thread(target=connect) for _ in range(3)]
        for each in several:
            each.start()
        try:
            while tries[0] < 300:
                proxy.cut()
        finally:
            is_over.set()
            for each in several:
                each.join()
