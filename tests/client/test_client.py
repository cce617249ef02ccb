"""The client and a real relay: callbacks, checkpoints, replays, reconnecting, isolation, stopping."""

import json
import threading

import pytest
from structlog.testing import capture_logs

from databus.client import (
    Client,
    ClientConfig,
    ConsumerFailed,
    FileCheckpoints,
    FollowConfig,
    MemoryCheckpoints,
    ReaderState,
    Result,
)
from databus.core import (
    AccessDenied,
    Checkpoint,
    PositionForeign,
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownSource,
)
from databus.link import RelayClient
from databus.testing import RelayProcess, TcpProxy
from tests.client.conftest import WAIT_S, Collector, captured, mock, wait_for
from tests.relay.support import Database, order, published, scripted

QUICK = ClientConfig(
    follow=FollowConfig(backoff_first_ms=5, backoff_ms_max=50),
    checkpoint_ms=0,
    retries_max=3,
    retry_first_ms=1,
    retry_ms_max=5,
)


def run_until(client, consumer, physical, scn):
    client.start()
    try:
        consumer.wait(physical, scn)
    finally:
        client.stop()


def test_every_window_comes_once_and_in_order(relay_of):
    relay = relay_of(shop=mock(transactions_total=300))
    consumer, store = Collector(), MemoryCheckpoints()
    run_until(Client(relay.url, consumer, checkpoints=store), consumer, "shop", 300)
    assert consumer.scns["shop"] == list(range(1, 301))
    assert consumer.calls == ["start", "stop"]
    assert store.checkpoint.sources["shop"].scn == 300


def test_a_consumer_goes_on_where_it_stopped(relay_of, tmp_path):
    relay = relay_of(shop=mock(transactions_total=100))
    captured(relay, 100)
    first = Collector()
    client = Client(relay.url, first, checkpoints=FileCheckpoints(tmp_path / "c.json"), config=QUICK)
    first.fail = lambda window: client.stop() if window.scn == 40 else None
    client.run()
    second = Collector()
    run_until(Client(relay.url, second, checkpoints=FileCheckpoints(tmp_path / "c.json")), second, "shop", 100)
    assert first.scns["shop"] + second.scns["shop"] == list(range(1, 101))


@pytest.mark.parametrize("failure", ["exception", "error", "nonsense"])
def test_a_window_that_fails_is_rolled_back_and_comes_again(relay_of, failure):
    relay = relay_of(shop=mock(transactions_total=50))
    consumer, failures = Collector(), [20, 20, 35]

    def fail(window):
        if failures and window.scn == failures[0]:
            failures.pop(0)
            if failure == "exception":
                raise OSError("disk")
            return Result.ERROR if failure == "error" else "fine"
        return None

    consumer.fail = fail
    run_until(Client(relay.url, consumer, config=QUICK), consumer, "shop", 50)
    assert consumer.rollbacks == [19, 19, 34]
    assert consumer.scns["shop"] == list(range(1, 51))


def test_the_log_says_where_in_the_callback_it_failed(relay_of):
    relay = relay_of(shop=mock(transactions_total=3))
    consumer, failures = Collector(), [2]

    def fail(window):
        if window.scn in failures:
            failures.remove(window.scn)
            json.loads("no JSON")  # raises in a library's file; this line is what its author looks for

    consumer.fail = fail
    with capture_logs() as logs:
        run_until(Client(relay.url, consumer, config=QUICK), consumer, "shop", 3)
    (place,) = [each["at"] for each in logs if each["event"] == "callback failed"]
    assert place == f"{__file__}:{fail.__code__.co_firstlineno + 3}"


def test_a_consumer_that_keeps_failing_is_told_and_the_client_ends_with_the_reason(relay_of):
    relay = relay_of(shop=mock(transactions_total=50))
    consumer = Collector()
    consumer.fail = lambda window: Result.ERROR if window.scn == 7 else None
    store = MemoryCheckpoints()
    with pytest.raises(ConsumerFailed, match=r"shop: on_end_window failed 4 times, retries_max=3, last at SCN 7"):
        Client(relay.url, consumer, config=QUICK, checkpoints=store).run()
    assert store.checkpoint.sources["shop"].scn == 6
    assert len(consumer.errors) == 1
    assert consumer.calls[-1] == "stop"


