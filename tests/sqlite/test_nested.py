"""A row that a nested statement changes between its BEFORE and its AFTER trigger: what is recorded ends identical.

SQLite fires a row's AFTER trigger with the images of its own statement. Meanwhile a foreign key's action or a user's
trigger may have changed, moved, deleted or replaced that very row, and has been recorded first. Each test has one way.
"""

from collections import Counter
from typing import Any

import pytest

from tests.sqlite.conftest import Shop
from tests.sqlite.model import assert_identical, changes_of, drain, kinds_of, table_rows

Images = Counter[tuple[Any, ...]]


def rows_of(shop: Shop, name: str) -> Images:
    return Counter(tuple(row.values()) for row in table_rows(shop.path, shop.log.mirror().schemas[f"main.{name}"]))


def check(shop: Shop, schema: list[str], *windows: str | list[str], tables: tuple[str, ...] = ("t",)) -> None:
    """Each window ends identical; and the images recorded in it, removed ones subtracted, are what it changed.

    The latter is what a sum over a history needs, and a copy of a table without a key.
    """
    shop.run("PRAGMA foreign_keys = ON", *schema)
    source = shop.start()
    drain(source, shop.log)
    for window in windows:
        before = {name: rows_of(shop, name) for name in tables}
        statements = [window] if isinstance(window, str) else ["BEGIN", *window, "COMMIT"]
        shop.run(*statements)
        groups = drain(source, shop.log)
        assert not [group for group in groups if group.control is not None], "the table was read anew"
        for name in tables:
            schema_ = shop.log.mirror().schemas[f"main.{name}"]
            change: Images = Counter()
            for row in changes_of(groups):
                if row["table"] == f"main.{name}":
                    change[tuple(row[c] for c in schema_.names)] += 1 if row["_change_type"] in (1, 3) else -1
            after = rows_of(shop, name)
            after.subtract(before[name])
            assert {k: n for k, n in change.items() if n} == {k: n for k, n in after.items() if n}, window
            if schema_.key:
                assert_identical(shop.path, shop.log, [name])


OWN_BOSS = [
    "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT UNIQUE, boss INTEGER REFERENCES t(id) ON UPDATE CASCADE)",
    "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 2)",
]


@pytest.mark.parametrize("theirs", ["", "CREATE TRIGGER theirs BEFORE INSERT ON t BEGIN SELECT 1; END"])
def test_a_key_that_cascades_to_its_own_row(shop: Shop, theirs: str) -> None:
    check(shop, [*OWN_BOSS, theirs], "UPDATE t SET id = 6, u = 'z' WHERE id = 1", "UPDATE t SET id = 7 WHERE id = 6")


def test_a_key_that_cascades_to_its_own_row_which_was_put_aside_before(shop: Shop) -> None:
    check(shop, OWN_BOSS, ["INSERT OR IGNORE INTO t VALUES (9, 'a', 1)", "UPDATE t SET id = 6 WHERE id = 1"])


def test_there_and_back_in_one_window(shop: Shop) -> None:
    moves = [(1, 6), (6, 1), (1, 6), (2, 1), (6, 2)]
    check(shop, OWN_BOSS, [f"UPDATE t SET id = {to} WHERE id = {at}" for at, to in moves])


def test_a_replacement_that_cascades_to_its_own_row(shop: Shop) -> None:
    check(
        shop,
        OWN_BOSS,
        "UPDATE t SET boss = 3 WHERE id = 3",
        "UPDATE t SET boss = 1 WHERE id = 1",
        "UPDATE OR REPLACE t SET id = 3, u = 'q' WHERE id = 1",
    )


@pytest.mark.parametrize("theirs", ["", "CREATE TRIGGER theirs BEFORE INSERT ON t BEGIN SELECT 1; END"])
def test_a_replaced_row_that_had_the_very_key_of_the_one_that_cascades_to_itself(shop: Shop, theirs: str) -> None:
    columns = "id INTEGER, k TEXT COLLATE NOCASE PRIMARY KEY, up TEXT REFERENCES t(k) ON UPDATE SET NULL"
    schema = [
        f"CREATE TABLE t({columns}) WITHOUT ROWID",
        "INSERT INTO t VALUES (2, 'B', NULL), (6, 'f', 'f')",
    ]
    check(shop, [*schema, theirs], "UPDATE OR REPLACE t SET k = 'b' WHERE id = 6")


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT UNIQUE, up TEXT REFERENCES t(k) ON UPDATE CASCADE)",
        "CREATE TABLE t(id INTEGER, k TEXT PRIMARY KEY, up TEXT REFERENCES t(k) ON UPDATE CASCADE)",
        "CREATE TABLE t(id INTEGER, k TEXT PRIMARY KEY, up TEXT REFERENCES t(k) ON UPDATE CASCADE) WITHOUT ROWID",
        "CREATE TABLE t(id INTEGER, k TEXT UNIQUE, up TEXT REFERENCES t(k) ON UPDATE CASCADE)",
        "CREATE TABLE t(id INTEGER, k TEXT COLLATE NOCASE PRIMARY KEY, up TEXT REFERENCES t(k) ON UPDATE SET NULL)",
        "CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT UNIQUE, up TEXT REFERENCES t(k) ON UPDATE SET DEFAULT)",
    ],
)
def test_any_kind_of_key_that_cascades_to_its_own_row(shop: Shop, table: str) -> None:
    check(
        shop,
        [table, "INSERT INTO t VALUES (1, 'a', 'a'), (2, 'b', 'a'), (3, 'c', 'b')"],
        "UPDATE t SET k = 'z' WHERE id = 1",
        "UPDATE t SET k = 'Z' WHERE id = 1",
        ["UPDATE t SET up = k", "UPDATE t SET k = k || 'x'"],
        "UPDATE t SET k = k || 'y', id = id + 10",
    )


