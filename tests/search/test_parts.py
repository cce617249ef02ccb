"""What may happen to rows of a large transaction while they wait for its end, and to those who write them."""

import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from databus.core import Checkpoint, CorruptData, InputError, LockHeld, UnsupportedFeature
from databus.filters import TableChoice
from databus.flow import Bucket, DirectFeed, Ways
from databus.pipeline.engine._handle import OutputHandle
from databus.places import Position
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch, write_buckets
from tests.feeds import bring
from tests.outputs.harnesses import noted_of, order
from tests.search.proxy import SearchProxy
from tests.search.support import output_of
from tests.search.test_search_accidents import attempt, notes, opened, three_parts

NAME = "shop/main.orders"
LEFT = {"1": "third", "3": "third", "4": "first"}


@pytest.fixture
def opensearch(search_servers):
    found = search_servers("opensearch-2.19")
    found.ask("DELETE", "/_all")
    return found


def without_rows(batch):
    """The end of a transaction, of which no row is of these tables."""
    return replace(batch, items=())


class Held:
    """Has the proxy hold the first request that is `wanted` back for longer than the output waits for its answer."""

    def __init__(self, wanted):
        self._wanted = wanted
        self._is_held = False
        self._go_on, self._done = threading.Event(), threading.Event()

    def instead(self, method, path):
        if not self._is_held and self._wanted(method, path):
            self._is_held = True
            self._go_on.wait(60)

    def after(self, path, _answer):
        if self._go_on.is_set() and self._wanted("PUT", path):
            self._done.set()
        return False

    def carry_out(self):
        assert self._is_held
        self._go_on.set()
        assert self._done.wait(30)


def process(server, folder, buckets):
    handle = OutputHandle("index", output_of(server, folder, buckets=buckets), folder / ".databus")
    bring(handle)
    handle.open()
    return handle


def write(handle, batch):
    handle.write_direct(batch, partial(write_buckets, handle.output, batch))
    handle.advance(Checkpoint({batch.physical: batch.end}))


@pytest.mark.parametrize("number", [0, 3])
def test_who_was_given_up_for_dead_in_an_earlier_run_is_kept_out_however_many_buckets_there_are_now(
    server, tmp_path, number
):
    log, (first, second, last) = three_parts()
    handle = process(server, tmp_path, buckets=4)
    write(handle, log.batch(*first))
    with handle.output.part_writer().open(Bucket("shop", "index", "shop", number, 4)) as late:
        late._fence.take()  # it has begun, and hangs
        write(process(server, tmp_path, buckets=2), log.batch(second[0], last[1]))
        with pytest.raises(LockHeld, match="another attempt"):
            late._put(log.batch(*second), log.batch(*second).items[0], {1})


def test_rows_are_held_again_after_their_index_was_made_anew(server, tmp_path):
    """What was let go of leaves a version behind, which turned the same rows away when they came again."""
    log, parts = three_parts()
    with opened(server, tmp_path) as output:
        for begin, end in parts:
            write_batch(output, log.batch(begin, end))
        output.remove([NAME])
        for begin, end in parts:
            write_batch(output, log.batch(begin, end))
    assert notes(server) == LEFT


@pytest.mark.parametrize("has_rows", [True, False], ids=["rows", "no rows"])
def test_an_index_of_rows_that_wait_is_missed_when_it_was_removed(server, tmp_path, has_rows):
    log, ((_, one), (_, two), (_, end)) = three_parts()
    last = log.batch(two, end) if has_rows else without_rows(log.batch(two, end))
    with opened(server, tmp_path, buckets=1) as output:
        write_batch(output, log.batch(0, one))
        write_batch(output, log.batch(one, two))
        server.ask("DELETE", "/databus-parts")
        for _ in range(2):
            with pytest.raises(CorruptData, match=r"databus-parts was removed.*databus rebuild FILE index shop/main.o"):
                write_batch(output, last)
        output.remove([NAME])
        write_batch(output, last)


def test_a_task_that_is_late_by_a_transaction_does_not_hide_which_rows_wait(opensearch, tmp_path):
    log, parts = three_parts()
    begun = len(log.entries)
    log.begin().insert(ORDERS, order(7, "first"))
    log.update(ORDERS, order(7, "first"), order(7, "second"))
    log.update(ORDERS, order(7, "second"), order(7, "third"))
    with opened(opensearch, tmp_path, buckets=1) as output:
        for begin, end in (*parts, (begun, begun + 1), (begun + 1, begun + 3)):
            write_batch(output, log.batch(begin, end))
        with attempt(output) as late:
            late.write(log.batch(*parts[1]))
        opensearch.ask("DELETE", "/databus-parts")
        with pytest.raises(CorruptData, match="transaction at SCN 2 waited in it"):
            write_batch(output, without_rows(log.batch(begun + 3, begun + 5)))


