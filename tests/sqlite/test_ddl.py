"""DDL on captured tables: classes 1, 2 and 3 of DESIGN 4.6, found at a cut or made exact by `alter`."""

import pytest

from databus.core import ControlKind, InputError, UnrepresentableValue, UnsupportedFeature
from databus.schema import TableSchema
from databus.sources.sqlite import alter, status
from tests.sqlite.conftest import Shop
from tests.sqlite.model import assert_identical, controls_of, drain, kinds_of

TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER)"


def begin(shop: Shop, *statements: str, **options):
    shop.run(TABLE, "INSERT INTO t VALUES (1, 10), (2, 20)", *statements)
    source = shop.start(**options)
    drain(source, shop.log)
    return source


def schema_controls(groups) -> list[dict]:
    return [body for body in controls_of(groups) if body["kind"] == "schema"]


@pytest.mark.parametrize(
    ("definition", "kind", "fill"),
    [
        ("c INTEGER DEFAULT 7", "int64", 7),
        ("c TEXT NOT NULL DEFAULT 'it''s'", "string", "it's"),
        ("c REAL DEFAULT -1.5e3", "float64", -1500.0),
        ("c REAL DEFAULT 3", "float64", 3.0),
        ("c TEXT DEFAULT 12", "string", "12"),
        ("c BLOB DEFAULT x'00ff'", "binary", "AP8="),
        ("c BOOLEAN DEFAULT TRUE", "int64", 1),
        ("c ANY DEFAULT 'x'", "string", "'x'"),
        ("c INTEGER", "int64", None),
    ],
)
def test_an_added_column_with_a_literal_default_tells_what_old_rows_hold(
    shop: Shop, definition: str, kind: str, fill: object
) -> None:
    source = begin(shop)
    before = source.tables()[0]
    shop.run(f"ALTER TABLE t ADD COLUMN {definition}")
    groups = drain(source, shop.log)
    (body,) = controls_of(groups)
    table = TableSchema.from_json(body["table"])
    assert (body["class"], body["fill"], body["ddl"]) == (2, {"c": fill}, None)
    assert body["previous"] == f"{before.fingerprint:016x}"
    assert table.column("c").type == kind
    assert table == source.tables()[0]
    assert groups[0].control is not None
    assert groups[0].control.table == table
    shop.run("INSERT INTO t(id) VALUES (3)", "UPDATE t SET v = 11 WHERE id = 1")
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["t"])


def test_rows_written_before_the_alter_was_noticed_do_not_spoil_it(shop: Shop) -> None:
    """Each row that the old triggers wrote holds the default now, so nothing that they could not see has happened."""
    source = begin(shop)
    shop.run("INSERT INTO t VALUES (3, 30)", "ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7", "UPDATE t SET v = v + 1")
    (body,) = controls_of(drain(source, shop.log))
    assert body["class"] == 2
    assert_identical(shop.path, shop.log, ["t"])


@pytest.mark.parametrize("write", ["UPDATE t SET c = 9 WHERE id = 1", "INSERT INTO t VALUES (3, 30, 9)"])
def test_values_that_the_old_triggers_could_not_see_have_the_table_read_again(shop: Shop, write: str) -> None:
    source = begin(shop)
    shop.run("ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7", write)
    bodies = controls_of(drain(source, shop.log))
    assert [(body["kind"], body.get("class")) for body in bodies] == [
        ("schema", 3),
        ("snapshot_begin", None),
        ("snapshot_end", None),
    ]
    assert_identical(shop.path, shop.log, ["t"])


def test_class_3_stops_where_the_policy_says_so_until_it_says_otherwise(shop: Shop) -> None:
    source = begin(shop, on_class3="stop")
    shop.run("ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7", "UPDATE t SET c = 9 WHERE id = 1")
    for _ in range(2):
        with pytest.raises(UnsupportedFeature, match=r"main\.t changed.*on_class3: resnapshot"):
            drain(source, shop.log)
        source.close()
        source = shop.start(on_class3="stop")
    source.close()
    drain(shop.start(), shop.log)
    assert_identical(shop.path, shop.log, ["t"])


def test_alter_is_exact_and_carries_its_text(shop: Shop) -> None:
    source = begin(shop)
    shop.run("UPDATE t SET v = 11 WHERE id = 1")
    ddl = "ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7"
    alter(shop.path, ddl)
    shop.run("UPDATE t SET c = 9 WHERE id = 1")
    groups = drain(source, shop.log)
    (body,) = controls_of(groups)
    assert (body["class"], body["ddl"]) == (2, ddl)
    assert kinds_of(groups) == [
        (2, {"id": 1, "v": 10}),
        (3, {"id": 1, "v": 11}),
        (2, {"id": 1, "v": 11, "c": 7}),
        (3, {"id": 1, "v": 11, "c": 9}),
    ]
    assert_identical(shop.path, shop.log, ["t"])


@pytest.mark.parametrize(
    "statement", ["DELETE FROM t", "/* ALTER */ UPDATE t SET v = 1", "PRAGMA user_version = 3", " "]
)
def test_alter_takes_no_statement_that_changes_rows_since_capture_would_not_see_them(shop: Shop, statement) -> None:
    source = begin(shop)
    with pytest.raises(InputError, match="nothing was run"):
        alter(shop.path, statement)
    shop.run("DELETE FROM t WHERE id = 2")
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["t"])


