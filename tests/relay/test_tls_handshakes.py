"""TLS of a relay: connections that do not get through the handshake, or that do not read."""

import os
import random
import socket
import ssl
import struct
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from databus.link import RelayClient
from databus.relay import Relay
from databus.relay._send import PIECE_BYTES
from tests.certificates import Authority
from tests.relay.support import WAIT_S, Database, order, published, scripted, until


def port_of(relay: Relay) -> int:
    return int(relay.url.rpartition(":")[2])


def waiting_bytes(relay: Relay) -> int:
    """What is held in memory for clients whose sockets are full."""
    runner = relay._server._runner
    assert runner is not None
    assert runner.server is not None
    transports = [each.transport for each in list(runner.server.connections)]
    return sum(each.get_write_buffer_size() for each in transports if each is not None)


def asked(relay: Relay, **options: Any) -> int:
    return len(RelayClient(relay.url, **options).sources())


@pytest.mark.parametrize("says", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"GET /"])
def test_connections_that_never_end_the_handshake_shut_nobody_out(
    tmp_path: Path, authority: Authority, says: bytes
) -> None:
    serve = {"connections_max": 20, "silent_max": 30}
    tls = authority.sign("relay").relay
    database = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": database}, serve=serve, tls=tls) as relay, ExitStack() as stack:
        published(relay, "shop", 1)
        for _ in range(100):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(relay)), timeout=WAIT_S))
            sock.sendall(says)
        client = RelayClient(relay.url, ca_file=authority.ca)
        assert client.head("shop").published.scn == 1
        with client.stream("shop", "beginning") as stream:
            assert [group.commit.last_scn for groups in stream for group in groups] == [1]
        assert len(relay._server._door) <= 30


@pytest.mark.parametrize("shakes", [False, True])
def test_a_connection_that_asks_nothing_is_closed_after_a_while(
    tmp_path: Path, authority: Authority, shakes: bool
) -> None:
    """Whether it shakes hands or not."""
    tls = authority.sign("relay").relay
    with (
        scripted(tmp_path, {"shop": Database()}, serve={"request_ms_max": 2_000}, tls=tls) as relay,
        socket.create_connection(("localhost", port_of(relay)), timeout=WAIT_S) as sock,
    ):
        silent = sock
        if shakes:
            context = ssl.create_default_context(cafile=authority.ca)
            silent = context.wrap_socket(sock, server_hostname="localhost")
        with suppress(ConnectionError):
            assert silent.recv(1) == b""
        until(lambda: len(relay._server._door) == 0)
        assert relay._server._handshakes == 0


def test_whatever_comes_instead_of_a_handshake_leaves_nothing_behind(
    tmp_path: Path, authority: Authority, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A hello cut off or changed anywhere, ended or reset at any moment: nobody stays, and nothing is logged."""
    dice, tls = random.Random(seed), authority.sign("relay").relay
    hello = _hello(authority)
    with scripted(tmp_path, {"shop": Database()}, serve={"request_ms_max": 5_000}, tls=tls) as relay:
        for _ in range(150):
            said = bytearray(hello[: dice.randrange(len(hello) + 1)] + dice.randbytes(dice.choice([0, 0, 40])))
            for _ in range(dice.choice([0, 0, 1, 5]) if said else 0):
                said[dice.randrange(len(said))] = dice.randrange(256)
            with (
                socket.create_connection(("127.0.0.1", port_of(relay)), timeout=WAIT_S) as sock,
                suppress(ConnectionError),
            ):
                sock.sendall(said)
                if dice.random() < 0.3:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if dice.random() < 0.3:
                    sock.shutdown(socket.SHUT_WR)
                    sock.recv(10_000)
        until(lambda: len(relay._server._door) == 0, "all are gone")
        assert relay._server._handshakes == 0
        assert asked(relay, ca_file=authority.ca) == 2
    assert not [record for record in caplog.records if record.exc_info]


def _hello(authority: Authority) -> bytes:
    """What a client begins with."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=authority.ca).wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def test_a_client_that_does_not_read_is_cut_off_and_holds_little(tmp_path: Path, authority: Authority) -> None:
    big = [order(scn, os.urandom(1_000_000).hex()) for scn in range(1, 12)]
    tls = authority.sign("relay").relay
    with scripted(tmp_path, {"shop": Database(groups=big)}, serve={"write_ms_max": 2_000}, tls=tls) as relay:
        published(relay, "shop", 11)
        context = ssl.create_default_context(cafile=authority.ca)
        with socket.create_connection(("localhost", port_of(relay)), timeout=WAIT_S) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
            secured = context.wrap_socket(sock, server_hostname="localhost", suppress_ragged_eofs=False)
            secured.sendall(b"GET /stream?start=beginning&output=frames&follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            streams = relay._commands.stats.streams
            held: list[int] = []
            until(lambda: streams)
            until(lambda: not streams or held.append(waiting_bytes(relay)), "it is cut off")
            assert max(held) <= 64_000 + 2 * PIECE_BYTES
            with pytest.raises(OSError):
                while secured.recv(1 << 20):
                    pass
