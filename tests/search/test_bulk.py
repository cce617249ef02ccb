"""Rows as bulk requests, and what is made of the answers; compared with what a few plain lines of Python make."""

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from databus.core import InputError, UnsupportedFeature
from databus.flow import key_ids
from databus.formats import to_json_value
from databus.schema import Column, TableSchema
from databus.sinks.search import check_names, index_name, operations, sort_answer

TABLE = TableSchema(
    "main.orders",
    (
        Column("id", "int64", nullable=False),
        Column("note", "string"),
        Column("total", "decimal(12,2)"),
        Column("at", "timestamp"),
        Column("raw", "binary"),
    ),
    ("id",),
)
VALUES = {"note": 'a "b"\n\\ü', "total": Decimal("1.50"), "at": dt.datetime(2026, 7, 1, 12), "raw": b"\x00\xff"}  # noqa: DTZ001


def rows_of(*changes):
    """changes: (key, SCN, seq, type)."""
    rows = [
        {"id": key, **VALUES, "_change_type": kind, "_commit_version": scn, "_seq": seq}
        for key, scn, seq, kind in changes
    ]
    kinds = {"id": pa.int64(), "note": pa.string(), "total": pa.decimal128(12, 2), "at": pa.timestamp("us")}
    more = {"raw": pa.binary(), "_change_type": pa.string(), "_commit_version": pa.int64(), "_seq": pa.int64()}
    return pa.Table.from_pylist(rows, pa.schema(kinds | more))


def lines_of(made):
    return [json.loads(line) for text in made.texts.to_pylist() for line in text.splitlines()]


def head(action, key, version):
    return {action: {"_index": "orders", "_id": str(key), "version": version, "version_type": "external_gte"}}


def document(key, scn, seq):
    return {"id": key, **{n: to_json_value(v) for n, v in VALUES.items()}, "_commit_version": scn, "_seq": seq}


CHANGES = rows_of(
    (1, 7, 1, "insert"),
    (2, 7, 2, "insert"),
    (1, 8, 1, "update_preimage"),
    (1, 8, 2, "update_postimage"),
    (2, 8, 3, "delete"),
    (3, 9, 1, "update_preimage"),
    (4, 9, 2, "update_postimage"),
)


def test_of_each_key_the_last_image_is_sent_with_its_version():
    made = operations(TABLE, CHANGES, ["id"], "orders")
    assert lines_of(made) == [
        head("index", 1, 8),
        document(1, 8, 2),
        head("index", 4, 9),
        document(4, 9, 2),
        head("delete", 2, 8),
        head("delete", 3, 9),
    ]
    assert [made.pair(place) for place in range(4)] == [(8, 2), (9, 2), (8, 3), (9, 1)]


def test_soft_deletes_keep_the_last_image_and_say_that_it_is_gone():
    made = operations(TABLE, CHANGES, ["id"], "orders", soft=True, typed=True)
    found = lines_of(made)
    assert found[1] == document(1, 8, 2) | {"_deleted": False}
    assert found[2]["index"]["_type"] == "_doc"
    assert found[3] == document(2, 8, 3) | {"_deleted": True}


@pytest.mark.parametrize("bytes_max", [1, 400, 1_000, 1 << 20])
def test_requests_hold_all_rows_once_within_their_bounds(bytes_max):
    made = operations(TABLE, rows_of(*((key, 5, key, "insert") for key in range(30))), ["id"], "orders")
    found = list(made.requests(bytes_max, 7))
    assert b"".join(body for _, _, body in found).decode() == "".join(made.texts.to_pylist())
    assert [begin for begin, _, _ in found] == [0, *(end for _, end, _ in found)][:-1]
    for begin, end, body in found:
        assert end - begin <= 7
        assert len(body) <= bytes_max or end == begin + 1
    ((_, _, some),) = made.take(np.array([3, 4])).requests(1 << 20, 9)
    assert [json.loads(line)["id"] for line in some.splitlines()[1::2]] == [3, 4]


IDS = [
    (pa.array([1, -5, None], pa.int64()), ["1", "-5", "sha256:null"]),
    (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
    (pa.array(["a/b", "ü"]), ["a/b", "ü"]),
    (pa.array([b"\xff\xfe"]), ["__4"]),
    (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), ["AQAAAAAAAAAAAAAAAAAAAA8"]),
]


