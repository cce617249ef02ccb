"""Traps of SQLite, each a silent loss if missed: what no trigger tells, and what triggers tell twice."""

import pytest

from databus.core import ConfigError, UnsupportedFeature
from databus.sources.sqlite import install
from tests.sqlite.conftest import Shop
from tests.sqlite.model import assert_identical, controls_of, drain, kinds_of, make_source


def ops(changes: list[tuple[int, dict]]) -> list[tuple[int, int]]:
    return [(kind, row["id"]) for kind, row in changes]


def begin(shop: Shop, *statements: str) -> None:
    shop.run(*statements)
    shop.source = shop.start()  # type: ignore[attr-defined]
    drain(shop.source, shop.log)  # type: ignore[attr-defined]


def then(shop: Shop, *statements: str) -> list[tuple[int, dict]]:
    shop.run(*statements)
    return kinds_of(drain(shop.source, shop.log), "main.t")  # type: ignore[attr-defined]


UNIQUE = "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT UNIQUE, v)"
ONE_AND_TWO = "INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20)"


@pytest.mark.parametrize("recursive", [0, 1])
def test_insert_or_replace_over_another_unique_key_logs_one_delete_ahead(shop: Shop, recursive: int) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO, f"PRAGMA recursive_triggers = {recursive}")
    assert ops(then(shop, "INSERT OR REPLACE INTO t VALUES (3, 'a', 30)")) == [(4, 1), (1, 3)]
    assert_identical(shop.path, shop.log, ["t"])


@pytest.mark.parametrize("recursive", [0, 1])
def test_insert_or_replace_over_the_primary_key_logs_the_old_row(shop: Shop, recursive: int) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO, f"PRAGMA recursive_triggers = {recursive}")
    found = then(shop, "REPLACE INTO t VALUES (1, 'c', 30)")
    assert [(kind, row["u"]) for kind, row in found] == [(4, "a"), (1, "c")]


@pytest.mark.parametrize("recursive", [0, 1])
def test_one_row_that_replaces_two(shop: Shop, recursive: int) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO, f"PRAGMA recursive_triggers = {recursive}")
    assert sorted(ops(then(shop, "REPLACE INTO t VALUES (1, 'b', 30)"))[:2]) == [(4, 1), (4, 2)]
    assert_identical(shop.path, shop.log, ["t"])


@pytest.mark.parametrize("recursive", [0, 1])
def test_update_or_replace_logs_the_row_that_it_pushes_out(shop: Shop, recursive: int) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO, f"PRAGMA recursive_triggers = {recursive}")
    assert ops(then(shop, "UPDATE OR REPLACE t SET u = 'b' WHERE id = 1")) == [(4, 2), (2, 1), (3, 1)]
    assert ops(then(shop, "INSERT INTO t VALUES (5, 'e', 0)", "UPDATE OR REPLACE t SET rowid = 5 WHERE id = 1")) == [
        (1, 5),
        (4, 5),
        (2, 1),
        (3, 5),
    ]
    assert_identical(shop.path, shop.log, ["t"])


def test_a_constraint_that_replaces_without_being_asked(shop: Shop) -> None:
    begin(shop, "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT UNIQUE ON CONFLICT REPLACE, v)", ONE_AND_TWO)
    assert ops(then(shop, "INSERT INTO t VALUES (3, 'a', 0)")) == [(4, 1), (1, 3)]
    assert ops(then(shop, "UPDATE t SET u = 'b' WHERE id = 3")) == [(4, 2), (2, 3), (3, 3)]
    assert_identical(shop.path, shop.log, ["t"])


