"""Many followers: what is published is read and made ready once for all, and each gets what it would get alone."""

import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.log import _cursor, _scan
from databus.log._cursor import Cursor
from databus.relay import Relay, _chunk, _stream, _tail
from databus.relay._ndjson import Renderer
from databus.relay._tail import Tail
from tests.relay.support import (
    WAIT_S,
    Database,
    get,
    order,
    parse_frames,
    parts,
    path_of,
    published,
    sale,
    scripted,
    truncate,
    until,
)

POSITION = b'{"_position"'


class Listener(threading.Thread):
    """Follows a stream with few bytes in the socket's buffer, and keeps what comes; `pause` has it read nothing."""

    def __init__(self, relay: Relay, *, is_json: bool = False, **query: Any) -> None:
        super().__init__(daemon=True)
        host, _, port = relay.url.removeprefix("http://").rpartition(":")
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        self._sock.connect((host, int(port)))
        path = path_of("/stream", {"output": "json" if is_json else "frames", "follow": 1, **query})
        self._sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._goes = threading.Event()
        self._goes.set()
        self._received = bytearray()
        self.is_json = is_json
        self.was_cut = False
        self.query = query
        self.start()

    def run(self) -> None:
        try:
            while self._goes.wait() and (piece := self._sock.recv(1 << 16)):
                self._received += piece
        except ConnectionResetError:
            self.was_cut = True

    def pause(self) -> None:
        self._goes.clear()

    def resume(self) -> None:
        self._goes.set()

    @property
    def body(self) -> bytes:
        return bytes(self._received).partition(b"\r\n\r\n")[2]

    @property
    def has_headers(self) -> bool:
        return b"\r\n\r\n" in self._received

    def wait_for(self, expected: bytes) -> None:
        until(
            lambda: len(self._received) >= len(expected) and len(self.body) >= len(expected),
            f"{len(expected)} bytes for {self.query}",
        )
        assert self.body == expected

    def rows(self) -> list[bytes]:
        """The lines but for those that tell a position, which come when they come."""
        whole = self.body[: self.body.rfind(b"\n") + 1]
        return [line for line in whole.splitlines() if not line.startswith(POSITION)]

    def close(self) -> None:
        self._goes.set()
        self._sock.shutdown(socket.SHUT_RDWR)
        self.join(WAIT_S)
        self._sock.close()


@contextmanager
def listeners(*made: Listener) -> Iterator[tuple[Listener, ...]]:
    try:
        yield made
    finally:
        for each in made:
            each.close()


@pytest.fixture
def shop() -> Database:
    return Database(groups=[sale(1)])


def tail_of(relay: Relay) -> Tail:
    return relay._commands._tails["shop"]


def all_stand(relay: Relay, count: int) -> None:
    """Wait until so many are at the tail and have been sent everything."""

    def stand() -> bool:
        tail = relay._commands._tails.get("shop")
        return tail is not None and [each.next for each in tail._followers] == [tail._end] * count

    until(stand, f"{count} followers at the tail")