def test_alter_drops_a_column_which_plain_ddl_cannot(shop: Shop) -> None:
    source = begin(shop)
    with pytest.raises(Exception, match="error in trigger"):
        shop.run("ALTER TABLE t DROP COLUMN v")
    alter(shop.path, "ALTER TABLE t DROP COLUMN v")
    (body,) = controls_of(drain(source, shop.log))
    assert (body["kind"], body["class"]) == ("schema", 1)
    shop.run("INSERT INTO t VALUES (3)")
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["t"])


def test_a_renamed_column_has_the_table_read_again(shop: Shop) -> None:
    source = begin(shop)
    alter(shop.path, "ALTER TABLE t RENAME COLUMN v TO w")
    shop.run("UPDATE t SET w = 1")
    bodies = controls_of(drain(source, shop.log))
    assert [body["kind"] for body in bodies] == ["schema", "snapshot_begin", "snapshot_end"]
    assert bodies[0]["class"] == 3
    assert_identical(shop.path, shop.log, ["t"])


def test_a_generated_column_is_class_3(shop: Shop) -> None:
    source = begin(shop)
    alter(shop.path, "ALTER TABLE t ADD COLUMN g INTEGER AS (v * 2)")
    assert schema_controls(drain(source, shop.log))[0]["class"] == 3
    assert_identical(shop.path, shop.log, ["t"])


def test_a_table_rebuilt_with_another_shape_is_class_3(shop: Shop) -> None:
    source = begin(shop)
    shop.run(
        "BEGIN",
        "CREATE TABLE n(id INTEGER PRIMARY KEY, v TEXT)",
        "INSERT INTO n SELECT id, 'v' || v FROM t",
        "DROP TABLE t",
        "ALTER TABLE n RENAME TO t",
        "COMMIT",
    )
    assert schema_controls(drain(source, shop.log))[0]["class"] == 3
    assert_identical(shop.path, shop.log, ["t"])


def test_drop_table_is_told(shop: Shop) -> None:
    source = begin(shop)
    shop.run("DELETE FROM t WHERE id = 1", "DROP TABLE t")
    groups = drain(source, shop.log)
    assert kinds_of(groups) == [(4, {"id": 1, "v": 10})]
    assert controls_of(groups) == [{"kind": "drop", "source": "main.t"}]
    assert shop.log.mirror().rows["main.t"] == {}
    assert status(shop.path)["tables"] == []


def test_a_refused_statement_changes_nothing(shop: Shop) -> None:
    source = begin(shop)
    before = shop.db.execute("SELECT name, sql FROM sqlite_schema").fetchall()
    with pytest.raises(InputError, match="SQLite refused"):
        alter(shop.path, "ALTER TABLE t ADD COLUMN id INTEGER")
    assert shop.db.execute("SELECT name, sql FROM sqlite_schema").fetchall() == before
    assert drain(source, shop.log) == []


def test_a_default_that_its_type_cannot_hold_is_named(shop: Shop) -> None:
    source = begin(shop)
    shop.run("ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 'many'")
    with pytest.raises(UnrepresentableValue, match=r"main\.t\.c: its default 'many'.*any"):
        drain(source, shop.log)


def test_a_change_of_shape_amid_a_reading(shop: Shop) -> None:
    shop.run(TABLE)
    shop.db.executemany("INSERT INTO t VALUES (?, 0)", [(i,) for i in range(20)])
    source = shop.start(chunk_rows_max=3)
    for number, ddl in enumerate(("ADD COLUMN a INTEGER DEFAULT 1", "ADD COLUMN b TEXT", "RENAME COLUMN a TO z")):
        for _ in range(3):
            shop.log.append(source.poll(0))
        alter(shop.path, f"ALTER TABLE t {ddl}")
        shop.run(f"UPDATE t SET v = {number} WHERE id % 3 = 1")
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["t"])


def test_controls_come_again_when_the_log_lost_them(shop: Shop) -> None:
    """Between a window and its controls the log may end; they are resumed by `_seq`."""
    source = begin(shop)
    shop.run("UPDATE t SET v = 0", "CREATE TABLE s(id INTEGER PRIMARY KEY)", "DROP TABLE t")
    alter(shop.path, "CREATE TABLE u(id INTEGER PRIMARY KEY)")
    whole = [(g.commit.pair, g.control and g.control.kind) for g in drain(source, shop.log)]
    source.close()
    start = len(shop.log.groups) - len(whole)
    drop = next(i for i, (_, kind) in enumerate(whole) if kind == ControlKind.DROP)
    shop.log.groups = shop.log.groups[: start + drop]
    again = [(g.commit.pair, g.control and g.control.kind) for g in drain(shop.start(), shop.log)]
    assert again[0] == whole[drop]


def test_a_change_of_the_selection_takes_effect_between_transactions(shop: Shop) -> None:
    shop.run("CREATE TABLE s(id INTEGER PRIMARY KEY, v)")
    source = begin(shop, tables=["main.T"])
    shop.run("INSERT INTO s VALUES (1, 1)", "INSERT INTO t VALUES (3, 3)")
    source.close()
    source = shop.start(tables=["main.s"])
    shop.run("INSERT INTO s VALUES (2, 2)", "INSERT INTO t VALUES (4, 4)")
    drain(source, shop.log)
    mirror = shop.log.mirror()
    assert sorted(mirror.rows["main.t"]) == [(1,), (2,), (3,)]
    assert sorted(mirror.rows["main.s"]) == [(1,), (2,)]
    assert not [body for body in controls_of(shop.log.groups) if body["kind"] == "drop"]