def test_a_fatal_result_stops_at_once_without_a_checkpoint_of_that_window(relay_of):
    relay = relay_of(shop=mock(transactions_total=50))
    consumer, store = Collector(), MemoryCheckpoints()
    consumer.fail = lambda window: Result.ERROR_FATAL if window.scn == 7 else None
    with pytest.raises(ConsumerFailed, match="ERROR_FATAL"):
        Client(relay.url, consumer, config=QUICK, checkpoints=store).run()
    assert store.checkpoint.sources["shop"].scn == 6
    assert consumer.rollbacks == [6]


def test_a_cut_connection_in_the_middle_of_a_group_loses_nothing_and_repeats_nothing(relay_of):
    relay = relay_of(shop=mock(transactions_total=600, group_bytes_max=20_000, row_bytes=1_000))
    captured(relay, 600)
    small = FollowConfig(buffer_bytes_max=50_000, backoff_first_ms=5, backoff_ms_max=50)
    with TcpProxy("127.0.0.1", int(relay.url.rpartition(":")[2])) as proxy:
        consumer = Collector()
        client = Client(proxy.url, consumer, config=ClientConfig(follow=small, checkpoint_ms=0))

        def cut_again(window):
            if window.scn % 30 == 0:
                proxy.truncate_after(window.scn * 101 % 30_011)

        consumer.fail = cut_again
        proxy.truncate_after(9_000)
        client.start()
        consumer.wait("shop", 600)
        connections = client.status()["shop"].connections
        client.stop()
    assert connections > 3, "the connection was never cut"
    assert consumer.scns["shop"] == list(range(1, 601))
    assert not consumer.rollbacks


def test_a_relay_that_restarts_is_found_again(tmp_path):
    with RelayProcess(tmp_path, {"shop": mock(transactions_per_s=300)}) as relay:
        consumer = Collector()
        client = Client(relay.url, consumer, config=QUICK)
        client.start()
        for scn in (50, 150):
            consumer.wait("shop", scn)
            relay.kill()
            relay.start()
        consumer.wait("shop", 250)
        client.stop()
    assert consumer.scns["shop"] == list(range(1, len(consumer.scns["shop"]) + 1))


def test_a_stuck_consumer_costs_the_others_nothing(relay_of):
    relay = relay_of(shop=mock(transactions_total=3_000, row_bytes=1_000))
    release = threading.Event()
    stuck, free = Collector(), Collector()
    stuck.fail = lambda _window: release.wait(2 * WAIT_S) and None
    small = ClientConfig(follow=FollowConfig(buffer_bytes_max=100_000))
    stuck_client, free_client = Client(relay.url, stuck, config=small), Client(relay.url, free)
    stuck_client.start()
    try:
        run_until(free_client, free, "shop", 3_000)
        wait_for(lambda: stuck_client.status()["shop"].waiting_bytes, "what it is not given")
        assert stuck_client.status()["shop"].waiting_bytes < 8 << 20, "what a stuck consumer holds is bounded"
    finally:
        release.set()
        stuck_client.stop()


def test_several_physical_sources_are_each_in_order_and_checkpointed_by_themselves(relay_of):
    relay = relay_of(shop=mock(transactions_total=120), crm=mock(transactions_total=80, seed=2))
    consumer, store = Collector(), MemoryCheckpoints()
    client = Client(relay.url, consumer, checkpoints=store)
    client.start()
    consumer.wait("shop", 120)
    consumer.wait("crm", 80)
    client.stop()
    assert consumer.scns == {"shop": list(range(1, 121)), "crm": list(range(1, 81))}
    assert {name: at.scn for name, at in store.checkpoint.sources.items()} == {"shop": 120, "crm": 80}


class Lenient(Collector):
    def on_error(self, error, physical):
        self.errors.append(error)
        return Result.SUCCESS