def by_way_of(statement: str) -> list[str]:
    """A table, and another that follows its key, where `statement` is what a user's trigger then does."""
    return [
        "CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT UNIQUE, v INTEGER)",
        "CREATE TABLE c(id INTEGER PRIMARY KEY, t INTEGER REFERENCES t(id) ON UPDATE CASCADE ON DELETE CASCADE)",
        f"CREATE TRIGGER back AFTER UPDATE ON c BEGIN {statement}; END",
        "INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)",
        "INSERT INTO c VALUES (1, 1)",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET v = v + 1 WHERE id = NEW.t",
        "UPDATE t SET v = v + 1; UPDATE t SET v = v - 1 WHERE id = 2",
        "UPDATE t SET u = 'n' WHERE id = NEW.t",
        "DELETE FROM t WHERE u = 'b'; UPDATE t SET u = 'b' WHERE id = NEW.t",
        "DELETE FROM t WHERE id = 2; UPDATE t SET id = 2 WHERE id = NEW.t AND NEW.t <> 2",
        "UPDATE t SET id = OLD.t WHERE id = NEW.t AND NEW.t = 50",
        "DELETE FROM t WHERE id = NEW.t",
        "DELETE FROM t WHERE id = NEW.t; INSERT INTO t VALUES (NEW.t, 'again', 0)",
        "DELETE FROM t WHERE id = NEW.t; INSERT INTO t VALUES (OLD.t, 'again', 0)",
        "INSERT INTO t VALUES (OLD.t, 'in its place', 0)",
        "DELETE FROM t WHERE u = 'a'; INSERT INTO t VALUES (OLD.t, 'a', 0)",
        "DELETE FROM t WHERE v > 10 OR id = NEW.t; INSERT INTO t VALUES (NEW.t, 'b', 0)",
    ],
)
def test_a_cascade_by_way_of_another_table_back_to_the_row(shop: Shop, statement: str) -> None:
    check(shop, by_way_of(statement), "UPDATE t SET id = 50 WHERE id = 1", tables=("t", "c"))


@pytest.mark.parametrize(
    "statement", ["INSERT INTO t VALUES (OLD.t, 'again', 0)", "INSERT INTO t VALUES (OLD.t, 'a', 0)"]
)
def test_a_deleted_row_that_a_cascade_puts_back(shop: Shop, statement: str) -> None:
    schema = by_way_of("SELECT 1")
    schema.append(f"CREATE TRIGGER again AFTER DELETE ON c BEGIN {statement}; END")
    check(shop, schema, "DELETE FROM t WHERE id = 1", tables=("t", "c"))


KEYS = ["id INTEGER PRIMARY KEY, k TEXT UNIQUE", "id INTEGER UNIQUE, k TEXT PRIMARY KEY"]


def with_trigger(key: str, trigger: str) -> list[str]:
    return [
        f"CREATE TABLE t({key}, v INTEGER)",
        "INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)",
        f"CREATE TRIGGER theirs {trigger}; END",
    ]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "nested",
    ["UPDATE t SET v = v + 1 WHERE id = OLD.id", "UPDATE t SET k = k || '!' WHERE id = OLD.id AND OLD.k NOT LIKE '%!'"],
)
@pytest.mark.parametrize("sets", ["v = 5", "k = 'z'", "k = 'z', v = 5", "v = 5, id = 9"])
def test_a_users_before_trigger_that_updates_the_row_to_be_updated(
    shop: Shop, key: str, nested: str, sets: str
) -> None:
    schema = with_trigger(key, f"BEFORE UPDATE ON t WHEN NEW.v = 5 OR NEW.k = 'z' BEGIN {nested}")
    check(shop, schema, f"UPDATE t SET {sets} WHERE id = 1", "UPDATE t SET k = 'y' WHERE id = 2")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("clause", ["", "BEFORE"])  # BEFORE is what a trigger is that does not say when
