"""The iterator over windows, over real HTTP."""

import datetime as dt
import gc
import json
import threading
from itertools import islice

import pyarrow as pa
import pytest

from databus.client import Client, Consumer, FollowConfig, tail_lines, windows
from databus.core import (
    Checkpoint,
    ControlKind,
    CorruptData,
    InputError,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownSource,
)
from databus.link import RelayClient
from databus.wire import Group, Rows
from tests.client.conftest import WAIT_S, Collector, captured, mock, wait_for
from tests.client.stub import Stub, mock_groups
from tests.relay.support import Database, order, published, scripted


def test_follow_false_ends_at_what_is_published_and_true_goes_on(relay_of):
    relay = relay_of(shop=mock(transactions_per_s=200))
    captured(relay, 20)
    with windows(relay.url, follow=False) as following:
        last = [window.scn for window in following][-1]
    assert last >= 20
    with windows(relay.url, start="latest") as following:
        assert next(following).scn > last


def test_a_time_is_a_start_for_the_iterator_and_for_callbacks(relay_of):
    relay = relay_of(shop=mock(transactions_total=20, group_transactions_max=1))
    captured(relay, 20)
    with windows(relay.url, follow=False) as following:
        times = {window.scn: window.commit_us for window in following}
    at = dt.datetime.fromtimestamp(times[12] / 1e6, dt.UTC)
    expected = min(scn for scn, us in times.items() if us >= times[12])
    with windows(relay.url, start=at.astimezone(dt.timezone(dt.timedelta(hours=5))), follow=False) as following:
        assert [window.scn for window in following] == list(range(expected, 21))
    consumer = Collector()
    with pytest.raises(InputError, match="time zone"):
        Client(relay.url, consumer, start=at.replace(tzinfo=None)).run()
    client = Client(relay.url, consumer, start=at)
    client.start()
    consumer.wait("shop", 20)
    client.stop()
    assert consumer.scns["shop"] == list(range(expected, 21))


def test_leaving_before_anything_came_keeps_the_checkpoint_that_was_given(relay_of):
    relay = relay_of(shop=mock(transactions_total=3))
    captured(relay, 3, "shop")
    with windows(relay.url, follow=False) as following:
        list(following)
        checkpoint = following.checkpoint
    assert checkpoint.sources["shop"].scn == 3
    with windows(relay.url, checkpoint=checkpoint) as again:
        assert again.checkpoint == checkpoint


def test_the_checkpoint_is_of_what_was_done_and_the_next_one_goes_on_there(relay_of):
    relay = relay_of(shop=mock(transactions_total=30), crm=mock(transactions_total=30, seed=3))
    captured(relay, 30, "shop")
    captured(relay, 30, "crm")
    seen = {"shop": [], "crm": []}
    checkpoint = None
    while sum(map(len, seen.values())) < 60:
        with windows(relay.url, checkpoint=checkpoint, follow=False) as following:
            for count, window in enumerate(following):
                if count == 7:
                    break  # this one was not done: it comes again
                seen[window.physical].append(window.scn)
            checkpoint = Checkpoint.from_json(following.checkpoint.dumps())
    assert seen == {"shop": list(range(1, 31)), "crm": list(range(1, 31))}


def test_parts_of_a_transaction_are_not_mixed_with_windows_of_another_source(relay_of):
    large = {"transactions_total": 6, "rows_per_transaction": 3_000, "row_bytes": 200, "group_bytes_max": 50_000}
    relay = relay_of(shop=mock(**large), crm=mock(seed=3, **large))
    captured(relay, 6, "shop")
    captured(relay, 6, "crm")
    inside, parts = None, 0
    with windows(relay.url, follow=False) as following:
        for window in following:
            assert inside in (None, window.physical), "another source's window came inside a transaction"
            inside = window.physical if window.continues else None
            parts += window.is_part
    assert parts > 60


