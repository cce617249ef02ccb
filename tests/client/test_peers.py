"""Several relays of one database: a client goes on at another from where it stands; what it has done stays right."""

import logging
import random
import socket
import threading
from contextlib import contextmanager

import pytest

from databus.client import Client, ClientConfig, FollowConfig, windows
from databus.core import (
    UNBEGUN,
    AccessDenied,
    Checkpoint,
    ConfigError,
    ControlKind,
    MalformedRequest,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
)
from databus.link import Channel, Reader, RelayClient
from databus.testing import RelayProcess
from databus.wire import Group
from tests.client.conftest import Collector, captured, mock, wait_for
from tests.client.stub import Stub, mock_groups
from tests.relay.support import ORDERS, Database, published, sale, scripted

QUICK = FollowConfig(backoff_first_ms=1, backoff_ms_max=5, reread_after_ms=0)


@pytest.fixture
def nobody():
    """An address where nobody answers."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextmanager
def two_stubs(transactions=2, **options):
    """Relays of the same groups, each with a log of its own."""
    source, groups = mock_groups(transactions, **options)
    with Stub(source, groups) as a, Stub(source, groups) as b:
        b.log = "log-2"
        yield source, a, b


def failure(status, name=""):
    return status, {"x-dbus-error": name}, b""


def test_of_several_addresses_the_one_that_answers_is_kept(nobody, caplog):
    with two_stubs() as (_, a, b):
        relay = RelayClient([nobody, a.url, b.url])
        assert relay.sources()
        relay.sources()
        assert len(a.requests) == 2
        assert b.requests == []
        assert "another relay is asked from now on" in caplog.text
        a.fail = failure(503)
        relay.sources()
        a.fail = None
        relay.sources()
        assert len(a.requests) == 3, "one that is back is not preferred by itself"
        assert len(b.requests) == 2


@pytest.mark.parametrize("text", ["{0},{1}", "{0}, {1}"])
def test_several_addresses_are_a_list_or_one_text(text, nobody):
    with two_stubs() as (_, a, _b):
        assert RelayClient(text.format(nobody, a.url)).sources()
    with pytest.raises(ConfigError):
        RelayClient([])
    with pytest.raises(ConfigError):
        RelayClient(f"{a.url},")


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_relay_that_cannot_answer_is_left_for_another(status):
    with two_stubs() as (_, a, b):
        a.fail = failure(status)
        assert RelayClient([a.url, b.url]).sources()


@pytest.mark.parametrize(("status", "expected"), [(400, MalformedRequest), (401, AccessDenied)])
def test_what_the_asker_did_wrong_is_told_at_once(status, expected):
    with two_stubs() as (_, a, b):
        a.fail = failure(status, expected.__name__)
        with pytest.raises(expected):
            RelayClient([a.url, b.url]).sources()
        assert b.requests == []


@pytest.mark.parametrize(("status", "expected"), [(409, PositionForeign), (410, PositionPurged)])
def test_a_position_that_one_does_not_have_is_looked_for_at_the_others(status, expected, nobody, caplog):
    position = SourceCheckpoint("uuid-1", 1)
    with two_stubs() as (_, a, b):
        relay = RelayClient([a.url, b.url])
        a.fail = failure(status, expected.__name__)
        relay.stream("shop", position).close()
        relay = RelayClient([a.url, b.url])
        b.fail = a.fail
        with pytest.raises(expected) as told:
            relay.stream("shop", position)
        assert all(url.removeprefix("http://") in str(told.value) for url in (a.url, b.url))
        caplog.clear()
        relay = RelayClient([nobody, a.url])
        for _ in range(2):
            with pytest.raises(ServiceUnavailable, match="none of 2 relays"):  # the one that is away may have it
                relay.stream("shop", position)
        assert caplog.text.count("cannot go on from here") == 1


def test_a_transaction_that_was_given_out_in_part_comes_again_from_the_other_relay():
    with two_stubs(rows_per_transaction=400, group_bytes_max=20_000) as (source, a, b):
        a.groups_max = 3  # of the first transaction; then it is away
        with windows([a.url, b.url], config=QUICK) as following:
            for _ in range(3):
                assert next(following).is_part
            again = [next(following)]
            assert again[0].restarts
            while again[-1].scn < 2 or again[-1].continues:
                again.append(next(following))
            assert again[-1].position.log is None
        assert not any(window.restarts for window in again[1:])
        assert sum(map(len, again)) == sum(source.expected_rows(table.source, 2) for table in source.tables())


def test_nothing_is_left_out_where_the_other_relay_gave_nothing_before_the_first_is_back():
    with two_stubs(rows_per_transaction=400, group_bytes_max=20_000) as (source, a, b):
        a.groups_max, b.groups_max = 3, 0
        with windows([a.url, b.url], config=QUICK) as following:
            rows = sum(len(next(following)) for _ in range(3))
            wait_for(lambda: b.away, "the other relay's answer and end")
            a.groups_max = None
            a.away.clear()
            scn, continues = 1, True
            while scn < 2 or continues:
                window = next(following)
                assert not window.restarts
                rows, scn, continues = rows + len(window), window.scn, window.continues
        assert rows == sum(source.expected_rows(table.source, 2) for table in source.tables())


def test_a_relay_that_falls_silent_is_left():
    with two_stubs() as (_, a, b):
        a.groups_max, a.is_silent = None, True
        relay = RelayClient([a.url, b.url], read_ms_max=300)
        with windows(relay, config=QUICK) as following:
            assert [next(following).scn for _ in range(2)] == [1, 2]
            wait_for(lambda: any(path.startswith("/stream") for path in b.requests), "the other's turn")


def test_a_relay_that_answers_and_cuts_every_response_is_left():
    with two_stubs() as (_, a, b):
        cut = {"content-length": "100", "connection": "close", "x-dbus-uuid": "uuid-1", "x-dbus-log": "log-1"}
        a.fail = 200, cut, b""
        channel = Channel(threading.Condition(), 1 << 20)
        reader = Reader(RelayClient([a.url, b.url]), "shop", SourceCheckpoint(), channel, config=QUICK)
        wait_for(lambda: reader.position.scn == 2, "the groups of the other")
        reader.close()


def test_callbacks_go_on_at_another_address(relay_of):
    options = mock(transactions_total=400, transactions_per_s=400)
    a, b = relay_of("a", shop=options), relay_of("b", shop=options)
    consumer = Collector()
    with Client([a.url, b.url], consumer) as client:
        client.start()
        consumer.wait("shop", 20)
        a.stop()
        consumer.wait("shop", 400)
    assert consumer.scns["shop"] == list(range(1, 401))


def test_nothing_is_lost_when_the_relay_that_serves_is_killed(tmp_path, seed):
    dice = random.Random(seed)
    sources = {"shop": mock(transactions_total=200, transactions_per_s=200)}
    consumer = Collector()
    with RelayProcess(tmp_path / "a", sources) as a, RelayProcess(tmp_path / "b", sources) as b:
        config = ClientConfig(follow=QUICK, checkpoint_ms=50)
        with Client([a.url, b.url], consumer, config=config) as client:
            client.start()
            consumer.wait("shop", dice.randint(1, 60))
            a.kill()
            consumer.wait("shop", 200)
    assert consumer.scns["shop"] == list(range(1, 201))


@pytest.mark.parametrize("start", ["windows", "client"])
def test_an_address_of_another_database_is_refused_and_both_are_named(start, relay_of):
    a = relay_of("a", shop=mock(transactions_total=3))
    captured(a, 3)
    others = [relay_of("b", shop=mock(transactions_total=3, seed=7)), relay_of("c", crm=mock(transactions_total=3))]
    captured(others[0], 3)
    for other, said in zip(others, ["serves database", "captures crm, and the .* has shop"], strict=True):
        with pytest.raises(ConfigError, match=said) as told:
            if start == "windows":
                windows([a.url, other.url])
            else:
                Client([a.url, other.url], Collector()).run()
        assert all(each.url.removeprefix("http://") in str(told.value) for each in (a, other))


def test_another_database_that_is_reached_later_is_refused(relay_of, nobody):
    a = relay_of("a", shop=mock(transactions_total=3))
    captured(a, 3)
    with windows(a.url, follow=False) as following:
        stored = list(following)[-1].checkpoint
    other = relay_of("b", shop=mock(transactions_total=9, seed=7))
    captured(other, 9)
    with windows([other.url], checkpoint=stored, config=QUICK) as following, pytest.raises(PositionForeign):
        next(following)


# snapshots


class Copy:
    """The rows of a table as a consumer's copy holds them: snapshots begin it anew."""

    def __init__(self):
        self.rows, self.is_whole = {}, False

    def take(self, window):
        if window.control is not None:
            if window.control.kind == ControlKind.SNAPSHOT_BEGIN:
                self.rows, self.is_whole = {}, False
            self.is_whole |= window.control.kind == ControlKind.SNAPSHOT_END
        for row in window.rows():
            if row.op == "delete":
                self.rows.pop(row.key, None)
            else:
                self.rows[row.key] = dict(row)


