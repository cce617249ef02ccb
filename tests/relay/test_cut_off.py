"""A stream that ends by an error: what was sent before it arrives, and is not taken for the whole."""

import socket
import time
from pathlib import Path

import pytest

from databus.core import CorruptData, SourceCheckpoint, StreamCut
from databus.link import RelayClient
from databus.log._segment import segment_path
from databus.relay import Relay
from tests.relay.support import WAIT_S, Database, get, order, published, scripted, until

GROUPS, BAD = 60, 40


def damage(relay: Relay, scn: int) -> None:
    """Change one byte of a row of this transaction, in the file, as a disk might."""
    log = relay.captures["shop"].log
    assert log is not None
    log.sync()
    path = segment_path(log.folder, 1)
    content = path.read_bytes()
    at = content.index(f"row of {scn:04d}".encode())
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"R")


def test_an_error_in_mid_stream_takes_nothing_back_that_was_sent_before_it(tmp_path: Path) -> None:
    shop = Database(groups=[order(scn, f"row of {scn:04d} " + "x" * 20_000) for scn in range(1, GROUPS + 1)])
    with scripted(tmp_path, {"shop": shop}, serve={"tail_bytes_max": 0}) as relay:
        published(relay, "shop", GROUPS)
        good = get(relay, "/stream", output="frames", to=BAD - 1).body
    with scripted(tmp_path, {"shop": shop}, serve={"tail_bytes_max": 0}) as relay:
        published(relay, "shop", GROUPS)
        damage(relay, BAD)
        host, _, port = relay.url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as sock:
            sock.sendall(b"GET /stream?output=frames&follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            streams = relay._commands.stats.streams
            until(lambda: any(each.sent_bytes for each in list(streams)), "what can be sent is sent")
            for _ in range(100):  # a relay that resets at once has done so by then
                if not streams:
                    break
                time.sleep(0.005)
            received = b""
            with pytest.raises(ConnectionResetError):
                while piece := sock.recv(65_536):
                    received += piece
        body = received.partition(b"\r\n\r\n")[2]
        assert body == good
        with RelayClient(relay.url).stream("shop", "beginning", follow=True) as stream:
            seen = []
            with pytest.raises(StreamCut):
                for groups in stream:
                    seen += [group.commit.last_scn for group in groups]
        assert seen == list(range(1, BAD))
        with pytest.raises(CorruptData):
            RelayClient(relay.url).stream("shop", SourceCheckpoint(scn=BAD - 1))
