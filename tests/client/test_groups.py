"""Durable consumers and groups: names at a real relay, followed by windows and by callbacks."""

import asyncio
import multiprocessing
import threading
import time
from dataclasses import replace

import pytest

from databus.client import Client, ClientConfig, Consumer, ConsumerFailed, windows
from databus.core import (
    Checkpoint,
    ConfigError,
    ControlKind,
    Fenced,
    GroupDiffers,
    InputError,
    MalformedRequest,
    ServiceUnavailable,
    SourceCheckpoint,
    StaleCall,
    UnknownSource,
)
from databus.link import CoordinatorClient, GroupAnswer, RelayClient
from databus.link._connection import Kept
from databus.link._coordinator import _at
from databus.link._http import Endpoint
from databus.link._tls import Access
from databus.testing import RelayProcess
from databus.wire import Control, Group
from tests.client.conftest import Collector, captured, mock, wait_for
from tests.relay.support import ORDERS, Database, commit_of, get, post, published, rows_of, scripted

LEASE = {"lease_ms": 1_000}
PARTS = mock(transactions_total=6, rows_per_transaction=200, group_bytes_max=4_000)


def scns(following, until):
    """The SCNs of whole transactions, up to one."""
    found = []
    for window in following:
        if not window.continues:
            found.append(window.scn)
        if window.scn == until and not window.continues:
            break
    return found


@pytest.fixture
def relay(relay_of):
    relay = relay_of(shop=mock(transactions_total=60), groups=LEASE)
    captured(relay, 60)
    return relay


def thread_of(act):
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_a_name_goes_on_where_it_was(relay):
    with windows(relay.url, name="billing", follow=False) as following:
        assert scns(following, 20) == list(range(1, 21))
    with windows(relay.url, name="billing", follow=False, start="latest") as following:
        assert scns(following, 60) == list(range(20, 61))  # the last one was not done: none was asked for behind it
        assert next(following, None) is None
    with windows(relay.url, name="billing", follow=False) as following:
        assert list(following) == []


def test_who_gets_nothing_moves_on(relay):
    def places():
        page = get(relay, "/groups/never").json.get("partitions", [])
        return [each["checkpoint"]["sources"]["shop"]["scn"] for each in page]

    with windows(relay.url, name="never", where="id < 0", partitions=2) as following:
        taking = thread_of(lambda: list(following))
        wait_for(lambda: places() == [60, 60], "the places behind what nothing is in")
    taking.join(30)
    with windows(relay.url, name="never", where="id < 0", partitions=2, follow=False) as following:
        assert list(following) == []


@pytest.mark.parametrize("name", ["billing/delete", "billing#2", "a b", "billing?wait=1", "billing/export"])
def test_a_name_that_is_none_is_refused_and_reaches_no_other_group(relay, name):
    with windows(relay.url, name="billing", follow=False) as following:
        next(following)
    before = get(relay, "/groups/billing").json
    with windows(relay.url, name=name) as following, pytest.raises(MalformedRequest, match="is no name of a group"):
        next(following)
    after = get(relay, "/groups").json["groups"]
    assert [(each["name"], each["state"]) for each in after] == [("billing", before["state"])]


def test_a_pattern_that_fits_no_table_yet_is_said(relay, caplog):
    with windows(relay.url, sources=["shop/other.*", "shop/main.*"], follow=False) as following:
        next(following)
    said = [each.getMessage() for each in caplog.records if "no table fits yet" in each.getMessage()]
    assert len(said) == 1


def test_an_answer_that_is_none_of_a_group_ends_the_iterator(relay, monkeypatch):
    monkeypatch.setattr(CoordinatorClient, "call", lambda *_, **__: GroupAnswer("", {"hello": "world"}))
    with windows(relay.url, name="billing") as following, pytest.raises(KeyError):
        next(following)


def test_batches_and_event_loops_take_part(relay):
    with windows(relay.url, name="billing", follow=False) as following:
        batches = list(following.batches())
        assert sum(len(batch.windows) for batch in batches) == 60
        assert {(int(batch.partition), batch.fence > 0) for batch in batches} == {(0, True)}

    async def follow():
        async with windows(relay.url, name="other", follow=False) as following:
            return [window.scn async for window in following]

    assert asyncio.run(follow()) == list(range(1, 61))
    with windows(relay.url, name="other", follow=False) as following:
        assert list(following) == []