def test_closing_from_another_thread_ends_the_loop(relay_of):
    relay = relay_of(shop=mock(transactions_total=3))
    following = windows(relay.url)
    seen, ended = [], threading.Event()

    def consume():
        seen.extend(window.scn for window in following)
        ended.set()

    threading.Thread(target=consume, daemon=True).start()
    wait_for(lambda: following.checkpoint.sources, "the start")
    following.close()
    assert ended.wait(WAIT_S)
    following.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("databus-read")]


def test_no_thread_is_left_when_a_loop_is_left_early(relay_of):
    relay = relay_of(shop=mock(transactions_per_s=500))
    captured(relay, 5)
    for _ in range(5):
        with windows(relay.url) as following:
            next(following)
    assert not [each for each in threading.enumerate() if each.name.startswith("databus-read")]


def test_an_iterator_that_is_forgotten_takes_its_threads_with_it(relay_of):
    relay = relay_of(shop=mock(transactions_per_s=500))
    captured(relay, 5)
    for _ in windows(relay.url):
        break
    gc.collect()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("databus-read")], "its threads")


def test_a_foreign_position_is_raised_with_the_relays_words(relay_of):
    relay = relay_of(shop=mock(transactions_total=30))
    captured(relay, 30)
    checkpoint = Checkpoint({"shop": SourceCheckpoint(scn=7, txid="other")})
    with windows(relay.url, checkpoint=checkpoint) as following, pytest.raises(PositionForeign, match="other") as told:
        next(following)
    assert told.value.physical == "shop"


def test_a_purged_position_is_raised_and_not_jumped_over(relay_of):
    relay = relay_of(
        shop=mock(transactions_total=3_000, row_bytes=500, group_bytes_max=65_536),
        log={"segment_bytes_max": 1 << 20, "retention_bytes_max": 4 << 20},
    )
    client = captured(relay, 3_000)
    wait_for(lambda: client.head("shop").oldest.scn > 0, "retention")
    gone, held = Checkpoint({"shop": SourceCheckpoint(scn=1)}), "the oldest that it"
    with windows(relay.url, checkpoint=gone) as following, pytest.raises(PositionPurged, match=held) as told:
        next(following)
    assert told.value.physical == "shop"
    assert f"follows SCN {told.value.oldest}, " in str(told.value)

    def all_that_is_held() -> list[int]:
        try:
            with windows(relay.url, start="earliest", follow=False) as following:
                return [window.scn for window in following]
        except PositionPurged:  # retention has gone on between the question and the stream
            return []

    found: list[int] = []
    wait_for(lambda: found.extend(all_that_is_held()) or bool(found), "what is held")
    assert found[-1] == 3_000


def test_a_snapshot_comes_as_windows_of_its_own_and_its_checkpoint_goes_on_inside_it(relay_of):
    relay = relay_of(shop=mock(transactions_total=40, chunk_rows=20))
    captured(relay, 40)
    relay.captures["shop"].snapshot(["main.t0"])
    all_windows = []
    with windows(relay.url, sources=["shop/main.t0"]) as following:
        for window in following:
            all_windows.append(window)
            if window.control is not None and window.control.kind == ControlKind.SNAPSHOT_END:
                break
    chunks = [window for window in all_windows if window.is_snapshot]
    assert len(chunks) > 1
    inside = chunks[0].position
    assert inside.snapshots == {"main.t0": inside.snapshots["main.t0"]}
    assert inside.log
    with windows(relay.url, sources=["shop/main.t0"], checkpoint=chunks[0].checkpoint, follow=False) as following:
        rest = [row.pair for window in following for row in window.rows()]
    wanted = [row.pair for window in all_windows for row in window.rows() if row.pair > inside.pair]
    assert rest == wanted
    assert wanted


