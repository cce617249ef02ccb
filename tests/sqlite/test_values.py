"""Values are exact, or the source stops naming the one that is not."""

import math

import pytest

from databus.core import ConfigError, UnrepresentableValue
from tests.sqlite.conftest import Shop
from tests.sqlite.model import changes_of, controls_of, drain, drain_until, kinds_of

DECLARED = {
    "i": "INTEGER",
    "big": "BIGINT",
    "r": "REAL",
    "s": "TEXT",
    "vc": "VARCHAR(10)",
    "b": "BLOB",
    "ok": "BOOLEAN",
    "day": "DATE",
    "at": "TIMESTAMP",
    "n": "DECIMAL(10,2)",
    "x": "",
    "j": "JSON",
}
EXPECTED = ["int64", "int64", "float64", "string", "string", "binary", "int64", "string", "string", "float64"]


def make(shop: Shop) -> None:
    columns = ", ".join(f"{name} {declared}" for name, declared in DECLARED.items())
    shop.run(f"CREATE TABLE t(id INTEGER PRIMARY KEY, {columns})")


def put(shop: Shop, **values: object) -> None:
    marks = ", ".join("?" for _ in values)
    shop.db.execute(f"INSERT INTO t({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


VALUES: list[dict[str, object]] = [
    {"id": 1},
    {"id": -(2**63), "i": 2**63 - 1, "big": -(2**63), "ok": 1, "n": 0.5, "r": 5e-324},
    {"id": 2**63 - 1, "i": 0, "r": math.inf, "n": -math.inf, "s": "", "b": b"", "vc": "\0", "day": "2026-02-30"},
    {"id": 5, "r": -0.0, "s": "a\0b\0", "b": bytes(range(256)) * 4096, "vc": "𝄞 naïve ✓", "at": "now", "n": 2**53},
    {"id": 6, "r": 1.7976931348623157e308, "s": "x" * 1_000_000, "ok": 7},
]


def test_every_value_comes_out_as_it_is_by_change_and_by_snapshot(shop: Shop) -> None:
    make(shop)
    source = shop.start()
    drain(source, shop.log)
    for value in VALUES:
        put(shop, **value)
    logged = drain(source, shop.log)
    source.request_snapshot(["main.t"])
    read = drain(source, shop.log)
    names = ["id", *DECLARED]
    for groups, snapshot in ((logged, False), (read, True)):
        found = {row["id"]: row for _, row in kinds_of(groups, snapshot=snapshot)}
        for value in VALUES:
            expected = {name: value.get(name) for name in names}
            row = found[value["id"]]
            assert row == expected
            assert math.copysign(1, row["r"] or 1) == math.copysign(1, value.get("r") or 1)
            assert all(type(row[name]) in (type(expected[name]), float) for name in names)
    table = source.tables()[0]
    assert [column.type for column in table.columns[1:11]] == EXPECTED
    assert table.key == ("id",)


@pytest.mark.parametrize(
    "value",
    [1, -(2**63), 1.5, 1e300, 0.1 + 0.2, math.inf, -math.inf, "it's", "", "a\0b", b"", b"\0\xff", "naïve", 9.0, None],
)
def test_a_column_without_a_type_holds_the_literal_of_any_value(shop: Shop, value: object) -> None:
    make(shop)
    source = shop.start()
    drain(source, shop.log)
    put(shop, id=1, x=value)
    ((_, row),) = kinds_of(drain(source, shop.log))
    if value is None:
        assert row["x"] is None
        return
    (again,) = shop.db.execute(f"SELECT {row['x']}").fetchone()
    assert type(again) is type(value)
    assert again == value


BAD = [
    ("i", "text", "found text, 'text'"),
    ("i", 1.5, "found a real, 1.5"),
    ("s", b"blob", "found a blob"),
    ("b", "text", "found text"),
    ("n", "many", "found text"),
    ("n", 2**53 + 1, "found an integer"),
    ("day", 20260101, "found an integer"),
]


@pytest.mark.parametrize(("column", "value", "found"), BAD)
def test_a_value_that_its_type_cannot_hold_is_named_with_what_mends_it(
    shop: Shop, column: str, value: object, found: str
) -> None:
    make(shop)
    source = shop.start()
    drain(source, shop.log)
    put(shop, id=1, i=1)
    put(shop, **{"id": 7, column: value})
    with pytest.raises(UnrepresentableValue) as error:
        drain(source, shop.log)
    for words in ("main.t", repr(column), "id=7", found, f"types: {{main.t: {{{column}: any}}}}"):
        assert words in str(error.value)
    source.close()
    source = shop.start()  # nothing is skipped by starting again
    with pytest.raises(UnrepresentableValue):
        drain(source, shop.log)
    source.close()
    source = shop.start(types={"main.T": {column.upper(): "any"}})
    drain(source, shop.log)
    assert sorted(shop.log.mirror().rows["main.t"]) == [(1,), (7,)]
    kinds = [body["kind"] for body in controls_of(shop.log.groups)]
    assert kinds[2:] == ["schema", "snapshot_begin", "snapshot_end"]
    put(shop, id=8, s="after")
    assert [row["id"] for _, row in kinds_of(drain(source, shop.log))] == [8]


def test_a_value_that_cannot_be_held_stops_a_snapshot_too(shop: Shop) -> None:
    make(shop)
    put(shop, id=3, i="text")
    source = shop.start()
    with pytest.raises(UnrepresentableValue, match=r"main\.t, column 'i', .*id=3"):
        drain(source, shop.log)


@pytest.mark.parametrize("by", ["change", "snapshot"])
def test_text_that_is_not_utf8_is_an_error(shop: Shop, by: str) -> None:
    make(shop)
    bad = "INSERT INTO t(id, s) VALUES (4, CAST(x'61ff' AS TEXT))"
    if by == "snapshot":
        shop.run(bad)
    source = shop.start()
    if by == "change":
        drain(source, shop.log)
        shop.run(bad)
    with pytest.raises(UnrepresentableValue, match=r"'s'.*id=4.*not UTF-8 \(byte 1\)"):
        drain(source, shop.log)


def test_null_in_a_declared_key_is_refused_since_such_rows_have_no_identity(shop: Shop) -> None:
    shop.run("CREATE TABLE t(a TEXT PRIMARY KEY, v)")
    source = shop.start()
    drain(source, shop.log)
    shop.run("INSERT INTO t VALUES (NULL, 1)")
    with pytest.raises(UnrepresentableValue, match="NULL in a key column"):
        drain(source, shop.log)


def test_a_table_without_a_declared_key_has_none_and_carries_full_images(shop: Shop) -> None:
    shop.run("CREATE TABLE t(a TEXT, b INT)", "INSERT INTO t VALUES ('x', 1), ('x', 1)")
    source = shop.start()
    drain(source, shop.log)
    assert source.tables()[0].key == ()
    shop.run("UPDATE t SET b = 2 WHERE rowid = 1", "DELETE FROM t WHERE rowid = 2")
    found = kinds_of(drain(source, shop.log))
    assert found == [(2, {"a": "x", "b": 1}), (3, {"a": "x", "b": 2}), (4, {"a": "x", "b": 1})]


def test_strict_and_composite_and_generated(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE t(b INT, a TEXT, c ANY, g INT AS (b * 2) STORED, v INT AS (b * 3), PRIMARY KEY(a, b)) STRICT",
        "INSERT INTO t VALUES (2, 'x', 1.5)",
    )
    source = shop.start()
    drain(source, shop.log)
    assert source.tables()[0].key == ("a", "b")
    shop.run("UPDATE t SET b = 3")
    assert [tuple(row.values()) for _, row in kinds_of(drain(source, shop.log))] == [
        (2, "x", "1.5", 4, 6),
        (3, "x", "1.5", 6, 9),
    ]


def test_a_column_left_out_never_reaches_the_change_table(shop: Shop) -> None:
    shop.run("CREATE TABLE users(id INTEGER PRIMARY KEY, ssn TEXT UNIQUE, name TEXT)")
    source = shop.start(columns={"main.users": {"exclude": ["SSN"]}})
    drain(source, shop.log)
    shop.run("INSERT INTO users VALUES (1, 'secret', 'a')", "REPLACE INTO users VALUES (2, 'secret', 'b')")
    assert kinds_of(drain(source, shop.log)) == [
        (1, {"id": 1, "name": "a"}),
        (4, {"id": 1, "name": "a"}),
        (1, {"id": 2, "name": "b"}),
    ]
    assert "secret" not in repr(shop.db.execute("SELECT * FROM _databus_change").fetchall())


def test_options_that_name_columns_wrongly_are_refused(shop: Shop) -> None:
    shop.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    for options, words in (
        ({"columns": {"main.t": {"exclude": ["id"]}}}, "part of the key"),
        ({"types": {"main.t": {"z": "any"}}}, "no column 'z'"),
        ({"types": {"main.t": {"a": "uint8"}}}, "'uint8' is not a type"),
    ):
        with pytest.raises(ConfigError, match=words):
            shop.start(**options)


def test_a_transaction_of_any_size_comes_in_bounded_parts(shop: Shop) -> None:
    shop.run("CREATE TABLE t(id INTEGER PRIMARY KEY, s TEXT)")
    source = shop.start(group_bytes_max=10_000, group_rows_max=100)
    drain(source, shop.log)
    before = len(shop.log.groups)
    shop.run(
        "BEGIN",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
        "INSERT INTO t SELECT i, hex(zeroblob(50)) FROM n",
    )
    shop.run("UPDATE t SET s = s || 'x'", "COMMIT", "DELETE FROM t WHERE id = 1")
    drain(source, shop.log)
    parts = shop.log.groups[before:]
    assert all(group.rows[0].batch.nbytes < 40_000 for group in parts)
    assert all(group.rows[0].batch.num_rows <= 101 for group in parts)
    assert [group.commit.continues for group in parts[-2:]] == [True, False]
    assert len({group.commit.scn for group in parts}) == 1
    for group in parts:
        kinds = group.rows[0].batch["_change_type"].to_pylist()
        assert kinds[-1] != 2
        assert kinds[0] != 3
    rows = changes_of(parts)
    assert [row["_seq"] for row in rows] == list(range(1, 3002))


def test_one_blob_larger_than_a_group_goes_alone(shop: Shop) -> None:
    shop.run("CREATE TABLE t(id INTEGER PRIMARY KEY, b BLOB)")
    source = shop.start(group_bytes_max=100_000, chunk_bytes_max=100_000)
    drain(source, shop.log)
    shop.run("INSERT INTO t VALUES (1, zeroblob(10)), (2, zeroblob(5000000)), (3, zeroblob(10))")
    sizes = [g.rows[0].batch.num_rows for g in drain_until(source, shop.log, lambda: len(shop.log.groups) > 5)]
    assert sizes == [1, 1, 1]
    source.request_snapshot(["main.t"])
    chunks = [g.rows[0].batch.num_rows for g in drain(source, shop.log) if g.rows]
    assert chunks == [1, 1, 1]