def test_a_second_process_of_a_name_takes_over_when_the_first_leaves_and_when_it_is_lost(relay):
    first, second, third = (windows(relay.url, name="billing") for _ in range(3))
    assert scns(first, 20) == list(range(1, 21))
    found = []
    standby = thread_of(lambda: found.extend(scns(second, 40)))
    wait_for(lambda: len(relay_members(relay)) == 2, "the standby")
    assert not found
    began = time.monotonic()
    first.close()
    standby.join(30)
    assert found == list(range(20, 41))
    assert time.monotonic() - began < 5
    second._membership.cancel()  # as if it had been killed: it calls no more
    assert scns(third, 60)[-1] == 60  # when the lease has ended
    third.close()
    second.close()


def relay_members(relay):
    return get(relay, "/groups/billing").json["members"]


def test_parts_of_a_partition_that_is_lost_are_taken_back_by_an_empty_window(relay_of):
    relay = relay_of(shop=PARTS, groups=LEASE)
    captured(relay, 6)
    with windows(relay.url, name="billing") as following:
        window = next(following)
        while not (window.scn == 2 and window.continues):
            window = next(following)
        following.drop(window)  # as a guarded table refuses it
        again = next(following)
        assert (again.restarts, again.is_empty, again.rows(), again.continues) == (True, True, [], False)
        assert again.checkpoint.sources["shop"].scn == 1
        assert (again.partition, again.fence) == (window.partition, window.fence)
        window = next(following)
        assert (window.scn <= 2, window.restarts) == (True, False)  # nothing is saved of what was refused
        assert window.fence > again.fence
        assert scns(following, 6)[-5:] == [2, 3, 4, 5, 6]


def test_nothing_is_saved_inside_a_transaction(relay_of):
    relay = relay_of(shop=PARTS, groups=LEASE)
    captured(relay, 6)
    following = windows(relay.url, name="billing")
    window = next(following)
    while not (window.scn == 3 and window.continues):
        window = next(following)
    next(following)
    following.close()
    with windows(relay.url, name="billing", follow=False) as following:
        assert scns(following, 6) == [3, 4, 5, 6]


def test_where_a_target_stands_counts_and_a_fence_that_it_refuses_comes_back_higher(relay):
    fences = []

    def take(partition, fence):
        fences.append(fence)
        if len(fences) < 3:
            raise Fenced("held by another")
        return Checkpoint({"shop": SourceCheckpoint(scn=50)})

    with windows(relay.url, name="billing", on_take=take, follow=False) as following:
        assert scns(following, 60) == list(range(51, 61))
    assert fences == sorted(set(fences))
    assert len(fences) == 3


def test_a_member_that_hears_nothing_stops_at_its_lease_and_goes_on_after(relay, monkeypatch):
    following = windows(relay.url, name="billing")
    found = [next(following).scn for _ in range(10)]
    call, is_cut = following._membership._coordinator.call, threading.Event()

    def cut(*given, **more):
        if is_cut.is_set():
            raise ServiceUnavailable("cut")
        return call(*given, **more)

    monkeypatch.setattr(following._membership._coordinator, "call", cut)
    is_cut.set()
    wait_for(lambda: not following.partitions, "the end of the lease")
    rest = []
    reading = thread_of(lambda: rest.extend(scns(following, 60)))
    time.sleep(0.1)  # in which nothing may come
    assert rest == []
    is_cut.clear()
    reading.join(30)
    assert found == list(range(1, 11))
    assert rest[0] <= 11  # where it was saved last
    assert rest == list(range(rest[0], 61))
    following.close()


def test_errors_are_raised_where_windows_are_asked_for(relay):
    with pytest.raises(InputError, match="name"):
        windows(relay.url, partitions=2)
    with windows(relay.url, name="billing", sources=["shop/main.t1"]) as following:
        next(following)
        with windows(relay.url, name="billing", sources=["shop/main.t2"]) as other, pytest.raises(GroupDiffers):
            next(other)
        with windows(relay.url, name="new", sources=["shop/main.nowhere"]) as other, pytest.raises(UnknownSource):
            next(other)
    with windows([relay.url, "http://127.0.0.1:1"], name="x") as other, pytest.raises(ConfigError, match="coordinator"):
        next(other)


def test_a_fork_does_not_speak_for_the_process_that_made_it(relay):
    with windows(relay.url, name="billing") as following:
        next(following)
        context = multiprocessing.get_context("fork")
        told = context.Queue()

        def child():
            try:
                next(following)
            except InputError as error:
                told.put(str(error))

        process = context.Process(target=child)
        process.start()
        assert "fork" in told.get(timeout=30)
        process.join(30)
        assert scns(following, 60)[-1] == 60