def test_tail_lines_are_json_with_exact_values_in_order(relay_of):
    script = [
        {"changes": [
            {"schema": {"source": "main.t", "columns": [{"name": "id", "type": "int64"},
             {"name": "d", "type": "decimal(20,2)"}, {"name": "b", "type": "binary"}], "key": ["id"]}},
            {"table": "main.t", "insert": {"id": 2**63 - 1, "d": "123456789012345678.90", "b": "AAE="}},
            {"table": "main.t", "update": {"id": 1, "d": None, "b": None}, "before": {"id": 1, "d": "0.00", "b": ""}},
        ]},
        {"changes": [{"control": {"kind": "truncate", "source": "main.t"}}]},
    ]  # fmt: skip
    relay = relay_of(shop={"type": "mock", "script": script})
    captured(relay, 2)
    with windows(relay.url, follow=False) as following:
        lines = [json.loads(line) for line in tail_lines(following)]
    assert [(line["id"], line["d"], line["b"]) for line in lines[:3]] == [
        (2**63 - 1, "123456789012345678.90", "AAE="), (1, "0.00", ""), (1, None, None),
    ]  # fmt: skip
    assert lines[3]["_control"]["kind"] == "truncate"
    assert [(line["_commit_version"], line["_seq"]) for line in lines] == [(1, 1), (1, 2), (1, 3), (2, 1)]


def test_small_questions_are_answered_with_types(relay_of):
    relay = relay_of(shop=mock(transactions_total=50, group_transactions_max=5))
    client = captured(relay, 50)
    sources = client.sources()
    assert [each.name for each in sources] == [f"shop/main.t{n}" for n in range(4)]
    assert client.table_of(sources[0].fingerprint).source == "main.t0"
    assert client.register(["shop/main.t0"])[0].table == client.table_of(sources[0].fingerprint)
    start = client.position("shop", start="beginning")
    found = client.range("shop", start, rows_max=80, partitions=2)
    assert 0 < found.rows <= 80
    assert found.position.scn < 50
    assert RelayClient(relay.url).position("shop", scn=7).scn == 7


def mostly_elsewhere(transactions):
    """Transactions of one row each, three of four in table `a`, the fourth in `b`."""
    columns = [{"name": "id", "type": "int64"}]
    schemas = [{"schema": {"source": f"main.{name}", "columns": columns, "key": ["id"]}} for name in "ab"]
    script = [{"changes": [{"table": "main.b" if n % 4 == 3 else "main.a", "insert": {"id": n}}]}
              for n in range(transactions)]  # fmt: skip
    script[0]["changes"] = [*schemas, *script[0]["changes"]]
    return {"type": "mock", "script": script, "group_transactions_max": 1}


@pytest.mark.parametrize("rows_max", [1, 7, 100_000])
def test_while_a_batch_is_worked_on_the_checkpoint_is_before_its_first_window(relay_of, rows_max):
    relay = relay_of(shop=mostly_elsewhere(60))
    captured(relay, 60)
    with windows(relay.url, sources=["shop/main.b"], follow=False) as following:
        wanted = [row.pair for window in following for row in window.rows()]
    seen, checkpoint = [], None
    while len(seen) < len(wanted):
        with windows(relay.url, sources=["shop/main.b"], checkpoint=checkpoint, follow=False) as following:
            for count, batch in enumerate(following.batches(rows_max)):
                assert following.checkpoint.sources["shop"].pair < next(iter(batch.rows())).pair
                if count == 1:
                    break  # killed with this one in hand: it comes again
                seen += [row.pair for row in batch.rows()]
            checkpoint = following.checkpoint
    assert seen == wanted


def test_sources_as_one_text_is_an_error_that_shows_the_list(relay_of):
    relay = relay_of(shop=mock(transactions_total=1))
    captured(relay, 1)
    with pytest.raises(InputError, match=r'sources=\["shop/main.t0"\]'):
        windows(relay.url, sources="shop/main.t0", follow=False)
    with pytest.raises(InputError, match=r'sources=\["shop/main.t0"\]'):
        Client(relay.url, Consumer(), sources="shop/main.t0").run()


