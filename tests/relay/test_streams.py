"""Streams: they wake at once, follow, and cost the others nothing."""

import gc
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from databus.core import CorruptData, DatabusError
from databus.relay import Relay
from databus.wire import FrameGroup, FrameParser
from tests.relay.support import (
    WAIT_S,
    Database,
    connect,
    get,
    order,
    parts,
    path_of,
    published,
    sale,
    scripted,
    until,
)


class Follower:
    """A client that reads a stream of frames group by group."""

    def __init__(self, relay: Relay, **query: object) -> None:
        self._connection = connect(relay)
        self._connection.request("GET", path_of("/stream", {"output": "frames", "follow": 1, **query}))
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()
        self._parser = FrameParser("stream")
        self._groups: list[FrameGroup] = []

    def next(self) -> FrameGroup | None:
        """The next group; None at the end of the stream."""
        while not self._groups:
            piece = self.response.read1(1 << 16)
            if not piece:
                self._parser.finish()
                return None
            for start in range(0, len(piece), 1 << 10):
                part = piece[start : start + (1 << 10)]
                self._parser.space()[: len(part)] = part
                self._groups += self._parser.received(len(part))
        return self._groups.pop(0)

    def scns(self, count: int) -> list[int]:
        return [group.commit.last_scn for group in (self.next() for _ in range(count)) if group is not None]

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@pytest.fixture
def shop() -> Database:
    return Database(groups=[order(1), order(2)])


@pytest.fixture
def relay(tmp_path: Path, shop: Database) -> Iterator[Relay]:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 2)
        yield relay


def test_a_follower_gets_what_is_there_and_then_what_comes(relay: Relay, shop: Database) -> None:
    follower = Follower(relay)
    assert follower.scns(2) == [1, 2]
    for scn in range(3, 30):
        shop.add(order(scn))
        assert follower.scns(1) == [scn]
    follower.close()


def test_a_follower_of_json_starts_at_the_end_and_sees_the_next_change(relay: Relay, shop: Database) -> None:
    connection = connect(relay)
    connection.request("GET", "/stream?follow=1")
    response = connection.getresponse()
    shop.add(order(3, "new"))
    assert b'"name":"new"' in response.readline()
    response.close()


def test_many_followers_of_one_source_all_get_everything(relay: Relay, shop: Database) -> None:
    followers = [Follower(relay, scn=2) for _ in range(20)]
    shop.add(*(order(scn) for scn in range(3, 53)))
    for follower in followers:
        assert follower.scns(50) == list(range(3, 53))
        follower.close()


def test_a_follower_ends_where_to_says(relay: Relay, shop: Database) -> None:
    follower = Follower(relay, to=4)
    shop.add(order(3), order(4), order(5))
    assert follower.scns(3) == [1, 2, 3]
    assert follower.scns(1) == [4]
    assert follower.next() is None


