"""What goes wrong with an index and with those who write it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from databus.core import ControlKind, CorruptData, InputError, LockHeld, ServiceUnavailable, UnrepresentableValue
from databus.filters import TableChoice
from databus.flow import Bucket, DirectFeed, Ways
from databus.places import Position
from databus.sinks.search import SearchCluster
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from databus.testing.servers import ServerMissing, open_search_server
from tests.listening import taken_by
from tests.outputs.harnesses import log_of, order
from tests.search.proxy import SearchProxy
from tests.search.support import OUTPUTS, output_of


@pytest.fixture
def opensearch(search_servers):
    found = search_servers("opensearch-2.19")
    found.ask("DELETE", "/_all")
    return found


@contextmanager
def opened(server, folder, **options):
    output = output_of(server, folder, **options)
    output.open()
    try:
        yield output
    finally:
        output.close()


def all_of(log):
    return log.batch(0, len(log.entries))


def notes(server):
    return {key: each["note"] for key, each in server.documents("orders").items()}


def attempt(output, number=0):
    return output.part_writer().open(Bucket("shop", "index", "shop", number, 1))


def test_a_task_given_up_for_dead_that_writes_an_older_batch_changes_nothing(server, tmp_path):
    log = log_of(1, 2)
    log.begin().update(ORDERS, order(1), order(1, "newer"))
    log.begin().delete(ORDERS, order(2))
    with opened(server, tmp_path, buckets=1) as output:
        with attempt(output) as late:
            late.write(log.batch(0, 1))
            write_batch(output, all_of(log))
            assert notes(server) == {"1": "newer"}
            assert late.write(log.batch(0, 2)) == {"main.orders": 0}
        assert notes(server) == {"1": "newer"}


def test_a_task_given_up_for_dead_brings_nothing_back_that_its_transaction_has_truncated(server, tmp_path):
    """The row and the truncation have one version."""
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1))
    log.control(ControlKind.TRUNCATE, ORDERS)
    log.insert(ORDERS, order(2, "new"))
    with opened(server, tmp_path, buckets=1) as output, attempt(output) as late:
        write_batch(output, all_of(log))
        late.write(all_of(log))
    assert notes(server) == {"2": "new"}


def test_an_older_attempt_at_a_part_of_a_transaction_is_kept_out(opensearch, tmp_path):
    """Both parts have one version, by which the server cannot tell them apart."""
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "first"))
    log.update(ORDERS, order(1, "first"), order(1, "second"))
    with opened(opensearch, tmp_path, buckets=1) as output, attempt(output) as late:
        late._fence.take()  # it has begun, and hangs
        with attempt(output) as other:
            other.write(log.batch(0, 1))
            other.write(log.batch(1, 3))
        with pytest.raises(LockHeld, match="another attempt"):
            late._put(log.batch(0, 1), log.batch(0, 1).items[0], {1})
    assert notes(opensearch) == {"1": "second"}


def three_parts():
    """One transaction in three parts. Rows of key 1 are in all, those of others in one, two, or come and go."""
    log = ChangeLog().begin()
    for key in (1, 2, 3, 4):
        log.insert(ORDERS, order(key, "first"))
    log.update(ORDERS, order(1, "first"), order(1, "second"))
    log.update(ORDERS, order(2, "first"), order(2, "second"))
    log.delete(ORDERS, order(3, "first"))
    log.update(ORDERS, order(1, "second"), order(1, "third"))
    log.insert(ORDERS, order(3, "third"))
    log.delete(ORDERS, order(2, "second"))
    return log, [(0, 4), (4, 9), (9, len(log.entries))]


LATE = [
    *(pytest.param("opensearch-2.19", "hard", late, id=f"opensearch-{late}") for late in range(7)),
    pytest.param("opensearch-2.19", "soft", 0, id="opensearch-soft"),
    pytest.param("elasticsearch-6.8", "hard", 0, id="elasticsearch-0"),
    pytest.param("elasticsearch-6.8", "hard", 2, id="elasticsearch-2"),
]


@pytest.mark.parametrize(("kind", "deletes", "late"), LATE)
def test_a_request_that_was_given_up_and_is_carried_out_later_puts_no_older_row_of_its_transaction(
    search_servers, tmp_path, kind, deletes, late
):
    """The proxy holds one bulk request back for longer than the output waits, until all parts were written."""
    server = search_servers(kind)
    server.ask("DELETE", "/_all")
    log, parts = three_parts()
    seen, held, done = [], threading.Event(), threading.Event()

    def hold(content):
        seen.append(content)
        if len(seen) - 1 == late:
            held.wait(60)

    def after(path, _answer):
        if path.startswith("/_bulk") and held.is_set():
            done.set()
        return False

    with (
        SearchProxy(server, hold, after=after) as proxy,
        opened(proxy, tmp_path, buckets=1, request_ms_max=3_000, retry_ms_max=30_000, deletes=deletes) as output,
        attempt(output) as writer,
    ):
        for begin, end in parts:
            writer.write(log.batch(begin, end))
        wanted = server.documents("orders")
        held.set()
        assert done.wait(30)
    assert len(seen) == 8
    assert server.documents("orders") == wanted
    there = {key: each["note"] for key, each in wanted.items() if not each.get("_deleted")}
    assert there == {"1": "third", "3": "third", "4": "first"}
    assert server.documents("databus-parts") == {}


@pytest.mark.parametrize("buckets", [1, 3])
def test_parts_may_be_written_by_another_number_of_tasks_and_end_where_the_ledger_says(opensearch, tmp_path, buckets):
    """The last batch begins before the parts that were written, and has only what is above them."""
    log, ((_, one), (_, two), (_, end)) = three_parts()
    with opened(opensearch, tmp_path, buckets=4 - buckets) as output:
        write_batch(output, log.batch(0, one))
    with opened(opensearch, tmp_path, buckets=buckets) as output:
        write_batch(output, log.batch(one, two))
        known = log.batch(0, two).end
        for number in range(buckets):
            bucket = Bucket("shop", "index", "shop", number, buckets, Position(known, ((TableChoice(),),)))
            feed = DirectFeed(Ways(key=output.config.key_choice), output.part_writer(), bucket)
            feed.write_ranges(lambda _: [log.batch(0, end)], None, number)
    assert notes(opensearch) == {"1": "third", "3": "third", "4": "first"}
    assert opensearch.documents("databus-parts") == {}


@pytest.mark.parametrize("kind", [ControlKind.TRUNCATE, ControlKind.DROP])
def test_rows_of_a_part_do_not_come_back_after_a_truncation_in_a_later_one(opensearch, tmp_path, kind):
    log = ChangeLog().begin()
    for key in (1, 2):
        log.insert(ORDERS, order(key, "first"))
    for key in (1, 2):
        log.update(ORDERS, order(key, "first"), order(key, "second"))
    log.control(kind, ORDERS)
    log.insert(ORDERS, order(2, "new"))
    log.insert(ORDERS, order(3, "new"))
    with opened(opensearch, tmp_path) as output:
        for begin, end in ((0, 2), (2, 6), (6, 8), (8, 9)):
            write_batch(output, log.batch(begin, end))
    assert notes(opensearch) == {"2": "new", "3": "new"}


def test_outputs_that_ask_one_cluster_at_a_time_do_not_take_each_other_s_connection(opensearch):
    with SearchProxy(opensearch, instead=lambda _, path: (200, {"path": path})) as proxy, ThreadPoolExecutor() as pool:
        cluster = SearchCluster((proxy.url,))

        def ask(output):
            paths = [f"/{output}/{number}" for number in range(50)]
            return [cluster.client().ask("GET", path)["path"] for path in paths] == paths

        assert all(pool.map(ask, range(3)))
        assert len(proxy.seen) == 150


def test_a_server_that_answers_byte_by_byte_is_given_up():
    is_over = threading.Event()

    def drip(connection):
        with suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not is_over.wait(0.02):
                connection.sendall(b"x")

    with taken_by(drip) as port:
        try:
            with pytest.raises(ServiceUnavailable, match=r"no whole answer within 0\.2 s"):
                SearchCluster((f"http://127.0.0.1:{port}",), request_ms_max=200, retry_ms_max=0).client().ask(
                    "GET", "/"
                )
        finally:
            is_over.set()


TURNED_AWAY = {"index": {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "queue"}}}
REFUSED = {"mapping": {"note": {"type": "integer"}}}


def test_a_row_that_the_server_refuses_stops_the_output_and_is_named(server, tmp_path):
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "12"))
    log.begin().insert(ORDERS, order(2, "twelve"))
    named = r"(?s)shop/main.orders.*\(2, 1\).*document 2.*note"
    with opened(server, tmp_path, **REFUSED) as output, pytest.raises(UnrepresentableValue, match=named):
        write_batch(output, all_of(log))
    again = opened(server, tmp_path, on_error="retry", **REFUSED)
    with again as output, pytest.raises(ServiceUnavailable, match="tried again"):
        write_batch(output, all_of(log))


def test_a_server_that_is_killed_is_waited_for_and_takes_the_batch_when_it_is_back(opensearch, tmp_path):
    log = log_of(1, 2)
    with opened(opensearch, tmp_path) as output:
        write_batch(output, log.batch(0, 1))
        opensearch.kill()
        with pytest.raises(ServiceUnavailable, match="no answer"):
            write_batch(output, log.batch(1, 2))
        opensearch.start()
        write_batch(output, log.batch(1, 2))
    assert set(notes(opensearch)) == {"1", "2"}


def test_rows_that_a_busy_server_turns_away_are_sent_again_and_no_others(opensearch, tmp_path):
    """A whole request is turned away, then all rows of one but the first; what was taken is not sent again."""
    log = log_of(*range(10))
    bodies = []

    def busy(content):
        bodies.append(content)
        if len(bodies) == 1:
            return 429, {"error": {"type": "rejected", "reason": "busy"}}
        rows = content.count(b'{"index":')
        if len(bodies) == 2:
            return 200, {"errors": True, "items": [{"index": {"status": 201}}, *[TURNED_AWAY] * (rows - 1)]}
        return None

    secret = {"user": "bus", "password": "hidden"}
    with SearchProxy(opensearch, busy) as proxy, opened(proxy, tmp_path, buckets=1, **secret) as it:
        with attempt(it) as writer:
            writer.write(all_of(log))
        seen = [headers.get("Authorization") for _, _, headers in proxy.seen]
        assert set(seen) == {"Basic YnVzOmhpZGRlbg=="}
        assert "hidden" not in repr(it.part_writer()) + repr(it.config)
    assert bodies[0] == bodies[1]
    assert bodies[2].count(b'{"index":') == 9
    assert set(notes(opensearch)) == {str(number) for number in range(1, 10)}


def test_a_server_that_stays_busy_ends_the_batch_in_time(opensearch, tmp_path):
    def busy(content):
        return 200, {"errors": True, "items": [TURNED_AWAY] * content.count(b'{"index":')}

    told = pytest.raises(ServiceUnavailable, match=r"takes no rows .*429.*queue")
    with SearchProxy(opensearch, busy) as proxy, opened(proxy, tmp_path) as output, told:
        write_batch(output, all_of(log_of(1)))


def test_an_index_of_somebody_else_is_left_alone(server, tmp_path):
    server.ask("PUT", "/orders/_doc/mine?refresh=true", {"note": "mine"})
    with opened(server, tmp_path) as output, pytest.raises(InputError, match="has not written"):
        write_batch(output, all_of(log_of(1)))
    assert notes(server) == {"mine": "mine"}
    server.ask("DELETE", "/orders")
    with opened(server, tmp_path) as output:
        write_batch(output, all_of(log_of(1)))
    with opened(server, tmp_path, name="other") as other, pytest.raises(InputError, match="written by shop/index"):
        write_batch(other, all_of(log_of(5)))


def test_an_index_that_is_removed_while_it_is_written_is_missed(opensearch, tmp_path):
    log = log_of(1, 2)
    with opened(opensearch, tmp_path) as output:
        write_batch(output, log.batch(0, 1))
        opensearch.ask("DELETE", "/orders")
        with pytest.raises(CorruptData, match="databus rebuild"):
            write_batch(output, log.batch(1, 2))


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two"])
def test_rows_that_are_read_anew_after_their_column_has_another_type_are_all_there(opensearch, tmp_path, together):
    """The index is removed and filled again, also where the snapshot is in the batch that brings the change."""
    columns = [replace(column, type="bool") if column.name == "note" else column for column in ORDERS.columns]
    flags = replace(ORDERS, columns=tuple(columns))
    log = log_of(1, 2)
    log.begin().schema(flags, 3)
    cut = len(log.entries)
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, flags, generation=1)
    log.snapshot(flags, [{**order(1), "note": True}, {**order(3), "note": False}])
    log.bus_control(ControlKind.SNAPSHOT_END, flags, generation=1, begin=[*begin.pair], complete=True)
    with opened(opensearch, tmp_path) as output:
        for batch in log.batches([] if together else [cut]):
            try:
                write_batch(output, batch)
            except ServiceUnavailable:
                write_batch(output, batch)
        mapping = opensearch.ask("GET", "/orders/_mapping")["orders"]["mappings"]
    assert notes(opensearch) == {"1": True, "3": False}
    assert mapping["properties"]["note"]["type"] == "boolean"


def test_soft_deletes_and_truncation_keep_documents_that_say_so(server, tmp_path):
    log = log_of(1, 2)
    log.begin().delete(ORDERS, order(1))
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(3))
    with opened(server, tmp_path, deletes="soft", aliases=["all_{table}"]) as output:
        write_batch(output, log.batch(0, 3))
        assert {key: each["_deleted"] for key, each in server.documents("all_orders").items()} == {
            "1": True,
            "2": False,
        }
        write_batch(output, log.batch(3, 5))
    found = server.documents("orders")
    assert {key: each["_deleted"] for key, each in found.items()} == {"1": True, "2": True, "3": False}
    assert (found["2"]["_commit_version"], found["1"]["_commit_version"]) == (4, 3)


def test_a_server_of_the_other_product_is_refused(server, tmp_path):
    kind = next(kind for kind in OUTPUTS if kind != server.kind)
    with pytest.raises(InputError, match=f"is {OUTPUTS[server.kind].product}.*`type: {OUTPUTS[kind].product}`"):
        output_of(server, tmp_path, kind=kind).open()


def truncated_after(*keys):
    log = log_of(*keys)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    return log


PAGES = [
    b"<html><body>Welcome</body></html>",
    b'{"errors":false,"items":[{"index":{"status":201}}]}',
    b'{"took":3,"errors":false}',
    b"",
]


@pytest.mark.parametrize("page", PAGES)
def test_a_proxy_that_answers_for_the_server_has_all_rows_sent_again(opensearch, tmp_path, page):
    """A page of its own, an answer that was cut short, one about other rows, an empty one; each with status 200."""
    told = [page]
    log = log_of(1, 2)
    with (
        SearchProxy(opensearch, lambda _: (200, told.pop()) if told else None) as proxy,
        opened(proxy, tmp_path, buckets=1) as output,
    ):
        with pytest.raises(ServiceUnavailable, match="no answer to a bulk request of 2 rows"):
            write_batch(output, all_of(log))
        write_batch(output, all_of(log))
    assert set(notes(opensearch)) == {"1", "2"}


@pytest.mark.parametrize("page", [b"default backend - 404", b'{"message":"no Route matched with those values"}'])
def test_a_proxy_that_knows_of_no_server_does_not_say_that_an_index_is_missing(opensearch, tmp_path, page):
    """As while a cluster behind it is being moved; documents of a truncated table would stay for ever."""
    log = truncated_after(1, 2)
    away = [True]

    def instead(_method, path):
        return (404, page) if away and not path.startswith("/_bulk") else None

    with opened(opensearch, tmp_path) as output:
        write_batch(output, log.batch(0, 2))
    away.clear()
    with SearchProxy(opensearch, instead=instead) as proxy, opened(proxy, tmp_path) as output:
        away.append(True)
        with pytest.raises(ServiceUnavailable, match="perhaps of a proxy"):
            write_batch(output, log.batch(2, 3))
        away.clear()
        write_batch(output, log.batch(2, 3))
    assert notes(opensearch) == {}


def test_a_truncation_waits_for_shards_that_are_not_there(opensearch, tmp_path):
    """A search passes over the documents of a shard that no node has, and is no error. The proxy says what a cluster
    without one of two nodes says.
    """
    log = truncated_after(1, 2)
    part = {"total": 2, "successful": 1, "skipped": 0, "failed": 0}
    found = {"_scroll_id": "x", "timed_out": False, "_shards": part, "hits": {"total": 0, "hits": []}}
    missing = [True]

    def instead(_method, path):
        return (200, found) if missing and "_search?scroll" in path else None

    with opened(opensearch, tmp_path) as output:
        write_batch(output, log.batch(0, 2))
    with SearchProxy(opensearch, instead=instead) as proxy, opened(proxy, tmp_path) as output:
        with pytest.raises(ServiceUnavailable, match="not all of its shards answer"):
            write_batch(output, log.batch(2, 3))
        missing.clear()
        write_batch(output, log.batch(2, 3))
    assert notes(opensearch) == {}


def test_a_page_whose_answer_is_lost_is_not_passed_over(server, tmp_path, monkeypatch):
    """The request for it, sent again, gets the page behind it."""
    monkeypatch.setattr("databus.sinks.search._sweep._PAGE", 5)
    log = truncated_after(*range(1, 21))
    lost = []

    def after(path, _answer):
        if path == "/_search/scroll" and len(lost) < 1:
            lost.append(path)
            return True
        return False

    with opened(server, tmp_path) as output:
        write_batch(output, log.batch(0, 20))
    with SearchProxy(server, after=after) as proxy, opened(proxy, tmp_path) as output:
        with pytest.raises(ServiceUnavailable, match="pages with 5 documents were lost"):
            write_batch(output, log.batch(20, 21))
        write_batch(output, log.batch(20, 21))
    assert notes(server) == {}


@pytest.fixture(params=OUTPUTS)
def small(request, tmp_path):
    """A server that takes requests of 64 KiB. It answers before it has read what is longer, and hangs up."""
    server = open_search_server(request.param, tmp_path / "small", settings={"http.max_content_length": "64kb"})
    try:
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))  # which says why it cannot be had here
    yield server
    server.close()


def test_what_is_too_large_as_one_request_goes_in_smaller_ones(small, tmp_path):
    """So do documents that a truncation marks. One that alone is too large is refused for itself, and no other is. One
    that is not may wait for the end of its transaction, however many of its characters are escaped.
    """
    log = ChangeLog().begin()
    for key in range(300):
        log.insert(ORDERS, order(key, "x" * 20_000))
    log.begin().insert(ORDERS, order(1_000, "x" * 100_000))
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(1_001, '"'))
    log.update(ORDERS, order(1_001, '"'), order(1_001, '"' * 20_000))
    with opened(small, tmp_path, buckets=1) as output:
        write_batch(output, log.batch(0, 300))
        assert set(notes(small)) == {*map(str, range(300))}
        with pytest.raises(UnrepresentableValue, match=r"document 1000: status 413: 1\d{5} bytes"):
            write_batch(output, log.batch(300, 301))
    with opened(small, tmp_path, buckets=1, deletes="soft", on_error="dead_letter") as output:
        write_batch(output, log.batch(300, 301))
        (letter,) = output.letters.read(output.letters.files()[0]).letters
        assert letter.id == "1000"
        write_batch(output, log.batch(301, 302))
        assert {document["_deleted"] for document in small.documents("orders").values()} == {True}
        for begin, end in ((302, 303), (303, 305)):
            write_batch(output, log.batch(begin, end))
    assert small.documents("orders")["1001"]["note"] == '"' * 20_000


def test_large_documents_come_in_smaller_pages(server, tmp_path, monkeypatch):
    """A page of a sweep that is larger than any answer may be was asked for ever."""
    monkeypatch.setattr("databus.sinks.search._client._ANSWER_BYTES_MAX", 1 << 20)
    log = ChangeLog().begin()
    for key in range(300):
        log.insert(ORDERS, order(key, "x" * 20_000))
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    with opened(server, tmp_path, buckets=1, deletes="soft") as output:
        for begin, end in ((0, 300), (300, 301)):
            write_batch(output, log.batch(begin, end))
    assert [document["_deleted"] for document in server.documents("orders").values()] == [True] * 300
