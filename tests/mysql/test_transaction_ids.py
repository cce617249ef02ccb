"""Whether a position contains a transaction, by whatever the source's SCNs are made of."""

import pytest

from databus.sources.mysql import MysqlSource

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def place(file="", offset=0, gtids=None):
    return {"file": file, "offset": offset, "gtids": gtids, "server_uuid": None}


@pytest.mark.parametrize(
    ("scheme", "position", "txid", "found"),
    [
        ("gtid", place(gtids=f"{A}:1-5:8,{A}:backup:3"), f"{A}:5", True),
        ("gtid", place(gtids=f"{A}:1-5:8"), f"{A}:8", True),
        ("gtid", place(gtids=f"{A}:1-5:8"), f"{A}:7", False),
        ("gtid", place(gtids=f"{A}:1-5:backup:3"), f"{A}:backup:3", True),
        ("gtid", place(gtids=f"{A}:1-5:backup:3"), f"{A}:backup:2", False),
        ("gtid", place(gtids=""), f"{A}:1", False),
        ("gtid", place(gtids=None), f"{A}:1", None),
        ("gtid", place(gtids="what is this"), f"{A}:1", None),
        ("gtid", place(gtids=f"{A}:1-5"), "binlog.000001:4", None),
        ("domains", place(gtids="0-1-10,7-2-3"), "0-1-9", True),
        ("domains", place(gtids="0-1-10,7-2-3"), "0-2-9", True),  # another server was the primary then
        ("domains", place(gtids="0-1-10,7-2-3"), "0-1-10", True),
        ("domains", place(gtids="0-1-10,7-2-3"), "0-2-10", False),  # of two primaries at the same time
        ("domains", place(gtids="0-1-10,7-2-3"), "0-1-11", False),
        ("domains", place(gtids="0-1-10,7-2-3"), "8-1-1", False),
        ("domains", place(gtids=""), "0-1-1", False),
        ("file-offset", place("log.000002", 500), "log.000002:499", True),
        ("file-offset", place("log.000002", 500), "log.000001:9999", True),
        ("file-offset", place("log.000002", 500), "log.000002:500", False),
        ("file-offset", place("log.000002", 500), "log.000010:4", False),
        ("file-offset", place("", 0, "0-1-5"), "log.000010:4", None),
        ("file-offset", place("log.000002", 500, "0-2-50"), "0-1-100", None),  # numbers that may go back
    ],
)
def test_a_position_contains_what_was_committed_before_it(scheme, position, txid, found):
    assert MysqlSource.contains(scheme, position, txid) is found