def test_a_source_whose_position_is_foreign_stops_and_the_others_go_on_if_the_consumer_says_so(relay_of):
    relay = relay_of(shop=mock(transactions_total=50), crm=mock(transactions_total=50))
    wrong = MemoryCheckpoints(Checkpoint({"shop": SourceCheckpoint(scn=3, txid="not-ours")}))
    consumer = Lenient()
    client = Client(relay.url, consumer, checkpoints=wrong)
    client.start()
    consumer.wait("crm", 50)
    wait_for(lambda: consumer.errors, "the error")
    assert client.status()["shop"].reader is ReaderState.FAILED
    client.stop()
    assert isinstance(consumer.errors[0], PositionForeign)
    assert "not-ours" in str(consumer.errors[0])
    assert "shop" not in consumer.scns


def test_a_foreign_position_ends_the_client_unless_the_consumer_says_otherwise(relay_of):
    relay = relay_of(shop=mock(transactions_total=50))
    wrong = MemoryCheckpoints(Checkpoint({"shop": SourceCheckpoint(scn=3, txid="not-ours")}))
    with pytest.raises(PositionForeign, match="not-ours"):
        Client(relay.url, Collector(), checkpoints=wrong).run()
    assert wrong.checkpoint.sources["shop"].scn == 3, "a position that is refused is not thrown away"


class OnlyLogs(Collector):
    def on_error(self, error, physical):
        self.errors.append(error)


@pytest.mark.parametrize("failure", ["lost", "callback"])
def test_a_consumer_that_only_logs_an_error_is_stopped_by_it(relay_of, failure):
    relay = relay_of(shop=mock(transactions_total=5), crm=mock(transactions_total=5))
    consumer, at = OnlyLogs(), Checkpoint()
    if failure == "lost":
        at = Checkpoint({"shop": SourceCheckpoint(scn=3, txid="not-ours")})
    else:
        consumer.fail = lambda window: Result.ERROR if (window.physical, window.scn) == ("shop", 3) else None
    with pytest.raises(PositionForeign if failure == "lost" else ConsumerFailed):
        Client(relay.url, consumer, checkpoints=MemoryCheckpoints(at), config=QUICK).run()
    assert len(consumer.errors) == 1
    assert consumer.calls[-1] == "stop"


def test_a_source_that_is_left_behind_is_logged_and_the_last_one_ends_the_client(relay_of):
    relay = relay_of(shop=mock(transactions_total=5))
    wrong = MemoryCheckpoints(Checkpoint({"shop": SourceCheckpoint(scn=3, txid="not-ours")}))
    with capture_logs() as logged:
        Client(relay.url, Lenient(), checkpoints=wrong).run()
    (line,) = [each for each in logged if each["event"].startswith("a source is left behind")]
    assert line["physical"] == "shop"
    assert "not-ours" in line["error"]


def test_an_unknown_name_is_answered_with_the_nearest_ones(relay_of):
    relay = relay_of(shop=mock(transactions_total=1))
    captured(relay, 1)
    with pytest.raises(UnknownSource, match=r'no source called "shop/main.t9"; did you mean shop/main.t'):
        Client(relay.url, Collector(), sources=["shop/main.t9"]).run()


def test_only_the_tables_asked_for_come_and_the_checkpoint_moves_with_the_others_too(relay_of):
    relay = relay_of(shop=mock(transactions_total=60, group_transactions_max=1, rows_per_transaction=4))
    captured(relay, 60)
    consumer, sources, store = Collector(), set(), MemoryCheckpoints()
    consumer.on_start_source = lambda source, _table: sources.add(source)
    run_until(Client(relay.url, consumer, sources=["t2", "main.t3"], checkpoints=store), consumer, "shop", 60)
    assert sources == {"shop/main.t2", "shop/main.t3"}


def test_batches_bring_the_same_rows_with_fewer_calls(relay_of):
    relay = relay_of(shop=mock(transactions_total=500))
    captured(relay, 500)
    one, many = Collector(), Collector()
    run_until(Client(relay.url, one), one, "shop", 500)
    run_until(Client(relay.url, many, config=ClientConfig(batch_rows_max=100_000)), many, "shop", 500)
    assert many.rows == one.rows
    assert len(many.scns["shop"]) < len(one.scns["shop"]) / 10