def spy(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The calls of a function from now on."""
    calls: list[Any] = []
    real = getattr(owner, name)

    def noting(*args: Any, **more: Any) -> Any:
        calls.append(args)
        return real(*args, **more)

    monkeypatch.setattr(owner, name, noting)
    return calls


def publish_one_by_one(relay: Relay, shop: Database, scns: range, make: Callable[[int], Any] = sale) -> None:
    for scn in scns:
        shop.add(make(scn))
        published(relay, "shop", scn)


def test_what_is_published_is_read_once_for_all_who_stand_at_the_end(
    tmp_path: Path, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        with listeners(*(Listener(relay, start="latest") for _ in range(20))) as crowd:
            all_stand(relay, 20)
            walks, reads = spy(monkeypatch, _chunk, "scan"), spy(monkeypatch, Cursor, "read")
            publish_one_by_one(relay, shop, range(2, 42))
            expected = get(relay, "/stream", output="frames", scn=1).body
            for each in crowd:
                each.wait_for(expected)
            assert len(walks) <= 40
            assert len(reads) == 1  # ours


def test_equal_followers_of_json_are_rendered_for_once(
    tmp_path: Path, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        with listeners(*(Listener(relay, is_json=True, start="latest") for _ in range(5))) as crowd:
            all_stand(relay, 5)
            renders = spy(monkeypatch, Renderer, "rows")
            publish_one_by_one(relay, shop, range(2, 32))
            end = get(relay, "/stream", output="json", scn=1).body.splitlines()[-1] + b"\n"
            until(lambda: all(each.body.endswith(end) for each in crowd), "the last position, for each")
            assert all(len(each.rows()) == 60 for each in crowd)
            assert len(renders) <= 30
            assert len({each.body for each in crowd}) == 1
            ids = [json.loads(line).get("id") for line in crowd[0].rows()]
            assert ids[::2] == list(range(2, 32))
            last = json.loads(crowd[0].body.splitlines()[-1])
            assert last["_position"]["scn"] == 31


def test_a_large_transaction_is_rendered_for_once_too_and_not_in_the_loop(
    tmp_path: Path, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        with listeners(*(Listener(relay, is_json=True, start="latest") for _ in range(3))) as crowd:
            all_stand(relay, 3)
            threads: list[str] = []
            rows = Renderer.rows
            monkeypatch.setattr(
                Renderer, "rows", lambda self, c: (threads.append(threading.current_thread().name), rows(self, c))[1]
            )
            shop.add(*parts(2, 1, rows_each=1000), order(3))
            until(lambda: all(len(each.rows()) == 1001 for each in crowd), "all rows for each")
            assert len(threads) <= 2
            assert threads[0] != "relay-http"


def test_a_filter_is_applied_once_for_all_who_want_the_same(
    tmp_path: Path, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        names = ["main.stock", "main.orders", "main.st*"]
        with listeners(*(Listener(relay, start="latest", sources=name) for name in names * 4)) as crowd:
            all_stand(relay, 12)
            made = spy(monkeypatch, _chunk.TailChunk, "content_of")
            publish_one_by_one(relay, shop, range(2, 22))
            for each in crowd:
                each.wait_for(_alone(relay, each, 1))
            assert len(made) <= 3 * 20


def _alone(relay: Relay, listener: Listener, scn: int) -> bytes:
    """What the log's files hold of what this listener wants."""
    query = {name: value for name, value in listener.query.items() if name != "start"}
    return get(relay, "/stream", output="frames", scn=scn, **query).body


def test_what_is_published_while_a_socket_is_full_goes_out_together(
    tmp_path: Path, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The further behind, the more at a time."""
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        with listeners(Listener(relay, start="latest")) as (slow,):
            all_stand(relay, 1)
            slow.pause()
            (follower,) = tail_of(relay)._followers
            scn = 2
            while not follower.is_blocked:
                publish_one_by_one(relay, shop, range(scn, scn + 1), lambda n: parts(n, 1, rows_each=2000)[0])
                scn += 1
            publish_one_by_one(relay, shop, range(scn, scn + 200))
            sends = spy(monkeypatch, follower.sender, "try_write")
            slow.resume()
            slow.wait_for(get(relay, "/stream", output="frames", scn=1).body)
            most = max(len(buffers) for buffers, *_ in sends)
            assert most > 10
            assert tail_of(relay)._followers == {follower}


@pytest.mark.parametrize("is_json", [False, True])
def test_who_cannot_keep_up_leaves_memory_for_the_files_and_misses_nothing(
    tmp_path: Path, shop: Database, is_json: bool
) -> None:
    with scripted(tmp_path, {"shop": shop}, serve={"tail_bytes_max": 300_000}) as relay:
        published(relay, "shop", 1)
        quick = Listener(relay, is_json=is_json, start="latest")
        slow = Listener(relay, is_json=is_json, start="latest", client="slow")
        with listeners(quick, slow):
            all_stand(relay, 2)
            slow.pause()
            tail = tail_of(relay)
            held = []
            scn = 2
            while len(tail._followers) > 1:
                publish_one_by_one(relay, shop, range(scn, scn + 1), lambda n: parts(n, 1, rows_each=300)[0])
                held.append(tail._bytes)
                scn += 1
            publish_one_by_one(relay, shop, range(scn, scn + 50))
            assert max(held) < 1_000_000
            slow.resume()
            if is_json:
                expected = get(relay, "/stream", output="json", scn=1).body.splitlines()
                rows = [line for line in expected if not line.startswith(POSITION)]
                until(lambda: all(each.body.endswith(expected[-1] + b"\n") for each in (slow, quick)), "all rows")
                assert slow.rows() == quick.rows() == rows
            else:
                expected_bytes = get(relay, "/stream", output="frames", scn=1).body
                slow.wait_for(expected_bytes)
                quick.wait_for(expected_bytes)
            all_stand(relay, 2)
            shop.add(order(scn + 50))
            all_stand(relay, 2)
            until(lambda: slow._received[-100:] == quick._received[-100:], "the last one")


def test_with_nobody_at_the_end_nothing_is_read_nor_held(
    tmp_path: Path, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        with listeners(Listener(relay, start="latest")):
            all_stand(relay, 1)
            publish_one_by_one(relay, shop, range(2, 5))
            until(lambda: tail_of(relay)._bytes > 0)
        until(lambda: not tail_of(relay)._followers)
        reads = spy(monkeypatch, _tail, "read_chunk")
        publish_one_by_one(relay, shop, range(5, 10))
        assert (tail_of(relay)._bytes, len(tail_of(relay)._chunks), reads) == (0, 0, [])


FILTERS = (
    {"where": "id > 40 OR id < 3"},
    {"where": "id > 40 OR id < 3", "columns": "id"},
    {"partition": "1/3"},
    {"filters": {"main.orders": {"where": "name LIKE 'n%'", "columns": ["id"]}}, "partition": "0/2"},
)


def _mixed(scn: int, rng: random.Random) -> list[Any]:
    kind = rng.random()
    if kind < 0.05:
        return [truncate(scn)]
    if kind < 0.15:
        return parts(scn, rng.randint(1, 4), rows_each=rng.choice([10, 10, 300, 1500]))
    return [sale(scn) if kind < 0.6 else order(scn, "n" * rng.randint(0, 500))]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
@pytest.mark.parametrize("tail_bytes_max", [0, 50_000, 16 << 20])
def test_every_follower_of_a_crowd_gets_what_it_would_get_alone(tmp_path: Path, seed: int, tail_bytes_max: int) -> None:
    """Whatever it asks for, wherever it begins, and however often it stops reading: from memory and from files, over
    segments, the same bytes."""
    rng = random.Random(seed)
    shop = Database(groups=[sale(1)])
    last = 80
    options = {
        "serve": {"tail_bytes_max": tail_bytes_max},
        "log": {"segment_bytes_max": 400_000},
        "capture": {"progress_ms": 3_600_000},
    }
    with scripted(tmp_path, {"shop": shop}, **options) as relay:
        published(relay, "shop", 1)
        crowd: list[Listener] = []
        known, scn = 1, 2
        try:
            while scn <= last:
                burst = rng.choice([1, 1, 1, 5, 20])
                shop.add(*(each for n in range(scn, scn + burst) for each in _mixed(n, rng)))
                scn += burst
                if rng.random() < 0.7:
                    published(relay, "shop", known := scn - 1)
                if len(crowd) < 12:
                    query: dict[str, Any] = {"scn": rng.randint(0, known)}
                    if rng.random() < 0.5:
                        query["sources"] = rng.choice(["main.stock", "main.orders", "main.*"])
                    if rng.random() < 0.3:
                        query["to"] = rng.randint(query["scn"] + 1, last)
                    query |= rng.choice([{}, *FILTERS])
                    crowd.append(Listener(relay, is_json=rng.random() < 0.3, **query))
                for each in crowd:
                    if rng.random() < 0.2:
                        rng.choice([each.pause, each.resume])()
            published(relay, "shop", scn - 1)
            for each in crowd:
                each.resume()
                alone = get(relay, "/stream", output="json" if each.is_json else "frames", **each.query).body
                if not each.is_json:
                    each.wait_for(alone)
                    parse_frames(each.body)
                    continue
                end = alone.splitlines()[-1] + b"\n"
                until(lambda each=each, end=end: each.body.endswith(end), f"the end of {each.query}")
                assert each.rows() == [line for line in alone.splitlines() if not line.startswith(POSITION)]
        finally:
            for each in crowd:
                each.close()


def test_a_second_reader_of_the_log_is_served_without_a_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked once by this relay, then handed out in large pieces."""
    shop = Database(groups=[order(scn, "n" * 200) for scn in range(1, 3000)])
    with scripted(tmp_path, {"shop": shop}, log={"segment_bytes_max": 1 << 20}) as relay:
        published(relay, "shop", 2999)
        whole = get(relay, "/stream", output="frames").body
        walked: list[int] = []
        scan = _scan.scan

        def counting(*args: Any, **more: Any) -> Any:
            for each in scan(*args, **more):
                walked.append(1)
                yield each

        monkeypatch.setattr(_cursor, "scan", counting)
        assert get(relay, "/stream", output="frames").body == whole
        assert len(walked) < 200  # of 2,999: what is left to fill a piece
        from_middle = get(relay, "/stream", output="frames", scn=1500).body
        assert whole.endswith(from_middle)
        assert len(walked) < 200  # to the next entry of the index


def test_a_reader_of_a_rare_table_gets_on_with_every_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent the commit frames that it passes, so its position advances however long the log is."""
    groups = [parts(scn, 1, rows_each=2000)[0] for scn in range(1, 41)]
    shop = Database(groups=[*groups, sale(41)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 41)
        monkeypatch.setattr(_scan, "SCAN_BYTES_MAX", 1_000_000)
        scn, answers = 0, 0
        while scn < 41:
            got = get(relay, "/stream", output="frames", sources="main.stock", scn=scn, max_bytes=1 << 20).groups
            assert got[-1].commit.last_scn > scn
            scn, answers = got[-1].commit.last_scn, answers + 1
        assert answers > 5
        assert [frame.header.rows for frame in got[-1].rows] == [1]
        with listeners(Listener(relay, sources="main.stock")) as (follower,):
            follower.wait_for(get(relay, "/stream", output="frames", sources="main.stock").body)


def test_a_follower_has_its_headers_before_a_slow_disk_has_answered(
    tmp_path: Path, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        expected = get(relay, "/stream", output="frames").body
        monkeypatch.setattr(_stream, "HEADERS_MS_MAX", 10)
        is_read = threading.Event()
        read = Cursor.read
        monkeypatch.setattr(Cursor, "read", lambda *a, **more: (is_read.wait(WAIT_S), read(*a, **more))[1])
        with listeners(Listener(relay)) as (follower,):
            until(lambda: follower.has_headers, "the headers")
            assert not follower.body
            assert b"x-dbus-published: 1\r\n" in follower._received
            is_read.set()
            follower.wait_for(expected)


def test_scans_of_a_long_log_take_turns_with_those_who_read_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight who look for a rare table, in four threads that do what they are given in turn: each time one step, so that
    another's read waits for a step of theirs, not for all.
    """
    shop = Database(groups=[order(scn) for scn in range(1, 2001)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 2000)
        monkeypatch.setattr(_scan, "SCAN_BYTES_MAX", 20_000)
        turns: list[int] = []  # how often each read
        this = threading.local()
        in_thread, read = _stream.Streaming._in_thread, Cursor.read

        def counted(work: Callable[[], Any]) -> Any:
            this.reads = 0
            try:
                return work()
            finally:
                turns.append(this.reads)

        def counting(cursor: Cursor, *args: Any, **more: Any) -> Any:
            this.reads = getattr(this, "reads", 0) + 1
            return read(cursor, *args, **more)

        monkeypatch.setattr(Cursor, "read", counting)
        monkeypatch.setattr(_stream.Streaming, "_in_thread", lambda it, work: in_thread(it, lambda: counted(work)))
        with listeners(*(Listener(relay, sources="main.stock") for _ in range(8))) as scanning:
            until(lambda: len(turns) > 8)
            assert get(relay, "/stream", output="frames", scn=1999).groups
            for each in scanning:
                each.wait_for(get(relay, "/stream", output="frames", sources="main.stock").body)
        assert max(turns) == 1
        assert sum(turns) > 8 * 20, "it takes many"


def test_who_stands_at_an_end_that_cannot_be_read_is_served_from_the_files(
    tmp_path: Path, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong in what all share, each goes on by itself, and is told by itself what is wrong."""
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        with listeners(*(Listener(relay, start="latest") for _ in range(3))) as crowd:
            all_stand(relay, 3)

            def broken(cursor: Cursor) -> None:
                raise OSError(5, "Input/output error")

            monkeypatch.setattr(_tail, "read_chunk", broken)
            publish_one_by_one(relay, shop, range(2, 12))
            for each in crowd:
                each.wait_for(get(relay, "/stream", output="frames", scn=1).body)
            monkeypatch.undo()
            all_stand(relay, 3)
            publish_one_by_one(relay, shop, range(12, 15))
            for each in crowd:
                each.wait_for(get(relay, "/stream", output="frames", scn=1).body)
            all_stand(relay, 3)


def test_stopping_the_relay_ends_who_stands_at_the_tail(tmp_path: Path, shop: Database) -> None:
    """Between two groups; who asked for more than there is sees a cut, not an end."""
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        crowd = [Listener(relay, start="latest"), Listener(relay, start="latest", to=100)]
        all_stand(relay, 2)
        shop.add(sale(2))
        expected = get(relay, "/stream", output="frames", scn=1, wait_ms=20_000).body
        for each in crowd:
            each.wait_for(expected)
    for each in crowd:
        each.join(WAIT_S)
        assert not each.is_alive()
    assert [each.was_cut for each in crowd] == [False, True]