@pytest.mark.parametrize(
    "nested",
    [
        "UPDATE t SET v = v + 1 WHERE id = OLD.id",
        "UPDATE t SET k = k || '!' WHERE id = OLD.id",
        "DELETE FROM t WHERE id = OLD.id",
        "UPDATE t SET v = v + 1; INSERT OR IGNORE INTO t VALUES (OLD.id + 10, OLD.k, 0)",
    ],
)
def test_a_users_before_trigger_that_changes_the_row_to_be_deleted(
    shop: Shop, key: str, clause: str, nested: str
) -> None:
    schema = with_trigger(key, f"{clause} DELETE ON t BEGIN {nested}")
    check(shop, schema, "DELETE FROM t WHERE id = 1", "DELETE FROM t WHERE k = 'b'")


@pytest.mark.parametrize("key", KEYS)
def test_a_users_before_trigger_that_deletes_the_row_to_be_updated(shop: Shop, key: str) -> None:
    schema = with_trigger(key, "BEFORE UPDATE ON t WHEN NEW.v = 5 BEGIN DELETE FROM t WHERE id = OLD.id")
    check(shop, schema, "UPDATE t SET v = 5, k = 'z' WHERE id = 1", "UPDATE t SET v = 5 WHERE id = 2")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "nested",
    [
        "INSERT INTO t VALUES (NEW.id + 100, NEW.k, 1)",
        "INSERT INTO t VALUES (NEW.id, NEW.k || '!', 1)",
        "UPDATE t SET k = NEW.k WHERE id = 1",
        "UPDATE t SET id = NEW.id WHERE id = 1",
        "UPDATE t SET id = NEW.id, k = NEW.k WHERE id = 1",
    ],
)
def test_a_users_before_trigger_that_makes_what_the_outer_statement_replaces(shop: Shop, key: str, nested: str) -> None:
    schema = with_trigger(key, f"BEFORE INSERT ON t WHEN NEW.v = 5 BEGIN {nested}")
    replace = "REPLACE INTO t VALUES (9, 'q', 5)"
    check(shop, schema, replace, "DELETE FROM t WHERE id = 9", ["INSERT OR IGNORE INTO t VALUES (1, 'n', 0)", replace])


@pytest.mark.parametrize("key", KEYS)
def test_a_users_after_trigger_that_changes_moves_or_deletes_the_row(shop: Shop, key: str) -> None:
    schema = with_trigger(
        key,
        "AFTER UPDATE ON t WHEN NEW.v = 5 BEGIN UPDATE t SET v = v + 1, k = k || '!', id = id + 50 WHERE id = NEW.id; "
        "DELETE FROM t WHERE id = NEW.id + 50 AND NEW.k = 'z'; INSERT INTO t SELECT OLD.id, OLD.k, 0 WHERE NEW.k = 'z'",
    )
    check(shop, schema, "UPDATE t SET v = 5 WHERE id = 1", "UPDATE t SET v = 5, k = 'z', id = 9 WHERE id = 2")


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
def test_a_replaced_row_whose_going_reaches_the_row_that_replaces_it(shop: Shop, action: str) -> None:
    """With CASCADE the row is deleted before it is updated, so that no AFTER trigger tells of the replaced one."""
    up = f"up INTEGER DEFAULT 3 REFERENCES t(id) ON DELETE {action}"
    schema = [
        f"CREATE TABLE t(id INTEGER PRIMARY KEY, u TEXT UNIQUE, {up})",
        "INSERT INTO t VALUES (1, 'a', 2), (2, 'b', NULL), (3, 'c', NULL), (4, 'd', 2), (5, 'e', 4)",
    ]
    check(
        shop,
        schema,
        "UPDATE OR REPLACE t SET u = 'b', up = NULL WHERE id = 1",
        "UPDATE OR REPLACE t SET u = 'd' WHERE id = 5",
        ["INSERT INTO t VALUES (11, 'k', 3), (12, 'l', 11)", "UPDATE OR REPLACE t SET u = 'k' WHERE id = 12"],
    )


def test_vacuum_does_not_make_living_rows_gone(shop: Shop) -> None:
    """It gives rows new rowids, so that what was put aside in vain is not found by those any more."""
    tables = {"t": "id INTEGER, u TEXT PRIMARY KEY", "s": "id INTEGER, u TEXT UNIQUE"}
    for name, columns in tables.items():
        shop.run(f"CREATE TABLE {name}({columns})", f"INSERT INTO {name}(rowid, u) VALUES (5, 'a')")
    source = shop.start()
    drain(source, shop.log)
    shop.run(*(f"INSERT INTO {name}(u) VALUES ('b'), ('a') ON CONFLICT DO NOTHING" for name in tables), "VACUUM")
    groups = drain(source, shop.log)
    assert {name: [kind for kind, _ in kinds_of(groups, f"main.{name}")] for name in tables} == {"t": [1], "s": [1]}
    assert_identical(shop.path, shop.log, list(tables))
