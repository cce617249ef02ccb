"""Filtered streams and ranges: what passes, from the files and at the tail, and what is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from databus.core import ControlKind
from databus.filters import StreamFilter
from databus.relay import Relay, _filters
from databus.schema import Column, TableSchema
from databus.wire import Control, Group
from tests.relay.support import (
    ORDERS,
    Database,
    commit_of,
    connect,
    get,
    order,
    parts,
    path_of,
    published,
    rows_of,
    sale,
    scripted,
    truncate,
    until,
)
from tests.relay.test_streams import Follower

TOTALS = TableSchema("main.orders", (*ORDERS.columns, Column("total", "int32")), ("id",))


def altered(scn: int, before: TableSchema, after: TableSchema, **told: Any) -> Group:
    body = {
        "kind": ControlKind.SCHEMA,
        "source": after.source,
        "class": 1,
        "table": after.to_json(),
        "previous": f"{before.fingerprint:016x}",
        "renamed": {},
        "fill": {},
        "ddl": "ALTER TABLE orders",
        **told,
    }
    return Group(commit_of(scn, 1), (), Control(ControlKind.SCHEMA, after, scn, 1, body))


def ids(groups: list[Any]) -> list[int]:
    return [row["id"] for group in groups for frame in group.rows for row in frame.batch.to_pylist()]


@pytest.fixture
def database() -> Database:
    return Database(groups=[order(1), order(2, "b"), sale(3), order(4), truncate(5), *parts(6, 2)])


@pytest.mark.parametrize("follow", [0, 1])
def test_a_stream_brings_the_rows_of_the_condition_and_every_commit(tmp_path: Path, database: Database, follow: int):
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 6)
        asked = {"sources": "orders", "where": "name = 'b' OR id >= 18"}
        if follow:
            follower = Follower(relay, **asked)
            groups = [follower.next() for _ in range(7)]
        else:
            groups = get(relay, "/stream", output="frames", **asked).groups
        assert [group.commit.last_scn for group in groups] == [1, 2, 3, 4, 5, 6, 6]
        assert ids(groups) == [2, 3, 18, 19, 20]
        assert [group.control is not None for group in groups] == [False] * 4 + [True] + [False] * 2
        if follow:
            until(lambda: relay.captures["shop"].log is not None)
            database.add(order(7, "b"), order(8), order(9, "b"))
            later = [follower.next() for _ in range(3)]
            assert ([group.commit.last_scn for group in later], ids(later)) == ([7, 8, 9], [7, 9])
            follower.close()


def test_columns_come_with_the_key_and_a_definition_of_their_own(tmp_path: Path, database: Database):
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 6)
        groups = get(relay, "/stream", output="frames", filters=json.dumps({"stock": {"columns": ["id"]}})).groups
        (frame,) = [frame for group in groups for frame in group.rows if frame.header.source_id == 2]
        assert frame.batch.to_pylist()[0].keys() >= {"id"}
        assert "left" not in frame.batch.schema.names
        for more in ({}, {"filters": json.dumps({"stock": {"columns": ["id"]}})}):
            (told,) = get(relay, "/register", fingerprint=f"{frame.header.fingerprint:016x}", **more).json
            table = TableSchema.from_json(told["table"])
            assert (table.names, table.fingerprint) == (("id",), frame.header.fingerprint)
            assert told["name"] == "shop/main.stock"
        assert [row["name"] for row in _rows(relay, columns="name", sources="orders")][:3] == ["a", "b", "b"]


def _rows(relay: Relay, **query: Any) -> list[Mapping[str, Any]]:
    groups = get(relay, "/stream", output="frames", **query).groups
    return [row for group in groups for frame in group.rows for row in frame.batch.to_pylist()]


def test_json_has_what_passes_and_where_to_go_on(tmp_path: Path, database: Database):
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 6)
        lines = get(relay, "/stream", sources="orders", where="id = 4", columns="id").lines
        assert [(line["_source"], line["id"]) for line in lines if "id" in line] == [("shop/main.orders", 4)] * 2
        assert "name" not in lines[0]
        assert lines[-1]["_position"]["scn"] == 6
        assert sum("truncate" in json.dumps(line) for line in lines) == 1


def test_partitions_at_the_tail_and_from_the_files_are_the_whole(tmp_path: Path, database: Database):
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 6)
        followers = [Follower(relay, sources="orders", partition=f"{part}/3") for part in range(3)]
        whole = sorted(ids(get(relay, "/stream", output="frames", sources="orders").groups))
        groups = [[follower.next() for _ in range(7)] for follower in followers]
        assert sorted(each for some in groups for each in ids(some)) == whole
        assert all(some[4].control is not None for some in groups)
        tail = relay_tail(relay)
        until(lambda: len(tail._lines) == 3, "three lines")
        twin = Follower(relay, sources="orders", partition="1/3", start="latest")
        until(lambda: len(tail._followers) == 4, "four followers")
        assert len(tail._lines) == 3  # who asks for the same shares one
        database.add(*(order(scn) for scn in range(7, 27)))
        later = [[follower.next() for _ in range(20)] for follower in (*followers, twin)]
        assert sorted(each for some in later[:3] for each in ids(some)) == list(range(7, 27))
        assert ids(later[3]) == ids(later[1])
        for follower in (*followers, twin):
            follower.close()


def relay_tail(relay: Relay) -> Any:
    return relay._server._commands._tails["shop"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"where": "totl = 1"}, ["main.orders", "'totl'"]),
        ({"where": "nam = 'a'"}, ["main.orders", "did you mean 'name'"]),
        ({"where": "name = 1"}, ["main.orders", "character 8", "text"]),
        ({"where": "name ="}, ["where", "character 7"]),
        ({"where": f"name = '{'x' * 17_000}'"}, ["16384"]),
        ({"columns": "nme"}, ["columns", "did you mean 'name'"]),
        ({"columns": ","}, ["columns"]),
        ({"partition": "3/3"}, ["partition", "0/8"]),
        ({"partition": "x"}, ["partition"]),
        ({"filters": "{"}, ["filters", "JSON"]),
        ({"filters": '{"orders": {"wher": "id = 1"}}'}, ["filters: orders"]),
        ({"filters": '{"ordrs": {"where": "id = 1"}}'}, ["did you mean 'orders'"]),
        ({"filters": '{"9": {"partitionType": "RANGE", "filters": []}}'}, ["'9'", "/sources"]),
        ({"filters": '{"1": {"partitionType": "HASH"}}'}, ["HASH", "MOD"]),
    ],
)
@pytest.mark.parametrize("path", ["/stream", "/range"])
def test_a_filter_that_does_not_fit_is_refused_and_says_why(shared: Relay, path: str, query: Any, words: list[str]):
    answer = get(shared, path, sources="orders", **query)
    assert answer.status == 400, answer.body
    assert [word for word in words if word not in answer.body.decode()] == [], answer.body


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    with scripted(tmp_path_factory.mktemp("relay"), {"shop": Database(groups=[order(1), sale(2)])}) as relay:
        published(relay, "shop", 2)
        yield relay


def test_the_originals_filters_are_read(tmp_path: Path, database: Database):
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 6)
        found = {"1": {"partitionType": "RANGE", "filters": [{"keyRange": {"start": 2, "end": 4}}]}}
        assert [row["id"] for row in _rows(relay, sources="orders", filters=json.dumps(found))][:2] == [2, 3]
        buckets = [
            {"1": {"partitionType": "MOD", "filters": [{"numBuckets": 2, "bktRange": {"start": at, "end": at + 1}}]}}
            for at in range(2)
        ]
        rows = [row["id"] for each in buckets for row in _rows(relay, sources="orders", filters=json.dumps(each))]
        assert sorted(rows) == sorted(row["id"] for row in _rows(relay, sources="orders"))


def test_too_many_distinct_filters_are_429(shared: Relay, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_filters, "FILTERS_MAX", 1)
    follower = Follower(shared, sources="orders", where="id = 1")
    same = Follower(shared, sources="orders", where="id = 1")
    answer = get(shared, "/stream", sources="orders", where="id = 2")
    assert (answer.status, "distinct" in answer.body.decode()) == (429, True)
    follower.close()
    same.close()
    until(lambda: get(shared, "/stream", sources="orders", where="id = 2", wait_ms=0).status == 200)


def test_a_range_counts_what_passes_and_moves_on_where_nothing_does(tmp_path: Path, database: Database):
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 6)
        found = get(relay, "/range", sources="orders", where="name = 'b'").json
        assert (found["rows"], found["position"]["scn"], [each["kind"] for each in found["controls"]]) == (
            2,
            6,
            ["truncate"],
        )
        limited = get(relay, "/range", sources="orders", where="name = 'b'", rows_max=1).json
        assert (limited["rows"], limited["position"]["scn"]) == (1, 2)
        nothing = get(relay, "/range", sources="stock", where="id = 77", scn=3, wait_ms=0).json
        assert (nothing["rows"], nothing["position"]["scn"]) == (0, 6)


def test_a_stream_ends_before_a_column_of_its_condition_goes_away_and_names_it(tmp_path: Path):
    total = {"id": 1, "name": "a", "total": 7}
    database = Database(
        tables=(TOTALS,),
        groups=[
            Group(commit_of(1, 1), (rows_of(TOTALS, 1, [total]),)),
            altered(2, TOTALS, ORDERS),
            order(3),
        ],
    )
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 3)
        answer = get(relay, "/stream", output="frames", where="total > 5", max_bytes=1_000_000)
        assert (answer.status, ids(answer.groups), [group.commit.last_scn for group in answer.groups]) == (
            200,
            [1],
            [1],
        )
        refused = get(relay, "/stream", output="frames", where="total > 5", scn=1)
        assert refused.status == 400
        assert "loses its column total" in refused.body.decode()
        ranged = get(relay, "/range", where="total > 5").json
        assert (ranged["rows"], ranged["position"]["scn"]) == (1, 1)
        assert get(relay, "/range", where="total > 5", scn=1).status == 400
        assert "has no column 'total'" in get(relay, "/stream", where="total > 5", start="latest").body.decode()


def test_a_control_says_where_rows_before_it_were_judged_by_other_values(tmp_path: Path):
    database = Database(
        tables=(ORDERS,), groups=[order(1), altered(2, ORDERS, TOTALS, fill={"total": 9}, **{"class": 2}), order(3)]
    )
    database.groups[2] = Group(commit_of(3, 1), (rows_of(TOTALS, 3, [{"id": 3, "name": "c", "total": 9}]),))
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 3)
        groups = get(relay, "/stream", output="frames", where="total = 9", columns="total").groups
        (control,) = [group.control.control for group in groups if group.control]
        assert (control["exact"], control["fill"]) == (False, {"total": 9})
        assert [each["name"] for each in control["table"]["columns"]] == ["id", "total"]
        assert ids(groups) == [3]
        (plain,) = [group.control.control for group in get(relay, "/stream", output="frames").groups if group.control]
        assert "exact" not in plain


def test_a_filter_says_how_to_ask_for_it():
    wanted = StreamFilter.parse("a = 1", ["a", "b"], None, "1/4")
    assert wanted.query() == {"where": "a = 1", "columns": "a,b", "partition": "1/4"}
    for given in ({"where": "a = 1"}, {"columns": ["a,b"]}, {"filters": {"t": {"where": "a = 1", "columns": ["x"]}}}):
        wanted = StreamFilter.parse(**given)
        assert StreamFilter.parse(**wanted.query()) == wanted
    mixed = StreamFilter.parse(where="a = 1", filters={"t": {"columns": ["x"]}})
    assert StreamFilter.parse(**mixed.query()) == mixed


@pytest.mark.parametrize(
    "asked", [{"where": "id > 3", "columns": "id"}, {"partition": "1/3"}, {"output": "json", "where": "id > 900"}]
)
def test_who_reads_slowly_behind_a_filter_gets_the_same_from_memory_and_files(tmp_path: Path, asked: Any):
    database = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": database}, serve={"tail_bytes_max": 1 << 20}) as relay:
        published(relay, "shop", 1)
        query = {"output": "frames", "follow": 1, "to": "9", "start": "beginning", **asked}
        connection = connect(relay)
        connection.request("GET", path_of("/stream", query))
        response = connection.getresponse()
        until(lambda: "shop" in relay._server._commands._tails and relay_tail(relay)._followers, "the tail")
        for scn in range(2, 10):
            database.add(*parts(scn, 3, 3_000))
        published(relay, "shop", 9)
        until(lambda: not relay_tail(relay)._followers, "it has left the tail")
        slow = response.read()
        connection.close()
        whole = get(relay, "/stream", **{**query, "follow": 0, "wait_ms": 0}).body
        assert _without_positions(slow) == _without_positions(whole)


def _without_positions(body: bytes) -> bytes:
    """JSON has them where pieces end, which is elsewhere from the files."""
    return b"\n".join(each for each in body.split(b"\n") if b"_position" not in each)
