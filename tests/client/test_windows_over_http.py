"""Windows as a consumer sees them, over HTTP from a stub, in both encodings that a relay may answer in."""

import json
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from databus.client import Client, ClientConfig, FollowConfig, ReaderState, windows
from databus.core import AccessDenied, CorruptData, PositionPurged, ServiceUnavailable, SourceCheckpoint, StreamCut
from databus.link import RelayClient
from databus.testing import TcpProxy
from databus.wire import Group, Rows
from tests.client.conftest import Collector, wait_for
from tests.client.stub import Stub, encode, mock_groups

FOUR = {f"main.t{i}": {"columns": {"id": "int64", "name": "string", "at": "timestamptz"}} for i in range(4)}


@pytest.mark.parametrize("chunk_bytes", [0, 1, 777, 100_000])
def test_every_window_arrives_whole_and_in_order(chunk_bytes):
    transactions = 20 if chunk_bytes == 1 else 500
    source, groups = mock_groups(transactions, schemas=FOUR, rows_per_transaction=20)
    with Stub(source, groups, chunk_bytes=chunk_bytes) as stub, windows(stub.url, follow=False) as following:
        seen, last, rows = [], (0, 0), 0
        for window in following:
            seen.append((window.scn, window.txid))
            rows += sum(len(batch) for batch in window.tables().values())
            for row in window.rows():
                assert row.pair > last
                last = row.pair
    assert seen == [(n, f"0-{n}") for n in range(1, transactions + 1)]
    assert rows == sum(source.expected_rows(table.source, transactions) for table in source.tables())


@pytest.mark.parametrize(
    ("status", "name", "expected"),
    [
        (410, "PositionPurged", PositionPurged),
        (401, "AccessDenied", AccessDenied),
        (410, "", PositionPurged),
        (500, "NoSuchClass", ServiceUnavailable),
        (502, "", ServiceUnavailable),
    ],
)
def test_errors_of_the_relay_arrive_as_their_own_class_with_its_message(status, name, expected):
    source, groups = mock_groups(1)
    with Stub(source, groups) as stub:
        headers = {"x-dbus-error": name, "x-dbus-error-message": "the oldest is 17"} if name else {}
        stub.fail = status, headers, b"<html>"
        with pytest.raises(expected, match="the oldest is 17" if name else str(status)):
            RelayClient(stub.url).stream("shop", "beginning")


def test_a_relay_that_is_not_there_is_unavailable_and_named():
    with pytest.raises(ServiceUnavailable, match=r"127.0.0.1:1 does not answer.*databus relay"):
        RelayClient("http://127.0.0.1:1").sources()


def test_a_response_shorter_than_it_said_is_a_cut_stream_even_between_groups():
    source, groups = mock_groups(3, group_transactions_max=1)
    with Stub(source, groups) as stub:
        body = stub.frames[0] + stub.frames[1]
        stub.fail = 200, {"content-length": str(len(body) + len(stub.frames[2])), "connection": "close"}, body
        with RelayClient(stub.url).stream("shop", "beginning") as stream, pytest.raises(StreamCut):
            for _ in stream:
                pass


def test_reconnecting_asks_for_what_comes_after_the_last_whole_group():
    source, groups = mock_groups(40, group_transactions_max=1)
    with Stub(source, groups) as stub, TcpProxy("127.0.0.1", stub.server.server_port) as proxy:
        proxy.truncate_after(sum(map(len, stub.frames[:20])))
        with windows(proxy.url, config=FollowConfig(backoff_first_ms=1), start=SourceCheckpoint("uuid-1")) as following:
            assert [next(following).scn for _ in range(40)] == list(range(1, 41))
        asked = [parse_qs(urlsplit(each).query)["from"][0] for each in stub.requests if each.startswith("/stream")]
    positions = [json.loads(each) for each in asked]
    assert [each["scn"] > 10 for each in positions] == [False, True]
    assert positions[1]["txid"] == f"0-{positions[1]['scn']}"


def test_rows_that_no_relay_sends_are_told_to_the_consumer_and_stop_the_source():
    source, groups = mock_groups(3, group_transactions_max=1)
    rows = groups[1].rows[0]
    backwards = rows.batch.take(pa.array(range(len(rows.batch) - 1, -1, -1)))
    two = pa.concat_batches([backwards, groups[0].rows[0].batch])
    groups[1] = Group(groups[1].commit, (Rows(rows.table, two),))
    consumer = Collector()
    with Stub(source, groups) as stub, pytest.raises(CorruptData, match="is not after the row before it"):
        Client(stub.url, consumer).run()
    assert consumer.scns == {"shop": [1]}
    assert [type(error) for error in consumer.errors] == [CorruptData]


def test_nobody_waits_for_the_rest_of_a_transaction_whose_source_is_away():
    source, groups = mock_groups(2, rows_per_transaction=400, group_bytes_max=20_000)
    with Stub(source, groups) as stub:
        stub.others["crm"] = encode(mock_groups(5, group_transactions_max=1, seed=9)[1])
        stub.groups_max = 3  # of shop's first transaction; then it is away
        consumer = Collector()
        config = ClientConfig(follow=FollowConfig(backoff_first_ms=1, backoff_ms_max=5), retry_first_ms=1)
        client = Client(stub.url, consumer, config=config)
        client.start()
        wait_for(lambda: consumer.rows and client.status()["shop"].reader is ReaderState.WAITING, "the outage")
        stub.gate.set()
        consumer.wait("crm", 5)
        assert consumer.rollbacks == [0]
        stub.groups_max = None
        stub.away.clear()
        consumer.wait("shop", 2)
        client.stop()
    assert consumer.scns == {"crm": [1, 2, 3, 4, 5], "shop": [1, 2]}


def test_a_response_cut_inside_a_chunk_is_a_cut_stream_and_not_an_end():
    source, groups = mock_groups(3, group_transactions_max=1)
    with Stub(source, groups, chunk_bytes=100) as stub:
        stub.frames[2] = stub.frames[2][:150]  # the group is incomplete, the encoding ends properly
        with pytest.raises(StreamCut), RelayClient(stub.url).stream("shop", "beginning", to=(3, 0)) as stream:
            assert sum(len(groups) for groups in stream) < 0, "all of it was taken for a whole"