def test_an_index_that_the_server_has_made_by_itself_is_not_taken_for_that_of_rows_that_wait(server, tmp_path):
    """In its mapping are texts, of which searches find the words: nothing of what is held there would be found."""
    log, ((_, one), _, _) = three_parts()
    server.ask("PUT", "/databus-parts/_doc/1", {"owner": "shop/index", "source": NAME, "log": "log-1", "scn": 1})
    with opened(server, tmp_path) as output, pytest.raises(InputError, match="was made by somebody else"):
        write_batch(output, log.batch(0, one))


def test_a_fence_that_is_written_late_lets_nobody_in_who_began_before(server, tmp_path):
    held = Held(lambda method, path: method == "PUT" and "fence" in path)
    with (
        SearchProxy(server, instead=held.instead, after=held.after) as proxy,
        opened(proxy, tmp_path, buckets=1, request_ms_max=3_000, retry_ms_max=30_000) as output,
        attempt(output) as late,
        attempt(output) as other,
    ):
        late._fence.take()  # its first request is given up
        other._fence.take()
        held.carry_out()
        other._fence.check()
        with pytest.raises(LockHeld):
            late._fence.check()


def test_a_place_that_is_written_late_does_not_take_a_table_back(server, tmp_path):
    log, _ = three_parts()
    log.begin().insert(ORDERS, order(9))
    middle = len(log.entries) - 1
    held = Held(lambda method, path: method == "PUT" and "place" in path)
    with (
        SearchProxy(server, instead=held.instead, after=held.after) as proxy,
        opened(proxy, tmp_path, request_ms_max=3_000, retry_ms_max=30_000) as output,
    ):
        write_batch(output, log.batch(0, middle))
        write_batch(output, log.batch(middle, middle + 1))
        wanted = noted_of(output, NAME)
        held.carry_out()
        assert noted_of(output, NAME) == wanted
        assert wanted.pair[0] == 2


def test_a_transaction_does_not_go_on_with_rows_that_another_log_counts_otherwise(opensearch, tmp_path):
    """The first log counts rows of more tables: what has smaller numbers in the second was taken for done."""
    first = ChangeLog(uuid="more").begin()
    first._seq = 10
    second = ChangeLog(uuid="fewer").begin()
    for log in (first, second):
        for key in (1, 2, 3):
            log.insert(ORDERS, order(key))
    with opened(opensearch, tmp_path, buckets=1) as output:
        write_batch(output, first.batch(0, 1))
        bucket = Bucket("shop", "index", "shop", 0, 1, Position(first.batch(0, 1).end, ((TableChoice(),),)))
        feed = DirectFeed(Ways(), output.part_writer(), bucket)
        with pytest.raises(UnsupportedFeature, match="part of the transaction at SCN 1 of shop from log more"):
            feed.write_ranges(lambda _: [second.batch(0, 3)], None, 0)


@pytest.mark.parametrize(("part", "request_"), [(1, 1), (2, 2)], ids=["holds", "puts"])
@pytest.mark.parametrize("buckets", [3, None], ids=["more", "whole"])
def test_a_task_of_another_number_of_buckets_that_goes_on_later_changes_nothing(
    opensearch, tmp_path, part, request_, buckets
):
    """It stands still before one of its requests, until others have written the transaction, in parts or as one."""
    log, parts = three_parts()
    seen, stands, go_on = [], threading.Event(), threading.Event()

    def stop(content):
        seen.append(content)
        if len(seen) - 1 == request_:
            stands.set()
            go_on.wait(60)

    def go(late):
        with suppress(LockHeld), attempt(late) as writer:
            writer.write(log.batch(*parts[part]))

    with opened(opensearch, tmp_path, buckets=1) as output:
        for begin, end in parts[:part]:
            write_batch(output, log.batch(begin, end))
    with SearchProxy(opensearch, stop) as proxy, opened(proxy, tmp_path, buckets=1) as late:
        thread = threading.Thread(target=go, args=[late])
        thread.start()
        assert stands.wait(30)
        with opened(opensearch, tmp_path, buckets=buckets or 1) as output:
            for begin, end in parts[part:] if buckets else [(parts[part][0], parts[-1][1])]:
                write_batch(output, log.batch(begin, end))
        assert notes(opensearch) == LEFT
        go_on.set()
        thread.join(30)
        assert not thread.is_alive()
    assert notes(opensearch) == LEFT