def test_a_transaction_larger_than_the_buffer_is_one_window_in_bounded_memory(relay_of):
    relay = relay_of(
        shop=mock(transactions_total=2, rows_per_transaction=20_000, row_bytes=200, group_bytes_max=65_536)
    )
    captured(relay, 2)
    consumer, starts = Collector(), []
    consumer.on_start_window = lambda window: starts.append(window.scn)
    config = ClientConfig(follow=FollowConfig(buffer_bytes_max=200_000), checkpoint_ms=0)
    run_until(Client(relay.url, consumer, config=config), consumer, "shop", 2)
    assert starts == [1, 2]
    assert consumer.rows > 40_000


def test_latest_is_where_it_was_when_the_consumer_first_came(relay_of, tmp_path):
    """A crash before the first checkpoint must not move it: what came meanwhile would be lost silently."""
    relay = relay_of(shop=mock(transactions_per_s=500))
    captured(relay, 20)
    first = Collector()
    first.fail = lambda _window: Result.ERROR_FATAL
    with pytest.raises(ConsumerFailed):
        Client(relay.url, first, start="latest", checkpoints=FileCheckpoints(tmp_path / "c.json"), config=QUICK).run()
    began = first.rollbacks[0]
    captured(relay, began + 50)
    second = Collector()
    again = Client(relay.url, second, start="latest", checkpoints=FileCheckpoints(tmp_path / "c.json"), config=QUICK)
    run_until(again, second, "shop", began + 50)
    assert second.scns["shop"][0] == began + 1


def test_pause_holds_the_calls_and_resume_goes_on_without_a_gap(relay_of):
    relay = relay_of(shop=mock(transactions_per_s=1_000, transactions_total=400))
    consumer = Collector()
    client = Client(relay.url, consumer)
    client.start()
    consumer.wait("shop", 20)
    client.pause()
    wait_for(lambda: client.state == "paused", "the pause")
    seen = len(consumer.scns["shop"])
    captured(relay, 400)
    assert len(consumer.scns["shop"]) == seen
    assert client.checkpoint.sources["shop"].scn == seen, "what was done is saved before it rests"
    client.resume()
    consumer.wait("shop", 400)
    client.stop()
    assert consumer.scns["shop"] == list(range(1, 401))


def test_stop_ends_a_client_that_waits_for_a_relay_that_is_away():
    """`stop` raises where it has to wait for longer than half a minute."""
    long = FollowConfig(backoff_first_ms=600_000, backoff_ms_max=600_000)
    client = Client("http://127.0.0.1:1", Collector(), config=ClientConfig(follow=long))
    with capture_logs() as logs:
        client.start()
        wait_for(lambda: [each for each in logs if each["event"] == "waiting for the relay"], "the wait")
        client.stop()


def test_stop_ends_a_read_that_blocks(relay_of):
    relay = relay_of(shop=mock(transactions_total=5))
    consumer = Collector()
    client = Client(relay.url, consumer)
    client.start()
    consumer.wait("shop", 5)
    client.stop()
    assert not [each for each in threading.enumerate() if each.name.startswith("databus-read")]
    assert consumer.calls == ["start", "stop"]


def test_closing_a_stream_from_another_thread_ends_its_reader(relay_of):
    relay = relay_of(shop=mock(transactions_total=5))
    client = captured(relay, 5)
    stream = client.stream("shop", "latest", follow=True)
    ended = threading.Event()

    def read():
        for _ in stream:
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    stream.interrupt()
    assert ended.wait(WAIT_S)