@pytest.mark.parametrize(("column", "expected"), IDS)
def test_ids_of_short_keys_can_be_read(column, expected):
    assert key_ids([column]).to_pylist() == expected


def test_keys_that_no_id_can_be_have_ids_of_their_own():
    keys = ["", None, "x" * 512, "x" * 513, "x" * 514, "sha256:null", "sha256:x"]
    found = key_ids([pa.array(keys)]).to_pylist()
    assert len({*found}) == len(keys)
    assert all(0 < len(each) <= 512 for each in found)
    assert found[2] == keys[2]
    two = key_ids([pa.array(["a", "ab"]), pa.array(["bc", "c"])]).to_pylist()
    assert len({*two}) == 2


def test_unsigned_numbers_are_numbers_in_ids_and_documents():
    """Outputs hold them as decimals, which are text in JSON."""
    table = TableSchema("main.t", (Column("id", "uint64", nullable=False),), ("id",))
    wide = pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0))
    bus = {"_change_type": ["insert"], "_commit_version": [3], "_seq": [1]}
    made = operations(table, pa.table({"id": wide, **bus}), ["id"], "orders")
    assert lines_of(made) == [head("index", 2**64 - 1, 3), {"id": 2**64 - 1, "_commit_version": 3, "_seq": 1}]


def answer(*items):
    told = [{action: {"status": status, **({"error": error} if error else {})}} for action, status, error in items]
    return json.dumps({"errors": True, "items": told}).encode()


def test_an_answer_is_sorted_row_by_row():
    found = sort_answer(
        answer(
            ("index", 201, None),
            ("index", 200, None),
            ("delete", 404, None),
            ("index", 409, {"type": "version_conflict_engine_exception", "reason": "newer"}),
            ("delete", 409, {"type": "version_conflict_engine_exception", "reason": "newer"}),
            ("index", 429, {"type": "es_rejected_execution_exception", "reason": "queue"}),
            ("index", 503, {"type": "unavailable_shards_exception", "reason": "primary"}),
            ("index", 403, {"type": "cluster_block_exception", "reason": "read-only"}),
            ("index", 400, {"type": "mapper_parsing_exception", "reason": "x", "caused_by": {"reason": "no number"}}),
            ("index", 404, {"type": "index_not_found_exception", "reason": "gone"}),
        ),
        10,
    )
    assert (found.stale, found.busy) == ((3, 4), (5, 6, 7))
    assert [(each.place, each.status) for each in found.refused] == [(8, 400), (9, 404)]
    assert found.refused[0].reason == "mapper_parsing_exception: x: no number"
    assert sort_answer(b'{"errors":false,"items":[{"index":{"status":201}}]}', 1) == ((), (), (), "")


NOT_ALL_ROWS = [
    b'{"errors":false}',
    b'{"errors":false,"items":[]}',
    b'{"errors":false,"items":[{"index":{"status":201}}]}',
    b'{"errors":false,"items":[{"index":{"status":201}},{"index":{"sta',
    b'{"errors":false,"items":[{"index":{"status":201}},{"index":{"status":201}}',
    b'{"errors":true,"items":[{"index":{"status":201}}]}',
    b'{"acknowledged":true}',
    b"[]",
    b"<html><body>It works!</body></html>",
    b"",
]


@pytest.mark.parametrize("content", NOT_ALL_ROWS)
def test_an_answer_that_says_nothing_of_some_rows_is_no_success(content):
    with pytest.raises(ValueError, match="no answer to a bulk request of 2 rows"):
        sort_answer(content, 2)


def test_names_that_no_index_or_field_can_have_are_refused():
    assert index_name("{physical}-{db}.{table}", "shop", "main.Orders") == "shop-main.orders"
    for template in ("_{table}", "a b", "{table}*", "x" * 300):
        with pytest.raises(InputError, match="no index can be called"):
            index_name(template, "shop", "main.orders")
    for name in ("_id", "a.b", "_deleted", " "):
        with pytest.raises(UnsupportedFeature, match="no field of an index"):
            check_names(TableSchema("main.t", (Column("id", "int64"), Column(name, "string")), ("id",)))
