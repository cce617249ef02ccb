"""Windows as a consumer sees them, over HTTP from a stub, in both encodings that a relay may answer in."""

import pytest

from databus.client import RelayClient, windows
from databus.core import PositionPurged, StreamCut, Unauthorized, Unavailable
from tests.client.stub import Stub, mock_groups

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
        (401, "Unauthorized", Unauthorized),
        (410, "", PositionPurged),
        (500, "NoSuchClass", Unavailable),
        (502, "", Unavailable),
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
    with pytest.raises(Unavailable, match=r"127.0.0.1:1 does not answer.*databus relay"):
        RelayClient("http://127.0.0.1:1").sources()


def test_a_response_cut_inside_a_chunk_is_a_cut_stream_and_not_an_end():
    source, groups = mock_groups(3, group_transactions_max=1)
    with Stub(source, groups, chunk_bytes=100) as stub:
        stub.frames[2] = stub.frames[2][:150]  # the group is incomplete, the encoding ends properly
        with pytest.raises(StreamCut), RelayClient(stub.url).stream("shop", "beginning", to=(3, 0)) as stream:
            assert sum(len(groups) for groups in stream) < 0, "all of it was taken for a whole"