def test_or_ignore_and_upserts_delete_nothing(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    assert then(shop, "INSERT OR IGNORE INTO t VALUES (3, 'a', 30), (1, 'x', 1)") == []
    upsert = "INSERT INTO t VALUES (3, 'a', 30) ON CONFLICT(u) DO UPDATE SET v = excluded.v"
    assert ops(then(shop, upsert)) == [(2, 1), (3, 1)]
    assert then(shop, "INSERT INTO t VALUES (3, 'a', 30) ON CONFLICT DO NOTHING") == []
    assert ops(then(shop, "INSERT INTO t VALUES (4, 'd', 1)")) == [(1, 4)]
    assert_identical(shop.path, shop.log, ["t"])


def test_rows_put_aside_in_vain_do_not_come_back_as_deletes(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    found = then(
        shop,
        "BEGIN",
        "INSERT OR IGNORE INTO t VALUES (3, 'a', 30)",  # puts row 1 aside
        "UPDATE t SET id = 7, u = 'z' WHERE id = 1",
        "INSERT INTO t VALUES (1, 'a', 30)",  # neither row 1 nor 'a' was replaced
        "INSERT OR IGNORE INTO t VALUES (2, 'q', 30)",
        "DELETE FROM t WHERE id = 2",
        "INSERT INTO t VALUES (2, 'b', 30)",
        "COMMIT",
    )
    assert ops(found) == [(2, 1), (3, 7), (1, 1), (4, 2), (1, 2)]
    assert_identical(shop.path, shop.log, ["t"])


def test_the_clause_of_the_users_statement_does_not_reach_our_own(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    for clause in ("IGNORE", "FAIL", "ABORT", "REPLACE", "ROLLBACK"):
        then(shop, f"INSERT OR {clause} INTO t VALUES (NULL, '{clause}', 0)", f"UPDATE OR {clause} t SET v = v + 1")
        assert_identical(shop.path, shop.log, ["t"])


@pytest.mark.parametrize(
    ("index", "first", "second"),
    [
        ("ON t(u COLLATE NOCASE)", "'abc'", "'ABC'"),
        ("ON t(lower(u))", "'abc'", "'ABC'"),
        ("ON t(lower(u) DESC, v) WHERE v > 0", "'abc'", "'ABC'"),
        ("ON t(u) WHERE v > 0 AND u IS NOT NULL", "'abc'", "'abc'"),
        ("ON t(v, u)", "'abc'", "'abc'"),
    ],
)
def test_replacement_over_every_kind_of_unique_index(shop: Shop, index: str, first: str, second: str) -> None:
    begin(
        shop,
        "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT, v INTEGER)",
        f"CREATE UNIQUE INDEX i {index}",
        f"INSERT INTO t VALUES (1, {first}, 5), (2, 'other', -5)",
    )
    assert ops(then(shop, f"REPLACE INTO t VALUES (3, {second}, 5)")) == [(4, 1), (1, 3)]
    found = then(shop, f"REPLACE INTO t VALUES (4, {first}, -1)", f"UPDATE OR REPLACE t SET u={first}, v=5 WHERE id=4")
    assert (4, 3) in ops(found)
    assert_identical(shop.path, shop.log, ["t"])


def test_rows_outside_a_partial_index_are_not_replaced(shop: Shop) -> None:
    begin(
        shop,
        "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT, v INTEGER)",
        "CREATE UNIQUE INDEX i ON t(u) WHERE v > 0",
        "INSERT INTO t VALUES (1, 'a', -1), (2, 'a', 1)",
    )
    assert ops(then(shop, "REPLACE INTO t VALUES (3, 'a', -1)")) == [(1, 3)]
    assert ops(then(shop, "REPLACE INTO t VALUES (4, 'a', 1)")) == [(4, 2), (1, 4)]
    assert_identical(shop.path, shop.log, ["t"])


def test_an_update_that_only_brings_a_row_into_a_partial_index_replaces_too(shop: Shop) -> None:
    begin(
        shop,
        "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT, v INTEGER)",
        "CREATE UNIQUE INDEX i ON t(u) WHERE v > 0",
        "INSERT INTO t VALUES (1, 'a', -1), (2, 'a', 1)",
    )
    assert ops(then(shop, "UPDATE OR REPLACE t SET v = 5 WHERE id = 1")) == [(4, 2), (2, 1), (3, 1)]
    assert_identical(shop.path, shop.log, ["t"])


def test_null_that_or_replace_turns_into_the_default(shop: Shop) -> None:
    begin(
        shop,
        "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT NOT NULL DEFAULT 'a' UNIQUE, v)",
        "INSERT INTO t VALUES (1, 'a', 0)",
    )
    assert ops(then(shop, "INSERT OR REPLACE INTO t VALUES (2, NULL, 0)")) == [(4, 1), (1, 2)]
    assert_identical(shop.path, shop.log, ["t"])


@pytest.mark.parametrize("kind", ["VIRTUAL", "STORED"])
def test_replacement_over_a_generated_column(shop: Shop, kind: str) -> None:
    begin(
        shop,
        f"CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT, g TEXT AS (upper(u)) {kind} UNIQUE)",
        "INSERT INTO t(id, u) VALUES (1, 'a'), (2, 'b')",
    )
    assert ops(then(shop, "REPLACE INTO t(id, u) VALUES (3, 'A')")) == [(4, 1), (1, 3)]
    assert ops(then(shop, "UPDATE OR REPLACE t SET u = 'B' WHERE id = 3")) == [(4, 2), (2, 3), (3, 3)]
    assert_identical(shop.path, shop.log, ["t"])


def test_a_unique_key_computed_from_the_rowid_is_refused_by_name(shop: Shop) -> None:
    shop.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", "CREATE UNIQUE INDEX i ON t(id % 10)")
    with pytest.raises(UnsupportedFeature, match=r"main\.t: the unique index over id % 10"):
        shop.start()


def test_without_rowid_and_composite_keys(shop: Shop) -> None:
    begin(
        shop,
        "CREATE TABLE t(a TEXT COLLATE NOCASE, id INTEGER, u UNIQUE, PRIMARY KEY(a, id)) WITHOUT ROWID",
        "INSERT INTO t VALUES ('x', 1, 10), ('x', 2, 20)",
    )
    assert ops(then(shop, "REPLACE INTO t VALUES ('y', 3, 10)")) == [(4, 1), (1, 3)]
    assert [(k, r["a"]) for k, r in then(shop, "REPLACE INTO t VALUES ('X', 2, 20)")] == [(4, "x"), (1, "X")]
    assert ops(then(shop, "UPDATE OR REPLACE t SET a = 'y', id = 3 WHERE id = 2")) == [(4, 3), (2, 2), (3, 3)]
    assert_identical(shop.path, shop.log, ["t"])


def test_rowid_without_a_declared_key_can_be_replaced_too(shop: Shop) -> None:
    begin(shop, "CREATE TABLE t(id, v)", "INSERT INTO t(rowid, id, v) VALUES (1, 1, 'a'), (2, 2, 'b')")
    assert ops(then(shop, "REPLACE INTO t(rowid, id, v) VALUES (1, 9, 'c')")) == [(4, "1"), (1, "9")]
    assert ops(then(shop, "UPDATE OR REPLACE t SET oid = 2 WHERE id = 9")) == [(4, "2"), (2, "9"), (3, "9")]


TREE = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT UNIQUE, parent INTEGER REFERENCES t(id) ON DELETE SET NULL)",
    "PRAGMA foreign_keys = ON",
    "INSERT INTO t VALUES (1, 'a', NULL), (2, 'b', 1), (3, 'c', 2)",
)


def test_an_action_of_a_foreign_key_in_the_midst_of_a_replacement(shop: Shop) -> None:
    """Row 1 goes silently, which updates row 2 with all its triggers, before the AFTER trigger of the insert."""
    begin(shop, *TREE)
    assert sorted(ops(then(shop, "REPLACE INTO t VALUES (9, 'a', NULL)"))) == [(1, 9), (2, 2), (3, 2), (4, 1)]
    assert_identical(shop.path, shop.log, ["t"])


def test_a_row_updated_on_its_way_out_is_deleted_as_it_was_then(shop: Shop) -> None:
    """Row 2 is the child of row 1 and both are replaced by one statement."""
    begin(shop, *TREE)
    then(shop, "REPLACE INTO t VALUES (1, 'b', NULL)")
    assert_identical(shop.path, shop.log, ["t"])


def test_cascades_are_logged(shop: Shop) -> None:
    begin(
        shop,
        "CREATE TABLE p(id INTEGER PRIMARY KEY, u UNIQUE)",
        "CREATE TABLE t(id INTEGER PRIMARY KEY, p INTEGER REFERENCES p(id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "PRAGMA foreign_keys = ON",
        "INSERT INTO p VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)",
    )
    assert ops(then(shop, "DELETE FROM p WHERE id = 1")) == [(4, 1)]
    assert ops(then(shop, "UPDATE p SET id = 20 WHERE id = 2")) == [(2, 2), (3, 2)]
    assert ops(then(shop, "REPLACE INTO p VALUES (4, 'c')")) == [(4, 3)]
    assert_identical(shop.path, shop.log, ["t", "p"])


def test_a_users_before_trigger_that_writes_the_same_table(shop: Shop) -> None:
    """Its nested insert must not make us forget what the outer statement is about to replace, whichever fires first."""
    nested = "CREATE TRIGGER n BEFORE INSERT ON t WHEN NEW.v = 1 BEGIN INSERT INTO t VALUES (NEW.id + 100, 'n', 0); END"
    begin(shop, UNIQUE, nested, ONE_AND_TWO)
    then(shop, "REPLACE INTO t VALUES (3, 'a', 1)")
    assert_identical(shop.path, shop.log, ["t"])


TOUCH = "CREATE TRIGGER touch AFTER UPDATE ON t WHEN NEW.v = 1 BEGIN UPDATE t SET v = 99 WHERE id = NEW.id; END"


def test_a_users_trigger_that_changes_the_row_again(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO, TOUCH)
    found = then(shop, "UPDATE t SET v = 1 WHERE id = 2")
    assert [(kind, row["v"]) for kind, row in found] == [(2, "20"), (3, "1"), (2, "1"), (3, "99")]


def test_a_users_trigger_made_after_ours_is_fired_before_ours_until_it_is_noticed(shop: Shop) -> None:
    """SQLite fires the newest first: what such a trigger does to the row again is logged before the change itself."""
    begin(shop, UNIQUE, ONE_AND_TWO)
    then(shop, TOUCH, "UPDATE t SET v = 1 WHERE id = 2")
    assert "gap" in [body["kind"] for body in controls_of(shop.log.groups)]
    found = then(shop, "UPDATE t SET v = 1 WHERE id = 1")
    assert [(kind, row["v"]) for kind, row in found] == [(2, "10"), (3, "1"), (2, "1"), (3, "99")]
    mirror = shop.log.mirror().rows["main.t"]
    assert {key: row["v"] for key, row in mirror.items()} == {(1,): "99", (2,): "99"}


def test_a_users_trigger_that_raises_ignore_does_not_hide_the_change(shop: Shop) -> None:
    ignore = "CREATE TRIGGER g AFTER INSERT ON t WHEN NEW.v = 1 BEGIN SELECT RAISE(IGNORE); END"
    begin(shop, UNIQUE, ONE_AND_TWO, ignore)
    assert ops(then(shop, "INSERT INTO t VALUES (3, 'c', 1)")) == [(1, 3)]
    then(shop, ignore.replace("TRIGGER g", "TRIGGER h"), "INSERT INTO t VALUES (4, 'd', 1)")
    assert sorted(shop.log.mirror().rows["main.t"]) == [(1,), (2,), (3,), (4,)]
    assert ops(then(shop, "INSERT INTO t VALUES (5, 'e', 1)")) == [(1, 5)]


def test_a_unique_index_added_while_rows_are_replaced_over_it(shop: Shop) -> None:
    begin(shop, "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT, v)", ONE_AND_TWO)
    then(shop, "CREATE UNIQUE INDEX i ON t(u)", "REPLACE INTO t VALUES (3, 'a', 0)")
    controls = controls_of(shop.log.groups)[2:]
    assert [body["kind"] for body in controls] == ["gap", "snapshot_begin", "snapshot_end"]
    assert controls[0]["resnapshot"]  # so that mirrors wait for it
    assert set(shop.log.mirror().rows["main.t"]) == {(2,), (3,)}
    assert ops(then(shop, "REPLACE INTO t VALUES (4, 'b', 0)")) == [(4, 2), (1, 4)]


def test_a_unique_index_added_in_quiet_needs_no_new_reading(shop: Shop) -> None:
    begin(shop, "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT, v)", ONE_AND_TWO)
    assert then(shop, "CREATE UNIQUE INDEX i ON t(u)") == []
    assert ops(then(shop, "REPLACE INTO t VALUES (3, 'a', 0)")) == [(4, 1), (1, 3)]
    assert len(controls_of(shop.log.groups)) == 2


def test_savepoints_and_rollbacks_leave_nothing(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    found = then(
        shop,
        "BEGIN",
        "INSERT INTO t VALUES (3, 'c', 0)",
        "SAVEPOINT s",
        "REPLACE INTO t VALUES (4, 'a', 0)",
        "ROLLBACK TO s",
        "DELETE FROM t WHERE id = 2",
        "COMMIT",
        "BEGIN",
        "DELETE FROM t",
        "ROLLBACK",
    )
    assert ops(found) == [(1, 3), (4, 2)]
    assert_identical(shop.path, shop.log, ["t"])


def test_a_failed_statement_leaves_nothing(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    for clause in ("", "OR FAIL"):
        with pytest.raises(Exception, match="UNIQUE"):
            shop.run(f"INSERT {clause} INTO t VALUES (5{len(clause)}, 'z{clause}', 0), (6, 'a', 0)")
    assert ops(then(shop)) == [(1, 57)]
    assert_identical(shop.path, shop.log, ["t"])


def test_delete_without_where_is_logged_row_by_row(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    assert ops(then(shop, "DELETE FROM t")) == [(4, 1), (4, 2)]


def test_a_table_made_anew_is_a_gap_and_is_read_again(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    then(shop, "DROP TABLE t", UNIQUE, "INSERT INTO t VALUES (7, 'q', 1)")
    controls = controls_of(shop.log.groups)[2:]
    assert [body["kind"] for body in controls] == ["gap", "snapshot_begin", "snapshot_end"]
    assert controls[0]["resnapshot"]  # so that mirrors wait for it
    assert list(shop.log.mirror().rows["main.t"]) == [(7,)]
    assert ops(then(shop, "INSERT INTO t VALUES (8, 'r', 1)")) == [(1, 8)]


def test_rollback_journal_mode_is_refused_with_the_command(shop: Shop) -> None:
    shop.run(UNIQUE, "PRAGMA journal_mode = DELETE")
    with pytest.raises(ConfigError, match=r"databus sqlite install .* --wal"):
        make_source(shop.path).identify()
    install(shop.path, set_wal=True)
    source = make_source(shop.path)
    assert source.identify().scheme == "cut"
    source.close()


def test_vacuum_changes_nothing(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    assert then(shop, "VACUUM") == []
    assert ops(then(shop, "REPLACE INTO t VALUES (3, 'a', 0)")) == [(4, 1), (1, 3)]


def test_renaming_a_table_ends_one_and_begins_another(shop: Shop) -> None:
    begin(shop, UNIQUE, ONE_AND_TWO)
    then(shop, "UPDATE t SET v = 11 WHERE id = 1", "ALTER TABLE t RENAME TO s", "INSERT INTO s VALUES (3, 'c', 0)")
    mirror = shop.log.mirror()
    assert mirror.rows["main.t"] == {}
    assert set(mirror.rows["main.s"]) == {(1,), (2,), (3,)}
    assert controls_of(shop.log.groups)[2] == {"kind": "drop", "source": "main.t"}


def test_odd_names_and_reserved_words(shop: Shop) -> None:
    for name in ("a b", 'quo"ted', "naïve ✓", "order", "Case", "x'y", "c0"):
        ident = '"' + name.replace('"', '""') + '"'
        shop.run(
            f'CREATE TABLE {ident}(id INTEGER PRIMARY KEY, "group by" TEXT UNIQUE, "sel""ect" REAL, "c0", "n" BLOB)',
            f"INSERT INTO {ident} VALUES (1, 'a', 1.5, 2, x'00')",
        )
    source = shop.start()
    drain(source, shop.log)
    for name in ("a b", 'quo"ted', "naïve ✓", "order", "Case", "x'y", "c0"):
        ident = '"' + name.replace('"', '""') + '"'
        shop.run(f"REPLACE INTO {ident} VALUES (2, 'a', 2.5, 3, x'01')", f'UPDATE {ident} SET "sel""ect" = 3')
    drain(source, shop.log)
    mirror = shop.log.mirror().rows
    assert {table: list(rows.values()) for table, rows in mirror.items()} == {
        f"main.{name}": [{"id": 2, "group by": "a", 'sel"ect': 3.0, "c0": "3", "n": b"\1"}]
        for name in ("a b", 'quo"ted', "naïve ✓", "order", "Case", "x'y", "c0")
    }


def test_views_and_virtual_tables_are_left_out_and_a_named_virtual_table_refused(shop: Shop) -> None:
    shop.run(UNIQUE, "CREATE VIEW w AS SELECT * FROM t", "CREATE VIRTUAL TABLE f USING fts5(x)")
    source = shop.start()
    assert [table.source for table in source.tables()] == ["main.t"]
    with pytest.raises(UnsupportedFeature, match=r"main\.f is a virtual table"):
        shop.start(tables=["main.t", "main.F"])


def test_change_ids_are_not_given_twice_after_everything_is_trimmed(shop: Shop) -> None:
    begin(shop, UNIQUE)
    for number in range(3):
        assert ops(then(shop, f"INSERT INTO t VALUES ({number}, '{number}', 0)")) == [(1, number)]
        shop.source.durable(shop.log.last.position)  # type: ignore[attr-defined, union-attr]
        drain(shop.source, shop.log)  # type: ignore[attr-defined]
    assert shop.db.execute("SELECT count(*), max(id) FROM _databus_change").fetchone() == (1, 3)
    assert shop.db.execute("SELECT count(*) FROM _databus_cut").fetchone() == (1,)