def whole_of(relay):
    # Whoever has ended may have asked for one more snapshot, which begins the table anew: it is read to its end first.
    wait_for(lambda: not relay.captures["shop"].reading, "no snapshot that is being read")
    copy = Copy()
    with windows(relay.url, sources=["shop/main.t0"], follow=False) as following:
        for window in following:
            copy.take(window)
    return copy.rows


def until(following, condition):
    for window in following:
        yield window
        if condition(window):
            return


@contextmanager
def begun_snapshot(relay_of):
    """Relays a and b, a copy that was given a part of a snapshot by a, its consumer, and where that stands."""
    options = mock(transactions_total=40, chunk_rows=20)
    a, b = relay_of("a", shop=options), relay_of("b", shop=options)
    captured(a, 40)
    captured(b, 40)
    a.captures["shop"].snapshot(["main.t0"])
    copy = Copy()
    with windows([a.url, b.url], sources=["shop/main.t0"], config=QUICK) as following:
        for window in until(following, lambda window: window.is_snapshot):
            copy.take(window)
        yield a, b, copy, following, window.checkpoint


@pytest.fixture
def in_a_snapshot(relay_of):
    """The same once a has gone, so that the consumer goes on at b."""
    with begun_snapshot(relay_of) as (a, *others):
        a.stop()
        yield a, *others