def test_an_error_comes_after_the_windows_that_came_before_it():
    source, groups = mock_groups(9, group_transactions_max=1)
    rows = groups[5].rows[0]
    wrong = pa.concat_batches([rows.batch, groups[0].rows[0].batch])  # which no relay sends
    groups[5] = Group(groups[5].commit, (Rows(rows.table, wrong),))
    with Stub(source, groups) as stub, windows(stub.url) as following:
        wait_for(lambda: len(stub.requests) > 1, "the stream")
        seen, batches = [], following.batches()
        with pytest.raises(CorruptData):
            for batch in batches:
                seen += [window.scn for window in batch.windows]
        assert seen == [1, 2, 3, 4, 5]
        assert following.checkpoint.sources["shop"].scn == 5


@pytest.mark.parametrize("is_batched", [False, True])
def test_a_busy_physical_source_keeps_no_other_waiting(relay_of, is_batched):
    relay = relay_of(
        busy=mock(transactions_total=4_000),
        one=mock(transactions_total=40, seed=3),
        two=mock(transactions_total=40, seed=4),
    )
    captured(relay, 4_000, "busy")
    captured(relay, 40, "one")
    captured(relay, 40, "two")
    with windows(relay.url, follow=False) as following:
        all_of_it = following.batches(100) if is_batched else following
        order = [next(iter(all_of_it)).physical]
        wait_for(lambda: all(lane.has_work for lane in following._lanes), "something of each; who comes late is late")
        order += [each.physical for each in all_of_it]
    last = {physical: len(order) - 1 - order[::-1].index(physical) for physical in ("one", "two")}
    assert last["one"] < len(order) / 2
    assert last["two"] < len(order) / 2


def test_the_checkpoint_of_a_window_stored_alone_loses_nothing_of_any_physical_source(relay_of):
    relay = relay_of(shop=mock(transactions_per_s=400), crm=mock(transactions_per_s=300, seed=3))
    captured(relay, 20)
    captured(relay, 20, "crm")
    seen, stored = {"shop": [], "crm": []}, None
    for length in (1, 2, 30, 7):
        with windows(relay.url, checkpoint=stored, start="latest") as following:
            for count, window in enumerate(following):
                seen[window.physical].append(window.scn)
                stored = Checkpoint.from_json(window.checkpoint.dumps())
                if count >= length and all(seen.values()):
                    break  # killed: a stored checkpoint is all that is left
        for physical in seen:
            captured(relay, RelayClient(relay.url).head(physical).published.scn + 20, physical)
    for scns in seen.values():
        assert scns == list(range(scns[0], scns[0] + len(scns))), "a gap, or a window twice"


def test_a_checkpoint_keeps_the_physical_sources_that_are_not_followed(relay_of):
    relay = relay_of(shop=mock(transactions_total=10), crm=mock(transactions_total=10, seed=3))
    captured(relay, 10)
    captured(relay, 10, "crm")
    before = Checkpoint({"crm": SourceCheckpoint(scn=4)})
    with windows(relay.url, sources=["shop/*"], checkpoint=before, follow=False) as following:
        stored = [window.checkpoint for window in following][-1]
        assert following.checkpoint.sources["crm"] == before.sources["crm"]
    with windows(relay.url, checkpoint=stored, start="latest", follow=False) as following:
        assert [(window.physical, window.scn) for window in following] == [("crm", scn) for scn in range(5, 11)]


