"""A chained relay: its log is another's, byte for byte, so any position in one is a position in the other."""

import random
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from databus.core import ConfigError, Identity
from databus.link import RelayClient
from databus.log import End, Log, LogOrigin
from databus.relay import Relay, State, parse_relay
from databus.sources import parse_source
from databus.wire import Commit, Group, Rows, position_after
from tests.relay.support import (
    ORDERS,
    Database,
    commit_of,
    get,
    order,
    parse_frames,
    parts,
    post,
    published,
    rows_of,
    sale,
    scns,
    scripted,
    state_of,
    truncate,
    until,
    wait_for_state,
)

LATEST = {"start": "latest"}
QUICK = {
    "listen": "127.0.0.1:0",
    "folder": "relay",
    "capture": {"poll_ms": 20, "retry_ms_min": 1, "retry_ms_max": 50},
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def plain(folder: Path, source: Mapping[str, Any]) -> Iterator[Relay]:
    """A relay that captures a database."""
    with Relay(parse_relay({**QUICK, "sources": {"shop": source}}, folder=folder)) as relay:
        yield relay


@contextmanager
def chained(folder: Path, upstream: Relay | str, name: str = "shop", **options: Any) -> Iterator[Relay]:
    url = upstream if isinstance(upstream, str) else upstream.url
    value = {
        **QUICK,
        "sources": {name: {"type": "relay", "url": url, **options.pop("source", {})}},
        "log": {"fsync_interval_ms": 5, "free_bytes_min": 0, **options.pop("log", {})},
        **options,
    }
    with Relay(parse_relay(value, folder=folder)) as relay:
        yield relay


def frames(relay: Relay, **query: Any) -> bytes:
    return get(relay, "/stream", output="frames", start="earliest", wait_ms=0, **query).body


def position(relay: Relay, scn: int) -> Any:
    return get(relay, "/position", scn=scn).json["position"]


def test_a_chained_log_is_its_origin_byte_for_byte(tmp_path):
    database = Database(groups=[order(1), sale(2), *parts(3, 3), truncate(4)])
    with scripted(tmp_path / "a", {"shop": database}) as first, chained(tmp_path / "b", first) as second:
        published(second, "shop", 4)
        assert frames(second) == frames(first)
        database.add(order(5, "x" * 300_000), sale(6))
        published(second, "shop", 6)
        assert frames(second) == frames(first)
        for path in ("/sources?v=2", "/register", "/position?start=latest", "/position?start=earliest"):
            assert get(second, path).json == get(first, path).json


def test_a_new_copy_begins_where_it_is_told_to_and_answers_410_for_what_is_before(tmp_path):
    small = {"segment_bytes_max": 4096, "retention_bytes_max": 8192}
    database = Database(groups=[order(n, "x" * 500) for n in range(1, 41)])
    with scripted(tmp_path / "a", {"shop": database}, log=small) as first:
        published(first, "shop", 40)
        first.captures["shop"].log.retain()
        oldest = get(first, "/position", start="earliest").json["position"]["scn"]
        assert oldest > 0
        with chained(tmp_path / "b", first) as all_of_it, chained(tmp_path / "c", first, source=LATEST) as latest:
            published(all_of_it, "shop", 40)
            until(lambda: latest.captures["shop"].log, "a log")
            assert frames(all_of_it) == frames(first)
            assert get(all_of_it, "/position", start="earliest").json["position"]["scn"] == oldest
            assert get(all_of_it, "/stream", start="beginning").status == 410
            assert get(latest, "/stream", from_=position(first, 39)).status == 410
            database.add(order(41))
            published(latest, "shop", 41)
            assert frames(latest) == get(first, "/stream", output="frames", from_=position(first, 40)).body
            assert get(latest, "/sources?v=2").json == get(first, "/sources?v=2").json
        with chained(tmp_path / "d", first, source={"start": "beginning"}) as refused:
            assert "the beginning has left the log" in wait_for_state(refused, State.SUSPENDED_ON_ERROR)["message"]


def test_any_position_is_good_at_every_relay_of_a_chain_inside_snapshots_and_large_transactions_too(tmp_path, seed):
    """From any position at any of them, the rest of the stream is the same, read a little here and a little there."""
    chance = random.Random(seed)
    options = {"type": "mock", "transactions_total": 40, "rows_per_transaction": 40, "group_bytes_max": 3000}
    with plain(tmp_path / "a", {**options, "chunk_rows": 7, "group_transactions_max": 2}) as first:
        published(first, "shop", 40)
        assert post(first, "/controlSources/snapshot", sources="shop", tables="main.events").status == 200
        until(lambda: state_of(first)["snapshotRows"] and not state_of(first)["snapshots"], "the snapshot")
        with chained(tmp_path / "b", first) as second, chained(tmp_path / "c", second) as third:
            relays = [first, second, third]
            until(lambda: frames(third) == frames(first), "the copy of the copy")
            whole = [bytes(b"".join(group.pieces)) for group in parse_frames(frames(first))]
            for _ in range(5):
                at, read = RelayClient(first.url).position("shop", start="earliest"), []
                while len(read) < len(whole):
                    client = RelayClient(chance.choice(relays).url)
                    size = chance.choice([1, 1, 9000, 60_000])
                    with client.stream("shop", at, wait_ms=0, bytes_max=size) as stream:
                        groups = [group for some in stream for group in some]
                    before = at
                    for group in groups:
                        commit = Commit.from_header(group.commit)
                        at = position_after(commit, at, uuid=stream.uuid, log=stream.log)
                    assert at != before
                    read += [bytes(b"".join(group.pieces)) for group in groups]
                assert read == whole
            assert any(b'"snapshots"' in each for each in whole)
            assert any(group.commit.continues for group in parse_frames(b"".join(whole)))


def test_a_snapshot_that_is_asked_for_at_a_copy_is_read_upstream(tmp_path):
    source = {"type": "mock", "transactions_total": 5}
    with plain(tmp_path / "a", source) as first, chained(tmp_path / "b", first) as second:
        published(second, "shop", 5)
        assert post(second, "/controlSources/snapshot", sources="shop", tables="main.events").status == 200
        until(lambda: state_of(second)["snapshotRows"] and not state_of(second)["snapshots"], "the snapshot")
        until(lambda: frames(second) == frames(first), "the same")
        refused = post(second, "/controlSources/snapshot", sources="shop", tables="main.evens")
        assert refused.status == 404
        assert "main.events" in refused.json["message"]


def test_a_token_that_may_not_see_all_is_refused_a_copy_and_one_that_may_not_control_a_snapshot(tmp_path):
    for name in ("some", "read"):
        (tmp_path / name).write_text(f"{name}-token-1234\n")
    access = [
        {"name": "some", "token_file": str(tmp_path / "some"), "tables": ["shop/main.orders"]},
        {"name": "read", "token_file": str(tmp_path / "read")},
    ]
    database = Database(groups=[order(1), sale(2)])
    with scripted(tmp_path / "a", {"shop": database}, access=access) as first:
        with chained(tmp_path / "b", first, source={"token_file": str(tmp_path / "some")}) as second:
            assert "not limited by tables" in wait_for_state(second, State.SUSPENDED_ON_ERROR)["message"]
        with chained(tmp_path / "c", first, source={"token_file": str(tmp_path / "read")}) as second:
            published(second, "shop", 2)
            refused = post(second, "/controlSources/snapshot", sources="shop", tables="main.orders")
            assert refused.status == 403
            assert f"ask there: {'/controlSources/snapshot'}: needs the right" in refused.json["message"]
            assert first.url in refused.json["message"]


def test_a_copy_waits_for_an_upstream_that_is_away_and_serves_what_it_has(tmp_path):
    database = Database(groups=[order(1), sale(2)])
    with scripted(tmp_path / "a", {"shop": database}) as first:
        url, port = first.url, int(first.url.rpartition(":")[2])
        with ExitStack() as stack:
            second = stack.enter_context(chained(tmp_path / "b", first))
            published(second, "shop", 2)
            before = frames(second)
            first.stop()
            waiting = wait_for_state(second, State.ERROR_RETRY)
            assert waiting["status"] == "retrying"
            assert url.removeprefix("http://") in waiting["message"]
            assert frames(second) == before
            database.add(order(3))
            with scripted(tmp_path / "a", {"shop": database}, listen=f"127.0.0.1:{port}") as again:
                published(second, "shop", 3)
                wait_for_state(second, State.RUNNING)
                assert frames(second) == frames(again)
                until(lambda: state_of(second)["lagMs"] == 12.5, "upstream's own lag, once all of it is here")


def test_commit_frames_that_only_repeat_the_last_one_are_copied_too_though_they_were_written_meanwhile(tmp_path):
    database = Database(groups=[order(1), sale(2)])
    with scripted(tmp_path / "a", {"shop": database}, capture={"progress_ms": 100}) as first:
        for _ in range(2):
            with chained(tmp_path / "b", first) as second:
                published(second, "shop", 2)
                whole = frames(first)
                until(lambda two=second, one=whole: frames(two).startswith(one), "the same")
            count = first.captures["shop"].counters.progress
            until(lambda seen=count: first.captures["shop"].counters.progress > seen + 2, "signs of life")
        assert len(parse_frames(whole)) > 4


def test_another_log_upstream_stops_a_copy_or_begins_a_new_one_as_it_is_configured(tmp_path):
    database = Database(groups=[order(1), sale(2)])
    with scripted(tmp_path / "a", {"shop": database}) as first, chained(tmp_path / "b", first) as second:
        published(second, "shop", 2)
        port, uuid = int(first.url.rpartition(":")[2]), second.captures["shop"].log.uuid
        first.stop()
        (tmp_path / "a" / "relay" / "shop").rename(tmp_path / "a" / "moved")
        with scripted(tmp_path / "a", {"shop": database}, listen=f"127.0.0.1:{port}") as anew:
            stopped = wait_for_state(second, State.SUSPENDED_ON_ERROR)
            assert "on_new_log: begin" in stopped["message"]
            assert stopped["error"] == "SourceChanged"
            assert scns(get(second, "/stream", output="frames")) == [1, 2], "what it has is served"
            second.stop()
            with chained(tmp_path / "b", anew, source={"on_new_log": "begin"}) as third:
                until(lambda: third.captures["shop"].log and third.captures["shop"].log.uuid != uuid, "a new log")
                published(third, "shop", 2)
                assert frames(third) == frames(anew)
                assert [each.name for each in (tmp_path / "b" / "relay" / ".former").iterdir()] == [f"shop-{uuid}"]


def test_streams_of_a_log_that_a_new_one_takes_the_place_of_end(tmp_path):
    database = Database(groups=[order(1), sale(2)])
    with scripted(tmp_path / "a", {"shop": database}) as first:
        begin = {"on_new_log": "begin"}
        with chained(tmp_path / "b", first, source=begin) as second:
            published(second, "shop", 2)
            client = RelayClient(second.url)
            with client.stream("shop", client.position("shop", start="latest"), follow=True) as stream:
                log, port = stream.log, int(first.url.rpartition(":")[2])
                first.stop()
                (tmp_path / "a" / "relay" / "shop").rename(tmp_path / "a" / "moved")
                with scripted(tmp_path / "a", {"shop": database}, listen=f"127.0.0.1:{port}"):
                    assert list(stream) == []
                    until(lambda: second.captures["shop"].log, "the new log")
                    published(second, "shop", 2)
                    assert client.head("shop").log != log


def test_what_upstream_no_longer_holds_stops_a_copy(tmp_path):
    database = Database(groups=[order(1), sale(2)])
    small = {"segment_bytes_max": 4096, "retention_bytes_max": 8192}
    with scripted(tmp_path / "a", {"shop": database}, log=small) as first:
        with chained(tmp_path / "b", first) as second:
            published(second, "shop", 2)
        database.add(*(order(n, "x" * 500) for n in range(3, 60)))
        published(first, "shop", 59)
        until(lambda: get(first, "/position", start="earliest").json["position"]["scn"] > 2, "retention")
        with chained(tmp_path / "b", first) as second:
            stopped = wait_for_state(second, State.SUSPENDED_ON_ERROR)
            assert stopped["error"] == "PositionPurged"
            assert "no longer holds what follows SCN 2" in stopped["message"]
            assert stopped["remedy"] is None
            assert scns(get(second, "/stream", output="frames")) == [1, 2]


def test_a_loop_and_another_name_are_refused_with_both_names(tmp_path):
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        relays = [
            stack.enter_context(chained(tmp_path / str(n), urls[1 - n], listen=f"127.0.0.1:{ports[n]}"))
            for n in range(2)
        ]
        for relay in relays:
            message = wait_for_state(relay, State.SUSPENDED_ON_ERROR)["message"]
            assert "a loop of relays" in message
            assert all(url in message for url in urls)
    own = free_port()
    with chained(tmp_path / "own", f"http://127.0.0.1:{own}", listen=f"127.0.0.1:{own}") as itself:
        assert "a loop of relays" in wait_for_state(itself, State.SUSPENDED_ON_ERROR)["message"]
    database = Database(groups=[order(1)])
    with scripted(tmp_path / "a", {"shop": database}) as first, chained(tmp_path / "b", first, name="store") as other:
        message = wait_for_state(other, State.SUSPENDED_ON_ERROR, "store")["message"]
        assert "'store'" in message
        assert "there are shop" in message


def test_what_is_left_of_a_group_of_which_a_part_is_there_already_is_taken(tmp_path):
    """Upstream has lost the end of its log with its machine, and captures it again in other groups."""
    database = Database(groups=[order(1), sale(2)])
    with scripted(tmp_path / "a", {"shop": database}) as first, chained(tmp_path / "b", first) as second:
        published(second, "shop", 2)
        port = int(first.url.rpartition(":")[2])
        log = second.captures["shop"].log.uuid
        first.stop()
        joined = Group(commit_of(3, 1), (rows_of(ORDERS, 1, [{"id": 1, "name": "a"}]),))
        rows = pa.concat_batches([order(1).rows[0].batch, sale(2).rows[0].batch, order(3).rows[0].batch])
        joined = Group(commit_of(3, 1), (Rows(ORDERS, rows), sale(2).rows[1]))
        shutil.rmtree(tmp_path / "a" / "relay" / "shop")
        identity = Identity(database.uuid, "count", "script shop")
        origin = LogOrigin(log, identity, (), End(1, 0, -1, Commit(0, 0, "", {}, 0), 0), {})
        Log.open(tmp_path / "a" / "relay" / "shop", physical="shop", identity=identity, origin=origin).close()
        database.groups[:] = [joined]
        with scripted(tmp_path / "a", {"shop": database}, listen=f"127.0.0.1:{port}"):
            published(second, "shop", 3)
            groups = get(second, "/stream", output="frames").groups
            assert [group.commit.last_scn for group in groups] == [1, 2, 3]
            assert groups[2].rows[0].batch.column("id").to_pylist() == [3]
            assert len(groups[2].rows) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": "http://a:1", "tables": ["main.*"]}, "`tables`: a copy has all"),
        ({"url": "http://a:1", "ids": {"main.orders": 7}}, "`ids`"),
        ({"url": "http://a:1", "ca_file": "ca.pem"}, "https"),
        ({"url": "a:1"}, "url"),
        ({"url": "http://a:1", "start": "now"}, "start"),
    ],
)
def test_options_that_a_copy_cannot_have_are_refused(options, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        parse_source({"type": "relay", **options}, "sources.shop")