class Recorder(Collector):
    """A consumer of one partition."""

    def __init__(self, partition):
        super().__init__()
        self.partition = partition
        self.keys = set()
        self.threads = set()

    def on_data_events(self, changes):
        self.threads.add(threading.get_ident())
        self.keys |= {(changes.source, *row.key) for row in changes.rows()}


def all_at(client, scn, count):
    status = client.status()
    return len(status) == count and all(each.delivered[0] >= scn for each in status.values())


def test_each_partition_of_a_client_has_a_consumer_and_a_thread_of_its_own(relay):
    made = {}

    def factory(partition):
        return made.setdefault(int(partition), Recorder(partition))

    client = Client(relay.url, factory, name="billing", partitions=3)
    client.start()
    wait_for(lambda: all_at(client, 60, 3), "all partitions")
    assert set(client.status()) == {"0/3 shop", "1/3 shop", "2/3 shop"}
    threads = [each.threads for each in made.values()]
    assert all(len(each) == 1 for each in threads)
    assert len(set.union(*threads)) == 3
    keys = [each.keys for each in made.values()]
    assert sum(map(len, keys)) == len(set.union(*keys))  # each key is of one partition
    with windows(relay.url, follow=False) as following:
        everything = {(row.source, *row.key) for window in following for row in window.rows()}
    assert set.union(*keys) == everything
    client.stop()
    others = {}
    client = Client(relay.url, lambda p: others.setdefault(int(p), Recorder(p)), name="billing", partitions=3)
    client.start()
    wait_for(lambda: len(client.status()) == 3, "all partitions once more")
    client.stop()
    assert not any(each.scns for each in others.values())


def test_a_durable_consumer_with_callbacks_saves_what_it_did(relay):
    consumer = Collector()
    client = Client(relay.url, consumer, name="billing", config=ClientConfig(checkpoint_ms=0))
    client.start()
    consumer.wait("shop", 60)
    client.stop()
    again = Collector()
    with Client(relay.url, again, name="billing") as client:
        client.start()
        wait_for(client.status, "the partition")
    assert again.scns == {}
    assert consumer.calls == ["start", "stop"]


def test_a_callback_that_does_not_come_back_gives_its_partition_to_another_member(relay, readers):
    is_over = threading.Event()

    class Stuck(Collector):
        def on_start_window(self, window):
            if window.scn == 10:
                is_over.wait(60)

    with pytest.raises(ConsumerFailed, match="callback_ms_max=300"):
        Client(relay.url, Stuck(), name="billing", config=ClientConfig(callback_ms_max=300, checkpoint_ms=0)).run()
    with windows(relay.url, name="billing", follow=False) as following:
        assert scns(following, 60) == list(range(10, 61))
    is_over.set()
    wait_for(lambda: not readers(), "the end of the thread that waited for the callback")


def test_a_callback_whose_target_refuses_the_fence_costs_no_retry(relay):
    consumer, refused = Collector(), []

    def fail(window):
        if window.scn == 10 and not refused:
            refused.append(window)
            raise Fenced("another has written")

    consumer.fail = fail
    with Client(relay.url, consumer, name="billing", config=ClientConfig(retries_max=0)) as client:
        client.start()
        consumer.wait("shop", 60)


def test_one_consumer_is_not_called_by_two_threads(relay):
    with pytest.raises(InputError, match="partition"):
        Client(relay.url, Consumer(), name="billing", partitions=2).run()


def test_a_group_is_resized_and_paused_while_it_runs(relay):
    made = []

    def factory(partition):
        made.append((int(partition), partition.of))
        return Recorder(partition)

    client = Client(relay.url, factory, name="billing", partitions=2, config=ClientConfig(checkpoint_ms=0))
    client.start()
    wait_for(lambda: all_at(client, 60, 2), "both partitions")
    post(relay, "/groups/billing/resize", to=4)
    wait_for(lambda: set(client.status()) == {f"{number}/4 shop" for number in range(4)}, "four partitions")
    assert sorted(made) == [(0, 2), (0, 4), (1, 2), (1, 4), (2, 4), (3, 4)]
    post(relay, "/groups/billing/pause")
    wait_for(lambda: not client.status(), "the pause")
    post(relay, "/groups/billing/resume")
    wait_for(lambda: len(client.status()) == 4, "all partitions once more")
    client.stop()