@pytest.mark.parametrize("start", ["beginning", "latest"])
def test_a_database_that_the_relay_reaches_later_is_followed_from_its_first_change_on(tmp_path, start):
    """As where a relay, its databases and its consumers are started together."""
    shop = Database(groups=[order(1)])
    crm = Database(uuid="2" * 32, groups=[order(1), order(2)], identify_errors=[ServiceUnavailable("away")] * 100_000)
    config = FollowConfig(backoff_first_ms=1, backoff_ms_max=20)
    with scripted(tmp_path, {"shop": shop, "crm": crm}) as relay:
        published(relay, "shop", 1)
        begun = Checkpoint({"shop": SourceCheckpoint(scn=1)})
        with windows(relay.url, start=start, checkpoint=begun, config=config) as following:
            shop.add(order(2))
            first = next(following)
            assert first.physical == "shop", "one database that is away keeps no other waiting"
            crm.identify_errors.clear()
            found = [window.scn for window in islice((each for each in following if each.physical == "crm"), 2)]
        assert found == [1, 2]
        stored = Checkpoint.from_json(first.checkpoint.dumps())  # that of a consumer that was killed
        with windows(relay.url, checkpoint=stored, start="latest", follow=False) as following:
            assert [window.scn for window in following if window.physical == "crm"] == [1, 2]


def test_of_a_database_that_the_relay_has_not_reached_there_is_nothing_yet(tmp_path):
    crm = Database(uuid="2" * 32, groups=[order(1)], identify_errors=[ServiceUnavailable("away")] * 100_000)
    with scripted(tmp_path, {"shop": Database(groups=[order(1)]), "crm": crm}) as relay:
        published(relay, "shop", 1)
        with windows(relay.url, follow=False) as following:
            assert [(window.physical, window.scn) for window in following] == [("shop", 1)]
            stored = following.checkpoint
        crm.identify_errors.clear()
        published(relay, "crm", 1)
        with windows(relay.url, checkpoint=stored, start="latest", follow=False) as following:
            assert [(window.physical, window.scn) for window in following] == [("crm", 1)]


def test_a_table_of_a_database_that_the_relay_did_not_reach_yet_may_be_there_later(tmp_path):
    crm = Database(uuid="2" * 32, identify_errors=[ServiceUnavailable("away")] * 100_000)
    with scripted(tmp_path, {"shop": Database(groups=[order(1)]), "crm": crm}) as relay:
        published(relay, "shop", 1)
        with pytest.raises(ServiceUnavailable, match="no log yet of crm"):
            windows(relay.url, sources=["crm/main.orders"])
        with pytest.raises(UnknownSource):
            windows(relay.url, sources=["shop/main.nothing"])


@pytest.mark.parametrize("is_batched", [False, True])
def test_parts_that_come_again_from_another_log_are_announced(is_batched):
    source, groups = mock_groups(2, rows_per_transaction=400, group_bytes_max=20_000)
    with Stub(source, groups) as stub:
        stub.groups_max = 3  # of the first transaction; then it is away
        config = FollowConfig(backoff_first_ms=1, backoff_ms_max=5)
        with windows(stub.url, config=config) as following:
            stream = following.batches(1) if is_batched else following
            for _ in range(3):
                assert next(stream).is_part
            wait_for(lambda: stub.away, "the outage")
            stub.log, stub.groups_max = "another-log", None
            stub.away.clear()
            again = [next(stream)]
            assert again[0].restarts
            while again[-1].scn < 2 or again[-1].continues:
                again.append(next(stream))
    assert not any(window.restarts for window in again[1:])
    assert sum(map(len, again)) == sum(source.expected_rows(table.source, 2) for table in source.tables())


def test_a_consumer_that_comes_back_inside_a_transaction_of_another_log_is_told():
    source, groups = mock_groups(2, rows_per_transaction=400, group_bytes_max=20_000)
    with Stub(source, groups) as stub:
        with windows(stub.url) as following:
            first = next(following)
            assert first.continues
            stored = first.checkpoint
        with windows(stub.url, checkpoint=stored) as following:
            assert not next(following).restarts
        stub.log = "another-log"
        with windows(stub.url, checkpoint=stored) as following:
            assert next(following).restarts
        with windows(stub.url, checkpoint=stored) as following:
            assert "_restart" in json.loads(next(tail_lines(following)))