@pytest.fixture
def left_in_a_snapshot(relay_of):
    """Relay b, and where the consumer stood that has ended before a was gone: nobody has asked b for anything."""
    with begun_snapshot(relay_of) as (a, b, _, following, checkpoint):
        following.close()
        a.stop()
        yield b, checkpoint


@contextmanager
def captures_less(tmp_path, groups):
    """A relay of a database that does not capture the stock."""
    less = [Group(group.commit, tuple(rows for rows in group.rows if rows.table is ORDERS)) for group in groups]
    without = {"sources": {"shop": {"type": "mock", "exclude": ["main.stock"]}}}
    with scripted(tmp_path / "less", {"shop": Database(groups=less, tables=(ORDERS,))}, **without) as relay:
        published(relay, "shop", len(groups))
        yield relay


@pytest.mark.parametrize("sources", [None, ["shop/main.*"], ["shop/main.orders"]])
def test_relays_that_capture_other_tables_are_refused_where_tables_are_chosen_by_patterns(tmp_path, sources):
    groups = [sale(1), sale(2)]
    with captures_less(tmp_path, groups) as less, scripted(tmp_path, {"shop": Database(groups=groups)}) as whole:
        published(whole, "shop", 2)
        both = [whole.url, less.url]
        if sources == ["shop/main.orders"]:
            windows(both, sources=sources).close()
            return
        with pytest.raises(ConfigError, match="captures other tables or columns than the relay at") as error:
            windows(both, sources=sources)
        assert all(each.removeprefix("http://") in str(error.value) for each in both)


def test_nothing_is_missed_at_a_relay_that_captures_less_while_the_first_is_away(tmp_path, monkeypatch):
    """Its stream has no row of the other table, and the position went past those that the first relay has."""
    groups = [sale(n) for n in range(1, 4)]
    monkeypatch.setattr(RelayClient, "check_peers", lambda *_: None)  # as if one had been away at the start
    database, found = Database(groups=groups[:1]), []
    with captures_less(tmp_path, groups) as less:
        with scripted(tmp_path, {"shop": database}) as whole:
            published(whole, "shop", 1)
            listen = whole.url.removeprefix("http://")
            following = windows([whole.url, less.url], sources=["shop/*"], start="beginning", config=QUICK)
            found += [(row.source, row.scn) for row in next(following).rows()]
        wait_for(lambda: "captures other tables" in str(following._lanes[0].reader.last_error), "a refusal")
        database.add(*groups[1:])
        with scripted(tmp_path, {"shop": database}, listen=listen), following:
            found += [(row.source, row.scn) for _ in groups[1:] for row in next(following).rows()]
    assert found == [(f"shop/main.{table}", scn) for scn in range(1, 4) for table in ("orders", "stock")]