BY_NAME = replace(ORDERS, key=("name",))


def orders_at(table, scn):
    rows = [{"id": number, "name": f"n{number}"} for number in range(20)]
    return Group(commit_of(scn, 20), (rows_of(table, scn, rows),))


def other_key(scn):
    """A control behind which orders have another key, so that their rows fall to other partitions."""
    body = {
        "kind": "schema", "source": ORDERS.source, "ddl": "ALTER", "class": 3, "table": BY_NAME.to_json(),
        "previous": f"{ORDERS.fingerprint:016x}", "renamed": {}, "fill": {},
    }  # fmt: skip
    return Group(commit_of(scn, 1), (), Control(ControlKind.SCHEMA, BY_NAME, scn, 1, body))


def test_no_partition_goes_past_a_control_that_deals_keys_anew_before_all_have_come_to_it(tmp_path):
    database = Database()
    found = {0: [], 1: []}
    with scripted(tmp_path, {"shop": database}, groups=LEASE) as relay:
        both = [windows(relay.url, name="billing", partitions=2) for _ in range(2)]
        taken = [thread_of(lambda n=n: found[n].extend(scns(both[n], 1))) for n in found]
        wait_for(lambda: all(len(each.partitions) == 1 for each in both), "one for each")
        database.add(orders_at(ORDERS, 1), other_key(2), orders_at(BY_NAME, 3))
        for thread in taken:
            thread.join(30)
        assert list(found.values()) == [[1], [1]]
        first = thread_of(lambda: found[0].extend(scns(both[0], 3)))
        wait_for(lambda: both[0]._last.scn == 2, "the control")
        time.sleep(0.3)  # in which it must not go on
        assert both[0]._last.scn == 2
        second = thread_of(lambda: found[1].extend(scns(both[1], 3)))
        first.join(30)
        second.join(30)
        assert list(found.values()) == [[1, 2, 3], [1, 2, 3]]
        for each in both:
            each.close()


@pytest.mark.parametrize("leaves", [False, True], ids=["all stay", "one leaves"])
def test_partitions_that_come_to_such_controls_of_two_sources_in_another_order_go_on(tmp_path, leaves):
    """As where one ALTER is run on all shards at once: each waited for the other, for ever, and after restarts too."""
    shards = {"one": Database(), "two": Database(uuid="22222222-2222-2222-2222-222222222222")}
    terms = {"sources": ["one/*", "two/*"], "name": "billing", "partitions": 2, "start": "beginning"}
    found = []  # partition, physical source and SCN, whoever was given it

    def take(following, until):
        for window in following:
            found.append((int(window.partition), window.physical, window.scn))
            if until(found):
                return

    def has(physical, scn, partitions=(0, 1)):
        return lambda seen: {(each, physical, scn) for each in partitions} <= set(seen)

    with scripted(tmp_path, shards, groups=LEASE) as relay:
        members = [windows(relay.url, **terms) for _ in range(2)]
        held = [0, 0]
        for physical, database in shards.items():  # the last one is the first that is looked at next
            mine = lambda seen, n, at=physical: has(at, 1, [held[n]])(seen)  # noqa: E731
            threads = [thread_of(lambda n=n, mine=mine: take(members[n], lambda seen: mine(seen, n))) for n in range(2)]
            wait_for(lambda: all(len(each.partitions) == 1 for each in members), "one for each")
            held[:] = [int(each.partitions[0]) for each in members]
            database.add(orders_at(ORDERS, 1))
            for thread in threads:
                thread.join(30)
        shards["one"].add(other_key(2), orders_at(BY_NAME, 3))
        take(members[0], has("one", 2, held[:1]))
        whole = lambda seen: all(has(physical, 3)(seen) for physical in shards)  # noqa: E731
        threads = [thread_of(lambda: take(members[0], whole))]
        shards["two"].add(other_key(2), orders_at(BY_NAME, 3))
        wait_for(lambda: all(len(each.reader.channel) for each in members[1]._lanes), "both controls")
        take(members[1], has("two", 2, held[1:]))
        assert not has("one", 2, held[1:])(found)
        if leaves:
            members[1].close()
            members[1] = windows(relay.url, **terms)
        threads.append(thread_of(lambda: take(members[1], whole)))
        wait_for(lambda: whole(found), "what is behind both controls")
        for physical in shards:
            first = [[each for each in found if each[1] == physical].index((n, physical, 2)) for n in range(2)]
            assert max(first) < [each[2] for each in found if each[1] == physical].index(3), found
        for each in members:
            each.close()