def test_a_table_that_is_made_later_comes_to_a_follower_of_its_pattern(tmp_path: Path) -> None:
    shop = Database(tables=(), groups=[order(1)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        follower = Follower(relay, sources="shop/main.st*", scn=1)
        shop.add(sale(2))
        group = follower.next()
        assert group is not None
        assert [frame.batch.column("left").to_pylist() for frame in group.rows] == [[98]]
        follower.close()


@pytest.mark.parametrize("path", ["/stream", "/range"])
def test_a_long_poll_is_answered_by_the_change_that_it_waits_for(relay: Relay, shop: Database, path: str) -> None:
    """It waits in one request: the source is asked nothing, and the answer holds the first change after it began. Who
    asks gives up before `wait_ms` has passed.
    """
    answers = []
    asking = threading.Thread(target=lambda: answers.append(get(relay, path, output="frames", scn=2, wait_ms=60_000)
                              if path == "/stream" else get(relay, path, scn=2, wait_ms=60_000)))  # fmt: skip
    asking.start()
    until(lambda: relay.captures["shop"].log is not None and _waiting(relay) == 1)
    shop.add(order(3))
    asking.join(WAIT_S)
    (answer,) = answers
    if path == "/stream":
        assert [group.commit.last_scn for group in answer.groups] == [3]
    else:
        assert (answer.json["position"]["scn"], answer.json["rows"]) == (3, 1)


def _waiting(relay: Relay) -> int:
    return relay._commands._waiting


def test_a_long_poll_that_nothing_comes_to_ends_empty(relay: Relay) -> None:
    answer = get(relay, "/stream", output="frames", scn=2, wait_ms=30)
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


def test_long_polls_keep_their_connection(relay: Relay, shop: Database) -> None:
    connection = connect(relay)
    for scn in (0, 1, 2):
        shop.add(order(scn + 3))
        published(relay, "shop", scn + 3)
        connection.request("GET", f"/stream?output=frames&max_bytes=100000&scn={scn}")
        sock = connection.sock
        assert connection.getresponse().read()
        assert connection.sock is sock
    connection.close()


def test_everything_that_is_there_comes_in_one_answer_however_large(tmp_path: Path) -> None:
    """More than is read at once, over several segments, in parts of transactions."""
    groups = [group for scn in range(1, 11) for group in parts(scn, 30, rows_each=1000)]
    shop = Database(groups=groups)
    with scripted(tmp_path, {"shop": shop}, log={"segment_bytes_max": 5 << 20}) as relay:
        published(relay, "shop", 10)
        answer = get(relay, "/stream", output="frames")
        assert len(answer.body) > 20 << 20
        assert len(answer.groups) == 300
        assert sum(group.commit.rows for group in answer.groups) == 300_000
        measured = get(relay, "/range", start="beginning", partitions=4).json
        assert measured["bytes"] == len(answer.body)
        pieces = []
        for start, end in zip([None, *measured["splits"]], [*measured["splits"], measured["position"]], strict=True):
            to = f"{end['scn']}" if end["seq"] is None else f"{end['scn']}:{end['seq']}"
            query = {"start": "beginning"} if start is None else {"from_": start}
            pieces.append(get(relay, "/stream", output="frames", to=to, **query).body)
        assert b"".join(pieces) == answer.body


def test_a_client_that_never_reads_costs_the_others_nothing(tmp_path: Path) -> None:
    """Law 4: the source, the log and every other client go on, and memory stays where it was."""
    shop = Database(groups=[group for scn in range(1, 21) for group in parts(scn, 10, rows_each=2000)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 20)
        body_bytes = len(get(relay, "/stream", output="frames").body)
        stuck = [_ask_and_never_read(relay) for _ in range(20)]
        until(lambda: len(relay._commands.stats.streams) == 20)
        before = _anonymous_bytes()
        for scn in range(21, 121):
            shop.add(order(scn))
            assert [g.commit.last_scn for g in get(relay, "/stream", output="frames", scn=scn - 1).groups] == [scn]
        assert len(get(relay, "/stream", output="frames").body) > body_bytes
        gc.collect()
        assert _anonymous_bytes() - before < 20 * body_bytes / 4
        for sock in stuck:
            sock.close()
        until(lambda: not relay._commands.stats.streams, "the streams are let go")


def _ask_and_never_read(relay: Relay) -> socket.socket:
    host, _, port = relay.url.removeprefix("http://").rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    sock.sendall(b"GET /stream?output=frames&follow=1&client=stuck HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return sock


def _anonymous_bytes() -> int:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def test_a_client_that_does_not_read_for_too_long_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    shop = Database(groups=[group for scn in range(1, 21) for group in parts(scn, 10, rows_each=2000)])
    with scripted(tmp_path, {"shop": shop}, serve={"write_ms_max": 100}) as relay:
        published(relay, "shop", 20)
        stuck = _ask_and_never_read(relay)
        until(lambda: get(relay, "/relayStats/outbound/http/client/stuck").status == 200)
        until(lambda: not relay._commands.stats.streams, "the stream is cut off")
        with pytest.raises(ConnectionError):
            while stuck.recv(1 << 16):
                pass
        assert "the client read nothing for write_ms_max=100" in caplog.text
        idle = Follower(relay, start="latest")  # who has nothing to read is not meant
        time.sleep(0.3)  # for longer than a client may leave what there is
        shop.add(order(21))
        assert idle.scns(1) == [21]
        idle.close()


def test_metrics_say_how_far_a_client_is_behind(tmp_path: Path) -> None:
    shop = Database(groups=[group for scn in range(1, 21) for group in parts(scn, 10, rows_each=2000)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 20)
        stuck = _ask_and_never_read(relay)
        follower = Follower(relay, scn=20, client="live")
        until(lambda: len(relay._commands.stats.streams) == 2)
        samples = {}
        for line in get(relay, "/metrics").body.decode().splitlines():
            name, _, value = line.rpartition(" ")
            samples[name] = value
        assert float(samples['databus_client_lag_scn{client="stuck",physical="shop"}']) > 0
        assert float(samples['databus_client_lag_seconds{client="stuck",physical="shop"}']) > 0
        assert float(samples['databus_client_lag_scn{client="live",physical="shop"}']) == 0
        assert float(samples['databus_client_retention_left_seconds{client="live",physical="shop"}']) > 0
        assert samples["databus_streams"] == "2.0"
        follower.close()
        stuck.close()


def test_descriptors_are_given_back(relay: Relay, shop: Database) -> None:
    for _ in range(3):
        Follower(relay).close()
        get(relay, "/stream", output="frames")
    until(lambda: not relay._commands.stats.streams)
    process = psutil.Process()
    before = process.num_fds()
    for _ in range(30):
        Follower(relay).close()
        get(relay, "/stream", output="frames")
    until(lambda: not relay._commands.stats.streams)
    until(lambda: process.num_fds() <= before + 3, "descriptors are closed")


def test_a_flipped_byte_in_the_log_is_told_and_never_served(tmp_path: Path) -> None:
    shop = Database(groups=[order(scn, "y" * 200) for scn in range(1, 40)])
    with scripted(tmp_path, {"shop": shop}, log={"segment_bytes_max": 10_000}) as relay:
        published(relay, "shop", 39)
        segment = sorted((tmp_path / "relay" / "shop").glob("*.seg"))[1]
        content = bytearray(segment.read_bytes())
        at = content.index(b"y" * 200) + 100
        with segment.open("rb+") as file:
            file.seek(at)
            file.write(b"z")
        good = _read_until_cut(relay, "/stream?output=frames")
        assert good
        assert [group.commit.last_scn for group in good] == list(range(1, len(good) + 1))
        answer = get(relay, "/stream", output="frames", scn=len(good))
        assert (answer.status, answer.headers["x-dbus-error"]) == (500, CorruptData.__name__)
        assert str(segment) in answer.json["message"]
        assert get(relay, "/stream", output="frames", scn=38).status == 200


def _read_until_cut(relay: Relay, path: str) -> list[FrameGroup]:
    """The whole groups that came before the relay cut the stream off; it must not look like an end."""
    connection = connect(relay)
    connection.request("GET", path)
    response = connection.getresponse()
    parser, groups = FrameParser("stream"), []
    with pytest.raises((ConnectionError, http.client.IncompleteRead, DatabusError)):
        while piece := response.read1(1 << 16):
            parser.space()[: len(piece)] = piece
            groups += parser.received(len(piece))
        parser.finish()
    return groups


def test_who_waits_while_the_relay_stops_is_told_to_ask_again(tmp_path: Path, shop: Database) -> None:
    answers = []
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 2)
        asking = threading.Thread(target=lambda: answers.append(get(relay, "/stream", scn=2, wait_ms=60_000)))
        asking.start()
        until(lambda: _waiting(relay) == 1)
    asking.join(WAIT_S)
    (answer,) = answers
    assert (answer.status, answer.headers["x-dbus-error"]) == (503, "ServiceUnavailable")
    assert "stops" in answer.json["message"]


def test_stopping_the_relay_ends_its_streams_between_groups_and_closes_the_port(tmp_path: Path, shop: Database) -> None:
    with scripted(tmp_path, {"shop": shop}) as relay:
        follower = Follower(relay)
        assert follower.scns(2) == [1, 2]
        url = relay.url
    assert follower.next() is None
    with pytest.raises(ConnectionRefusedError):
        get(url, "/sources")
    assert not (tmp_path / "relay" / "relay.json").exists()
    until(lambda: not _threads_of_relays(), "its threads have ended")
    assert (tmp_path / "relay" / "shop").exists()


def _threads_of_relays() -> list[threading.Thread]:
    names = ("capture", "relay", "databus-log")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]
