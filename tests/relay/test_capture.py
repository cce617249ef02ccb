"""Capture: what goes wrong with one source is shown, waited for where waiting helps, and touches no other."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.core import (
    ConfigError,
    CorruptData,
    PositionPurged,
    ServiceUnavailable,
    SourceChanged,
    SourceCheckpoint,
    UnrepresentableValue,
)
from databus.link import RelayClient
from databus.relay import State, _capture
from databus.wire import Group, OpenSnapshot
from tests.relay import support
from tests.relay.support import (
    ORDERS,
    WAIT_S,
    Answer,
    Database,
    commit_of,
    get,
    order,
    parts,
    post,
    published,
    rows_of,
    scns,
    scripted,
    state_of,
    until,
    wait_for_state,
)

OTHER = "22222222-2222-2222-2222-222222222222"


pytestmark = pytest.mark.usefixtures("writing")


@pytest.mark.parametrize("error", [UnrepresentableValue("orders.total, row 7: too large"), RuntimeError("a defect")])
def test_one_source_stops_and_the_others_go_on(tmp_path: Path, error: Exception) -> None:
    good, bad = Database(groups=[order(1)]), Database(uuid=OTHER, groups=[order(1)], errors=[error])
    with scripted(tmp_path, {"good": good, "bad": bad}) as relay:
        status = wait_for_state(relay, State.SUSPENDED_ON_ERROR, "bad")
        assert (status["error"], status["message"]) == (type(error).__name__, str(error))
        good.add(order(2))
        published(relay, "good", 2)
        assert scns(get(relay, "/stream", output="frames", physical="good")) == [1, 2]
        assert scns(get(relay, "/stream", output="frames", physical="bad")) == [1]
        assert get(relay, "/admin").status == 200, "the relay lives, and serves the other source"
        assert get(relay, "/admin/ready").status == 200
        ready = get(relay, "/admin/ready", sources="bad")
        assert (ready.status, ready.body.splitlines()[0]) == (503, b"BAD")
        assert str(error) in ready.body.decode()
        assert get(relay, "/admin/status").json["message"] == f"bad: {error}"
        bad.add(order(2))
        post(relay, "/controlSources/unpause", sources="bad")
        published(relay, "bad", 2)
        assert get(relay, "/admin/ready", sources="bad").status == 200


def test_a_database_that_does_not_answer_is_asked_again_until_it_does(tmp_path: Path) -> None:
    shop = Database(groups=[order(1)], errors=[ServiceUnavailable("shop: no route to it")] * 5)
    with scripted(tmp_path, {"shop": shop}) as relay:
        shop.add(order(2))
        published(relay, "shop", 2)
        until(lambda: state_of(relay)["restarts"] == 5, "five restarts")
        wait_for_state(relay, State.RUNNING)
        assert scns(get(relay, "/stream", output="frames")) == [1, 2]
        assert shop.resumes[0].scn == 0
        assert shop.resumes[-1].txid == "t2"


def test_errors_of_long_ago_make_no_wait_longer(tmp_path: Path) -> None:
    waits: list[int] = []

    class Logger:
        def info(self, _event: str, **_more: object) -> None:
            return

        def warning(self, _event: str, *, retry_ms: int, **_more: object) -> None:
            waits.append(retry_ms)

    shop = Database()
    options = {"retry_ms_min": 1, "retry_ms_max": 200}
    with scripted(tmp_path, {"shop": shop}, capture=options) as relay:
        capture = relay.captures["shop"]
        capture._logger = Logger()  # which says how long it waits
        shop.fail(*(ServiceUnavailable(f"shop: gone {number}") for number in range(12)))
        until(lambda: len(waits) == 12, "the longest waits")
        assert waits[-1] >= 100
        shop.wait_for(lambda: len(shop.resumes) == 13)  # until then it was running before the last of them
        wait_for_state(relay, State.RUNNING)
        time.sleep(2 * options["retry_ms_max"] / 1e3)  # it has to run for longer than the longest wait
        shop.fail(ServiceUnavailable("shop: gone again"))
        until(lambda: len(waits) == 13, "another wait")
        assert waits[-1] <= 1


def test_a_database_that_is_away_is_shown_and_what_the_log_holds_is_served(tmp_path: Path) -> None:
    shop = Database(groups=[order(1), order(2)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 2)
    shop.identify_errors = [ServiceUnavailable("shop: connection refused")] * 1000
    with scripted(tmp_path, {"shop": shop}, capture={"retry_ms_max": 60_000}) as relay:
        status = wait_for_state(relay, State.ERROR_RETRY)
        assert status["message"] == "shop: connection refused"
        assert scns(get(relay, "/stream", output="frames")) == [1, 2]
        shop.identify_errors = []
        shop.add(order(3))
        post(relay, "/controlSources/unpause")
        published(relay, "shop", 3)


def test_a_database_that_does_not_let_us_in_is_shown_and_what_the_log_holds_is_served(tmp_path: Path) -> None:
    shop = Database(groups=[order(1), order(2)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 2)
    shop.identify_errors = [ConfigError("shop: wrong password")]
    with scripted(tmp_path, {"shop": shop}) as relay:
        status = wait_for_state(relay, State.SUSPENDED_ON_ERROR)
        assert status["message"] == "shop: wrong password"
        assert scns(get(relay, "/stream", output="frames")) == [1, 2]
        shop.add(order(3))
        post(relay, "/controlSources/unpause")
        published(relay, "shop", 3)


def test_a_database_that_keeps_us_waiting_is_shown_with_what_was_asked(tmp_path: Path) -> None:
    shop = Database(groups=[order(1)])
    shop.changed.acquire()
    with scripted(tmp_path, {"shop": shop}) as relay:
        try:
            until(lambda: state_of(relay)["message"] == "starting script shop after SCN 0", "the step")
            assert state_of(relay)["state"] == "INITIALIZING"
            assert get(relay, "/admin/status").json["message"] == "shop: starting script shop after SCN 0"
        finally:
            shop.changed.release()
        published(relay, "shop", 1)
        assert state_of(relay)["message"] == ""


def test_what_a_source_does_while_it_begins_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Database(groups=[order(1)])
    monkeypatch.setattr(support.ScriptedSource, "doing", "compiling the decoder", raising=False)
    shop.changed.acquire()
    with scripted(tmp_path, {"shop": shop}) as relay:
        try:
            shown = "starting script shop after SCN 0: compiling the decoder"
            until(lambda: state_of(relay)["message"] == shown, "what it does")
        finally:
            shop.changed.release()
        published(relay, "shop", 1)
        assert state_of(relay)["message"] == ""


def test_a_source_that_has_never_answered_is_503_and_says_why(tmp_path: Path) -> None:
    shop = Database(identify_errors=[ServiceUnavailable("shop: connection refused")] * 1000)
    with scripted(tmp_path, {"shop": shop}) as relay:
        answer = get(relay, "/stream")
        assert (answer.status, answer.json["error"]) == (503, "ServiceUnavailable")
        assert "connection refused" in answer.json["message"]
        snapshot = post(relay, "/controlSources/snapshot", tables="main.orders")
        assert snapshot.status in (200, 503)  # between two attempts there is no source to ask


def test_a_transaction_that_is_cut_off_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    first, second, last = parts(2, 3)
    shop = Database(groups=[order(1), first, second], errors=[ServiceUnavailable("connection lost")])
    with scripted(tmp_path, {"shop": shop}) as relay:
        shop.wait_for(lambda: len(shop.resumes) >= 2)
        assert shop.resumes[1].scn == 1
        assert scns(get(relay, "/stream", output="frames")) == [1]
        shop.add(last)
        published(relay, "shop", 2)
        groups = get(relay, "/stream", output="frames").groups
        assert [g.commit.last for g in groups] == [(1, 1), first.commit.pair, second.commit.pair, last.commit.pair]


def test_another_database_under_the_same_name_is_refused(tmp_path: Path) -> None:
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}) as relay:
        published(relay, "shop", 1)
    with scripted(tmp_path, {"shop": Database(uuid=OTHER, groups=[order(2)])}) as relay:
        status = wait_for_state(relay, State.SUSPENDED_ON_ERROR)
        assert status["error"] == SourceChanged.__name__
        assert OTHER in status["message"]
        assert scns(get(relay, "/stream", output="frames")) == [1]  # what was captured of the former


def test_a_database_that_is_swapped_while_it_was_away_is_refused(tmp_path: Path) -> None:
    shop = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        shop.uuid = OTHER
        shop.fail(ServiceUnavailable("restarting"))
        status = wait_for_state(relay, State.SUSPENDED_ON_ERROR)
        assert status["error"] == SourceChanged.__name__
        assert scns(get(relay, "/stream", output="frames")) == [1]


@pytest.mark.parametrize(
    "next_group", [lambda: order(5), lambda: order(4), lambda: order(1)], ids=["the same", "below", "far below"]
)
def test_an_scn_that_is_not_above_the_last_stops_the_source(tmp_path: Path, next_group: Callable[[], Any]) -> None:
    shop = Database(groups=[order(1), order(5), next_group(), order(6)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        status = wait_for_state(relay, State.SUSPENDED_ON_ERROR)
        assert status["error"] == SourceChanged.__name__
        assert "SCN 5" in status["message"]
        assert scns(get(relay, "/stream", output="frames")) == [1, 5]


def test_what_the_source_has_purged_is_told(tmp_path: Path) -> None:
    shop = Database(groups=[order(1)], errors=[PositionPurged("shop: the server no longer has binlog.000007")])
    with scripted(tmp_path, {"shop": shop}) as relay:
        assert "binlog.000007" in wait_for_state(relay, State.SUSPENDED_ON_ERROR)["message"]


def test_a_damaged_log_stops_its_source_and_no_other(tmp_path: Path) -> None:
    shop, east = Database(groups=[order(1)]), Database(uuid=OTHER)
    with scripted(tmp_path, {"shop": shop, "east": east}) as relay:
        published(relay, "shop", 1)
    segment = next((tmp_path / "relay" / "shop").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[40] ^= 1
    segment.write_bytes(content)
    with scripted(tmp_path, {"shop": shop, "east": east}) as relay:
        status = wait_for_state(relay, State.SUSPENDED_ON_ERROR)
        assert status["error"] == CorruptData.__name__
        assert str(segment) in status["message"]
        wait_for_state(relay, State.RUNNING, "east")


def test_a_large_group_is_written_while_the_source_makes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Database(groups=[*parts(1, 1, rows_each=5_000), order(2)])
    really = _capture.encode_group

    def encode(group: Group, *more: Any) -> Any:
        if group is shop.groups[0]:
            shop.wait_for(lambda: shop.polls > 1)
        return really(group, *more)

    monkeypatch.setattr(_capture, "encode_group", encode)
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 2)
        assert scns(get(relay, "/stream", output="frames")) == [1, 2]


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_groups_behind_one_that_fails_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """The source has been asked for more by then; it is asked again, and nothing is missing or twice."""
    shop = Database(groups=[order(n) for n in range(1, 7)])
    really, failed = _capture.encode_group, []

    def encode(group: Group, *more: Any) -> Any:
        if group is shop.groups[fails_at - 1] and not failed:
            failed.append(group)
            shop.wait_for(lambda: shop.polls > min(fails_at, 4) or _capture._BEHIND_BYTES_MIN > 0)
            raise ServiceUnavailable("the disk is away")
        return really(group, *more)

    monkeypatch.setattr(_capture, "encode_group", encode)
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 6)
        assert scns(get(relay, "/stream", output="frames")) == [1, 2, 3, 4, 5, 6]
        assert len(shop.resumes) == 2
    assert failed


def test_a_source_is_told_what_is_durable_and_only_that(tmp_path: Path) -> None:
    shop = Database(groups=[order(1), order(2)])
    with scripted(tmp_path, {"shop": shop}, log={"fsync_interval_ms": 60_000, "fsync_bytes": 1 << 30}) as relay:
        published(relay, "shop", 2)
        until(lambda: relay.captures["shop"].counters.groups == 2)
        log = relay.captures["shop"].log
        assert log is not None
        polls = shop.polls
        shop.wait_for(lambda: shop.polls > polls + 6)
        assert shop.told == []
        log.sync()
        shop.wait_for(lambda: shop.told == [{"n": 2}])
        shop.add(order(3))
        published(relay, "shop", 3)
        assert shop.told == [{"n": 2}]


def test_an_idle_source_shows_that_it_is_alive(tmp_path: Path) -> None:
    """A commit frame comes again every `progress_ms`, at the last position; it is news for nobody."""
    shop = Database(groups=[order(7)])
    with scripted(tmp_path, {"shop": shop}, capture={"progress_ms": 100}) as relay:
        until(lambda: len(get(relay, "/stream", output="frames").groups) >= 4)
        answer = get(relay, "/stream", output="frames")
        assert set(scns(answer)) == {7}
        assert [group.commit.rows for group in answer.groups][:4] == [1, 0, 0, 0]
        first, *_, last = [group.commit.capture_us for group in answer.groups]
        assert last > first
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(get(relay, "/range", scn=7, wait_ms=20_000)))
        asking.start()
        seen = relay.captures["shop"].counters.progress
        until(lambda: relay.captures["shop"].counters.progress >= seen + 3)
        shop.add(order(8))
        asking.join(WAIT_S)
        assert (answers[0].json["rows"], answers[0].json["position"]["scn"]) == (1, 8)
        assert get(relay, "/stream", output="frames", from_={"scn": 7, "txid": "t7"}).groups[0].commit.last_scn == 8


def test_a_commit_alone_moves_consumers_the_source_and_where_capture_goes_on(tmp_path: Path) -> None:
    """What a source yields whose captured tables rest while others are busy."""
    shop = Database(groups=[order(1), Group(commit_of(500, 0)), Group(commit_of(900, 0))])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 900)
        assert [group.commit.rows for group in get(relay, "/stream", output="frames").groups] == [1, 0, 0]
        found = get(relay, "/range", from_={"scn": 1, "txid": "t1"}).json
        assert (found["rows"], found["position"]["scn"], found["position"]["txid"]) == (0, 900, "t900")
        shop.wait_for(lambda: shop.told[-1:] == [{"n": 900}])
    shop.add(order(901))
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 901)
        assert (shop.resumes[-1].scn, shop.resumes[-1].position) == (900, {"n": 900})
        assert scns(get(relay, "/stream", output="frames", scn=500)) == [900, 901]


def test_progress_goes_on_after_a_restart_and_while_paused(tmp_path: Path) -> None:
    shop = Database(groups=[order(7)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 7)
    with scripted(tmp_path, {"shop": shop}, capture={"progress_ms": 100}) as relay:
        capture = relay.captures["shop"]
        until(lambda: capture.counters.progress >= 1)
        post(relay, "/controlSources/pause")
        wait_for_state(relay, State.PAUSED)
        before, polls = capture.counters.progress, shop.polls
        until(lambda: capture.counters.progress >= before + 3)
        assert shop.polls == polls
        assert {group.commit.last_scn for group in get(relay, "/stream", output="frames").groups} == {7}


@pytest.mark.parametrize(
    "error", [ServiceUnavailable("shop: no route to it"), UnrepresentableValue("orders.total, row 7: too large")]
)
@pytest.mark.parametrize("cut", [0, 2])
def test_a_source_that_waits_or_is_suspended_shows_consumers_that_the_relay_is_alive(
    tmp_path: Path, error: Exception, cut: int
) -> None:
    """Else a follower takes silence for a dead relay and connects again, for ever. cut: parts of a transaction that
    came before the error, and come again.
    """
    whole = parts(8, 3)
    shop = Database(groups=[order(7), *whole[:cut]])
    options = {"progress_ms": 100, "retry_ms_min": 60_000, "retry_ms_max": 60_000}
    with scripted(tmp_path, {"shop": shop}, capture=options) as relay:
        published(relay, "shop", 7)
        capture = relay.captures["shop"]
        until(lambda: capture.counters.groups >= 1 + cut)
        with RelayClient(relay.url, read_ms_max=30_000).stream("shop", SourceCheckpoint(scn=7), follow=True) as stream:
            shop.fail(error)
            waiting = (State.ERROR_RETRY, State.SUSPENDED_ON_ERROR)
            until(lambda: capture.status.state in waiting, "the error")
            seen = [group.commit.last_scn for _ in range(8) for group in next(stream)]
            assert set(seen) == {7}
            assert capture.status.state in waiting
            before = capture.counters.progress
            until(lambda: capture.counters.progress >= before + 3)
            shop.add(*whole[cut:])
            post(relay, "/controlSources/unpause")
            while seen[-1] != 8:
                seen += [group.commit.last_scn for group in next(stream)]


def test_a_group_that_no_source_may_yield_stops_the_source(tmp_path: Path) -> None:
    wrong = Group(commit_of(2, 1), (rows_of(ORDERS, 3, [{"id": 1, "name": "a"}]),))  # rows after their commit
    with scripted(tmp_path, {"shop": Database(groups=[order(1), wrong])}) as relay:
        status = wait_for_state(relay, State.SUSPENDED_ON_ERROR)
        assert status["error"] == "ValueError"
        assert scns(get(relay, "/stream", output="frames")) == [1]


def test_tables_that_are_being_read_are_named_until_their_end(tmp_path: Path) -> None:
    opened = {"main.orders": OpenSnapshot(1 << 40, (7,), (1, 1 << 40))}
    first, second = order(1), order(2)
    shop = Database(groups=[replace(first, commit=replace(first.commit, snapshots=opened))])
    with scripted(tmp_path, {"shop": shop}) as relay:
        until(lambda: state_of(relay)["snapshots"] == ["main.orders"])
        shop.add(second)
        until(lambda: state_of(relay)["snapshots"] == [])