def test_a_snapshot_that_was_open_is_read_anew_by_the_other_relay(in_a_snapshot):
    _, b, copy, following, _ = in_a_snapshot
    for window in until(following, lambda _: copy.is_whole):
        copy.take(window)
        assert copy.is_whole or window.position.snapshots, "a checkpoint that says all was read"
    assert copy.rows == whole_of(b)


def test_a_consumer_that_comes_back_at_another_relay_has_its_snapshot_read_anew(in_a_snapshot):
    _, b, copy, following, checkpoint = in_a_snapshot
    following.close()
    with windows([b.url], sources=["shop/main.t0"], checkpoint=checkpoint, config=QUICK) as again:
        for window in until(again, lambda _: copy.is_whole):
            copy.take(window)
    assert copy.rows == whole_of(b)


def test_a_consumer_that_was_killed_before_the_new_snapshot_began_asks_again(in_a_snapshot):
    _, b, copy, following, checkpoint = in_a_snapshot
    following.close()
    position = checkpoint.sources["shop"]
    asked = SourceCheckpoint(
        position.uuid, position.scn, None, position.txid, position.ts_us, RelayClient(b.url).head("shop").log,
        {"main.t0": UNBEGUN},
    )  # fmt: skip
    with windows(b.url, sources=["shop/main.t0"], checkpoint=Checkpoint({"shop": asked}), config=QUICK) as again:
        for window in until(again, lambda _: copy.is_whole):
            copy.take(window)
    assert copy.rows == whole_of(b)


def test_a_relay_that_is_away_for_a_moment_does_not_cost_a_snapshot(left_in_a_snapshot, caplog):
    b, checkpoint = left_in_a_snapshot
    caplog.set_level(logging.WARNING)
    patient = FollowConfig(backoff_first_ms=1, backoff_ms_max=5, reread_after_ms=60_000)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with windows([away, b.url], sources=["shop/main.t0"], checkpoint=checkpoint, config=patient):
            wait_for(lambda: "cannot go on from here" in caplog.text, "the refusal")
        assert b.captures["shop"].reading == []


def test_where_no_snapshot_can_be_requested_the_tables_are_named(left_in_a_snapshot, monkeypatch):
    b, checkpoint = left_in_a_snapshot

    def refuse(*_args):
        raise MalformedRequest("no snapshots here")

    monkeypatch.setattr(b.captures["shop"], "snapshot", refuse)
    with (
        windows(b.url, sources=["shop/main.t0"], checkpoint=checkpoint, config=QUICK) as again,
        pytest.raises(PositionPurged, match=r"main.t0.*no snapshots here"),
    ):
        next(again)


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_a_checkpoint_of_any_window_is_good_at_the_other_relay(relay_of, is_snapshot):
    options = mock(transactions_total=6, rows_per_transaction=200, group_bytes_max=4_000, chunk_rows=100)
    a, b = relay_of("a", shop=options), relay_of("b", shop=options)
    captured(a, 6)
    captured(b, 6)
    copy, stands = Copy(), []
    if is_snapshot:
        a.captures["shop"].snapshot(["main.t0"])
    with windows(a.url, sources=["shop/main.t0"], config=QUICK) as following:
        for window in until(following, lambda w: copy.is_whole if is_snapshot else w.scn == 6 and not w.continues):
            copy.take(window)
            stands.append((window.checkpoint, dict(copy.rows), copy.is_whole))
    wanted = whole_of(b)
    assert any(checkpoint.sources["shop"].seq is not None for checkpoint, *_ in stands)
    for checkpoint, rows, is_whole in stands[:: max(len(stands) // 8, 1)]:
        mine = Copy()
        mine.rows, mine.is_whole = rows, is_whole
        needs = bool(checkpoint.sources["shop"].snapshots)
        with windows(b.url, sources=["shop/main.t0"], checkpoint=checkpoint, config=QUICK, follow=needs) as again:
            for window in until(again, lambda _, mine=mine, needs=needs: needs and mine.is_whole):
                mine.take(window)
        assert mine.rows == wanted