def test_nobody_goes_past_such_a_control_that_only_the_target_of_a_dead_member_knows(tmp_path):
    """It was killed before it had said so to the coordinator; whoever held its partition next went past the control."""
    database, places, found = Database(groups=[orders_at(ORDERS, 1)]), {}, []

    def take(following, until):
        for window in following:
            found.append((int(window.partition), window.scn))
            places[int(window.partition)] = window.checkpoint
            if until(window):
                return

    with scripted(tmp_path, {"shop": database}, groups=LEASE) as relay:
        published(relay, "shop", 1)
        terms = {"name": "billing", "partitions": 2, "start": "latest"}
        members = [windows(relay.url, **terms, on_take=lambda number, _: places.get(int(number))) for _ in range(3)]
        threads = [thread_of(lambda n=n: take(members[n], lambda _: True)) for n in range(2)]
        wait_for(lambda: [len(member.partitions) for member in members[:2]] == [1, 1], "a partition for each")
        database.add(orders_at(ORDERS, 2))
        for thread in threads:
            thread.join(30)
        assert sorted(found) == [(0, 2), (1, 2)]
        database.add(*(orders_at(ORDERS, scn) for scn in range(3, 6)), other_key(6), orders_at(BY_NAME, 7))
        dead, alive = members[:2]
        take(dead, lambda window: window.scn == 6)
        number = found[-1][0]
        dead._membership.cancel()
        thread = thread_of(lambda: take(members[2], lambda window: window.scn == 7))
        wait_for(lambda: members[2]._lanes and members[2]._lanes[0].hold.waits, "the control that stands in the target")
        assert (number, 7) not in found
        take(alive, lambda window: window.scn == 6)
        last = thread_of(lambda: take(alive, lambda window: window.scn == 7))
        for each in (thread, last):
            each.join(30)
        assert {(0, 7), (1, 7)} <= set(found)
        assert len(found) == len(set(found))
        for each in members[1:]:
            each.close()
        dead._end()


def test_a_member_calls_over_one_connection_until_somebody_ends_it(tmp_path, monkeypatch):
    """A call each second must not cost the relay a connection each; one that has ended is seen before it is used."""
    taken: list[object] = []
    take = Kept.take
    monkeypatch.setattr(Kept, "take", lambda *asked: taken.append(take(*asked)) or taken[-1])
    with RelayProcess(tmp_path, {"shop": {"type": "mock", "transactions_total": 6}}) as relay:
        coordinator = CoordinatorClient(RelayClient(relay.url))

        def call(number):
            body = {"member": "a-member-of-mine", "call": number, "sources": ["shop/main.events"], "holds": {}}
            assert coordinator.call("billing", body, limit_ms=5_000).error == ""

        for number in (1, 2, 3):
            call(number)
        assert taken[0] is None
        assert taken[1] is taken[2] is not None
        relay.kill()
        relay.start()
        call(4)
        coordinator.interrupt()
        call(5)
        assert taken[3] is None
        assert taken[4] is not None
        coordinator.close()
        assert coordinator._kept._held is None


def test_a_relay_that_names_another_sends_members_there(relay, relay_of):
    second = relay_of(folder="second", shop=mock(transactions_total=60), groups={"coordinator": relay.url})
    call = {"member": "a-member-of-mine", "call": 1, "sources": ["shop/main.t1"], "holds": {}}
    answer = CoordinatorClient(RelayClient(second.url)).call("billing", call, limit_ms=5_000)
    assert (answer.error, list(answer.content["take"])) == ("", ["0"])
    assert [each["member"] for each in relay_members(relay)] == ["a-member-of-mine"]
    told = CoordinatorClient(RelayClient(second.url)).call("billing", call, limit_ms=5_000)
    assert (told.error, told.content["last"], type(told.to_error())) == ("StaleCall", 1, StaleCall)


def test_a_token_does_not_leave_tls_because_a_relay_names_another():
    endpoint = Endpoint.of("https://relay-a", token=None, access=Access(), connect_ms_max=100, read_ms_max=100)
    assert _at(endpoint, "https://relay-b:11115").is_tls
    with pytest.raises(ConfigError, match=r"names http://relay-b:11115 .*without TLS"):
        _at(endpoint, "http://relay-b:11115")