def test_a_wrong_token_is_refused_and_the_right_one_is_read_from_its_file(relay_of, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret-" * 4 + "\n")
    token.chmod(0o600)
    relay = relay_of(token_file=str(token), shop=mock(transactions_total=1))
    with pytest.raises(AccessDenied):
        RelayClient(relay.url, token="wrong").sources()  # noqa: S106
    with pytest.raises(AccessDenied):
        RelayClient(relay.url).sources()
    assert RelayClient(relay.url, token_file=token).sources()


@pytest.mark.parametrize("rows_max", [0, 100])
def test_a_busy_physical_source_keeps_no_other_waiting(relay_of, rows_max):
    relay = relay_of(busy=mock(transactions_total=4_000), one=mock(transactions_total=40, seed=3))
    captured(relay, 4_000, "busy")
    captured(relay, 40, "one")
    consumer, order = Collector(), []

    def note(window):
        if not order:
            others = [each for name, each in client._loop._sources.items() if name != window.physical]
            wait_for(lambda: all(each.lane.has_work for each in others), "something of each; who comes late is late")
        order.append(window.physical)

    consumer.on_start_window = note
    client = Client(relay.url, consumer, config=ClientConfig(batch_rows_max=rows_max))
    client.start()
    consumer.wait("busy", 4_000)
    consumer.wait("one", 40)
    client.stop()
    assert len(order) - 1 - order[::-1].index("one") < len(order) / 2


def test_a_busy_physical_source_keeps_no_others_checkpoint_waiting(relay_of):
    """What may come again after a crash is `checkpoint_ms`, not as long as another source is busy."""
    relay = relay_of(busy=mock(transactions_per_s=5_000, group_transactions_max=1), one=mock(transactions_total=3))
    captured(relay, 3, "one")
    consumer, store = Collector(), MemoryCheckpoints()
    client = Client(relay.url, consumer, checkpoints=store, config=ClientConfig(checkpoint_ms=200))
    is_over = threading.Event()

    def until_more_waits(_changes):
        wait_for(lambda: is_over.is_set() or client.status()["busy"].waiting_bytes, "more of it")

    consumer.on_data_events = until_more_waits  # so that something of it always waits
    client.start()
    try:
        wait_for(
            lambda: store.checkpoint and store.checkpoint.sources.get("one", SourceCheckpoint()).scn == 3,
            "its checkpoint",
        )
    finally:
        is_over.set()
        client.stop()


def test_the_checkpoint_of_a_window_stored_by_a_consumer_loses_nothing_of_any_physical_source(relay_of):
    relay = relay_of(shop=mock(transactions_per_s=400), crm=mock(transactions_per_s=300, seed=3))
    captured(relay, 20)
    captured(relay, 20, "crm")
    seen, stored = {"shop": {}, "crm": {}}, None
    for length in (1, 2, 30, 7, 60):
        consumer, scns = Collector(), []

        def keep(window, scns=scns, length=length):
            nonlocal stored
            if len(scns) > length:
                return Result.ERROR_FATAL  # killed: what it has stored is all that is left
            scns.append((window.physical, window.scn))
            stored = Checkpoint.from_json(window.checkpoint.dumps())
            return None

        consumer.fail = keep
        with pytest.raises(ConsumerFailed):
            Client(relay.url, consumer, start="latest", checkpoints=MemoryCheckpoints(stored), config=QUICK).run()
        for physical, scn in scns:
            seen[physical][scn] = True
    for found in seen.values():
        scns = sorted(found)
        assert scns == list(range(scns[0], scns[0] + len(scns))), "a gap"


@pytest.mark.parametrize("start", ["beginning", "latest"])
def test_a_database_that_the_relay_reaches_later_is_followed_from_its_first_change_on(tmp_path, start):
    shop = Database(groups=[order(1)])
    crm = Database(uuid="2" * 32, groups=[order(1), order(2)], identify_errors=[ServiceUnavailable("away")] * 100_000)
    with scripted(tmp_path, {"shop": shop, "crm": crm}) as relay:
        published(relay, "shop", 1)
        consumer = Collector()
        client = Client(relay.url, consumer, start=start, config=QUICK)
        client.start()
        wait_for(lambda: set(client.checkpoint.sources) == {"shop", "crm"}, "where both begin")
        shop.add(order(2))
        consumer.wait("shop", 2)
        assert "crm" not in consumer.scns
        crm.identify_errors.clear()
        consumer.wait("crm", 2)
        client.stop()
    assert consumer.scns["crm"] == [1, 2]
