"""Reading responses as they come."""

import socket
import threading

from databus.link import RelayClient
from tests.client.stub import encode, mock_groups
from tests.listening import taken_by


def test_what_came_with_the_headers_does_not_wait_for_what_comes_next() -> None:
    """The first group in the same packet as the headers, and then nothing: it is delivered."""
    _, groups = mock_groups(1, rows_per_transaction=3)
    first = b"".join(encode(groups))
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-databus-frames\r\nx-dbus-physical: made\r\n"
        b"x-dbus-uuid: u\r\nx-dbus-log: l\r\nx-dbus-published: 1\r\nConnection: close\r\n\r\n"
    )
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(head + first)
        over.wait(60)

    with taken_by(serve) as port:
        try:
            client = RelayClient(f"127.0.0.1:{port}", read_ms_max=30_000)
            with client.stream("made", "beginning", follow=True) as stream:
                found = next(iter(stream))
        finally:
            over.set()
    assert sum(frame.batch.num_rows for group in found for frame in group.rows) == 3
