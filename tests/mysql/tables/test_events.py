"""What consumers are told: of captured tables only, in an order that they can follow, and never a guess."""

from typing import Any

import pytest

from databus.core import SourceChanged
from databus.sources.mysql._definition import FieldType
from databus.sources.mysql.binlog import Query, TableMap, TableMetadata
from databus.sources.mysql.tables import (
    Altered,
    Catalogue,
    Created,
    Dropped,
    ServerKind,
    TableEvent,
    TableHistory,
    Truncated,
    Unknown,
    from_table_map,
)

MYSQL = ServerKind("mysql", (8, 0, 31))
MARIADB = ServerKind("mariadb", (10, 11, 19))


def _history(*tables: str, server: ServerKind = MYSQL, captured: Any = None, **options: Any) -> TableHistory:
    selects = captured or (lambda database, name: database == "d" and not name.startswith("_"))
    history = TableHistory(server, selects, **options)
    history.begin(Catalogue(databases={"d": "utf8mb4", "e": "latin1"}))
    for table in tables:
        _run(history, f"CREATE TABLE {table}")
    return history


def _run(history: TableHistory, sql: str, database: str = "d", **more: Any) -> list[TableEvent]:
    return history.apply(Query(sql, database, **more))


def _names(definition: Any) -> list[str]:
    return [column.name for column in definition.columns]


def test_the_swap_of_online_schema_change_is_one_change_of_class_3() -> None:
    history = _history("t (id INT PRIMARY KEY, a INT)")
    assert _run(history, "CREATE TABLE _t_gho LIKE t") == []
    assert _run(history, "ALTER TABLE _t_gho ADD b INT DEFAULT 5") == []
    (event,) = _run(history, "RENAME TABLE d.t TO d._t_del, d._t_gho TO d.t")
    assert isinstance(event, Altered)
    assert event.number == 3
    assert (_names(event.before), _names(event.after)) == (["id", "a"], ["id", "a", "b"])
    assert _run(history, "DROP TABLE _t_del") == []


def test_names_that_come_and_go_by_rename_are_a_drop_and_a_table_to_be_read() -> None:
    history = _history("a (id INT)", "_b (id BIGINT)")
    (gone,) = _run(history, "RENAME TABLE a TO _a")
    assert isinstance(gone, Dropped)
    (come,) = _run(history, "RENAME TABLE _b TO b")
    assert isinstance(come, Created)
    assert not come.is_empty
    dropped, created = _run(history, "ALTER TABLE b RENAME TO c")
    assert isinstance(dropped, Dropped)
    assert dropped.before.name == "b"
    assert isinstance(created, Created)
    assert (created.after.name, created.is_empty) == ("c", False)


def test_a_rename_there_and_back_changes_nothing() -> None:
    history = _history("a (id INT)")
    assert _run(history, "RENAME TABLE a TO x, x TO a") == []


def test_two_captured_tables_that_change_places_are_both_class_3() -> None:
    history = _history("a (x INT)", "b (y INT)")
    events = _run(history, "RENAME TABLE a TO _tmp, b TO a, _tmp TO b")
    assert [event.number for event in events if isinstance(event, Altered)] == [3, 3]


def test_create_drop_truncate_and_replace_are_told_once_each() -> None:
    history = _history(server=MARIADB)
    (created,) = _run(history, "CREATE TABLE t (id INT)")
    assert isinstance(created, Created)
    assert created.is_empty
    assert _run(history, "CREATE TABLE IF NOT EXISTS t (other INT)") == []
    (truncated,) = _run(history, "TRUNCATE TABLE t")
    assert isinstance(truncated, Truncated)
    (emptied,) = _run(history, "DELETE FROM `d`.`t`")  # a MEMORY table after the server's restart
    assert isinstance(emptied, Truncated)
    assert [type(event) for event in _run(history, "CREATE OR REPLACE TABLE t (z INT)")] == [Dropped, Created]
    assert [type(event) for event in _run(history, "DROP TABLE IF EXISTS nope, t")] == [Dropped]
    assert _run(history, "DROP TABLE IF EXISTS t") == []


def test_a_create_or_replace_that_failed_has_dropped_the_table() -> None:
    history = _history("t (id INT)", server=MARIADB)
    (event,) = _run(history, "CREATE OR REPLACE TABLE t (a INT, KEY (b))", error_code=1072)
    assert isinstance(event, Dropped)
    assert history.definition("d", "t") is None


def test_dropping_a_database_drops_its_captured_tables() -> None:
    history = _history("a (x INT)", "b (x INT)", "_c (x INT)")
    events = _run(history, "DROP DATABASE d", database="e")
    assert sorted(event.before.name for event in events if isinstance(event, Dropped)) == ["a", "b"]
    assert list(history.names()) == []


def test_temporary_tables_views_and_routines_cost_nothing() -> None:
    history = _history("t (x INT)")
    for sql in (
        "CREATE TEMPORARY TABLE t (y INT)",
        "DROP TEMPORARY TABLE t",
        "CREATE VIEW v AS SELECT * FROM t",
        "RENAME TABLE v TO w",
        "DROP VIEW w",
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET @a = 'unclosed /* ",
        "GRANT ALL ON t TO u",
        "FLUSH TABLES t",
        "ANALYZE TABLE t",
        "SET PASSWORD = 'x'",
        "what is this",
        "",
    ):
        assert _run(history, sql) == [], sql
    assert _names(history.definition("d", "t")) == ["x"]


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE t FROBNICATE COLUMN x",
        "ALTER TABLE t ADD y WONDERTYPE",
        "ALTER TABLE t ADD y INT WITH MAGIC",
        "ALTER TABLE t DROP COLUMN nope",
        "ALTER TABLE t ADD y INT AFTER nope",
        "ALTER TABLE t ADD x INT",
        "ALTER TABLE t ADD y VARCHAR(5) CHARACTER SET klingon",
        "ALTER TABLE t ADD y INT COMMENT 'not closed",
        "CREATE TABLE t (different INT)",
        "CREATE TABLE u AS SELECT 1",
        "RENAME TABLE _unknown TO u",
        "TRUNCATE TABLE u",
        "INSERT INTO t VALUES (1)",
        "UPDATE t SET x = 1",
        "DELETE FROM t WHERE x = 1",
    ],
)
def test_what_is_not_understood_of_a_captured_table_is_said_and_the_table_is_forgotten(sql: str) -> None:
    history = _history("t (x INT)", "other (x INT)")
    (event,) = _run(history, sql)
    assert isinstance(event, Unknown)
    assert event.why
    name = event.tables[0][1]
    assert name in ("t", "u")
    assert history.definition("d", name) is None
    assert history.definition("d", "other") is not None


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE _t FROBNICATE",
        "CREATE TABLE _u AS SELECT x AS t FROM t",
        "ALTER TABLE e.t ADD y WONDERTYPE",
        "INSERT INTO _t VALUES (1)",
    ],
)
def test_what_is_not_understood_of_other_tables_costs_nothing(sql: str) -> None:
    history = _history("t (x INT)", "_t (x INT)")
    assert _run(history, sql) == []
    assert history.definition("d", "t") is not None


def test_a_table_that_was_not_understood_does_not_come_back_by_rename_unseen() -> None:
    history = _history("_t (x INT)")
    assert _run(history, "ALTER TABLE _t FROBNICATE") == []
    (event,) = _run(history, "RENAME TABLE _t TO t")
    assert isinstance(event, Unknown)
    assert event.tables == (("d", "t"),)


def test_a_statement_is_followed_whole_or_not_at_all() -> None:
    history = _history("a (x INT)", "b (x INT)")
    before = history.everything()
    history.take_changes()
    (event,) = _run(history, "RENAME TABLE _nope TO c, a TO z")
    assert isinstance(event, Unknown)
    assert ("d", "z") not in history.everything().tables
    assert before.tables[("d", "b")] == history.everything().tables[("d", "b")]


def test_names_are_compared_in_lower_case_where_the_server_does() -> None:
    history = _history("T (Id INT)", fold=True, captured=lambda database, name: (database, name) == ("d", "t"))
    (event,) = _run(history, "ALTER TABLE `D`.`t` ADD y INT")
    assert isinstance(event, Altered)
    assert event.after.source == "d.t"
    assert _run(_history("T (x INT)"), "ALTER TABLE `D`.T ADD y INT") == []


def test_the_character_set_of_a_database_is_inherited_as_of_the_position() -> None:
    history = _history(captured=lambda *_: True)
    _run(history, "CREATE TABLE one (a TEXT)", database="e")
    _run(history, "ALTER DATABASE e CHARACTER SET gbk")
    _run(history, "CREATE TABLE e.two (a TEXT)")
    _run(history, "CREATE DATABASE f", charsets=(8, 8, 8))
    _run(history, "CREATE TABLE f.three (a TEXT)")
    found = [history.definition(*name) for name in (("e", "one"), ("e", "two"), ("f", "three"))]
    assert [definition.columns[0].charset for definition in found if definition] == ["latin1", "gbk", "latin1"]


def test_zero_dates_are_filled_as_the_policy_says() -> None:
    sql = "ALTER TABLE t ADD c DATE NOT NULL"
    (strict,) = _run(_history("t (x INT)"), sql)
    (lenient,) = _run(_history("t (x INT)", zero_dates="null"), sql)
    assert isinstance(strict, Altered)
    assert isinstance(lenient, Altered)
    assert strict.number == 3
    assert (lenient.number, lenient.fill) == (2, {"c": None})


def test_widening_and_renaming_change_metadata_only_and_the_new_names_are_told() -> None:
    history = _history("t (a INT, b VARCHAR(5), c INT)")
    (event,) = _run(history, "ALTER TABLE t MODIFY a BIGINT, CHANGE b bb VARCHAR(9), RENAME COLUMN c TO d")
    assert isinstance(event, Altered)
    assert (event.number, event.renamed) == (1, {"b": "bb", "c": "d"})


def test_indexes_and_comments_tell_nobody_anything() -> None:
    history = _history("t (a INT PRIMARY KEY, b INT)")
    for sql in ("ALTER TABLE t ADD INDEX (b), COMMENT 'x'", "CREATE UNIQUE INDEX u ON t (b)", "DROP INDEX u ON t"):
        assert _run(history, sql) == []


def test_data_that_partitions_take_away_or_bring_is_class_3() -> None:
    history = _history("t (a INT)", "u (a INT)")
    for action in ("DROP PARTITION p", "TRUNCATE PARTITION ALL", "DISCARD TABLESPACE", "IMPORT PARTITION p TABLESPACE"):
        (event,) = _run(history, f"ALTER TABLE t {action}")
        assert isinstance(event, Altered)
        assert event.number == 3
    events = _run(history, "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u")
    assert [event.number for event in events if isinstance(event, Altered)] == [3, 3]
    for action in (
        "REORGANIZE PARTITION p INTO (PARTITION q VALUES LESS THAN (9))",
        "REBUILD PARTITION ALL",
        "REMOVE PARTITIONING",
    ):
        assert _run(history, f"ALTER TABLE t {action}") == []


def _table_map(**metadata: Any) -> TableMap:
    types = (int(FieldType.LONG), int(FieldType.VARCHAR), int(FieldType.ENUM))
    return TableMap("d", "t", types, (0, 20, 1), (False, True, True), TableMetadata(**metadata))


def test_a_table_map_overrules_what_the_history_says_where_they_differ() -> None:
    history = _history("t (id INT, name VARCHAR(5), e ENUM('x'), PRIMARY KEY (id))")
    known = history.definition("d", "t")
    table_map = _table_map(
        names=("id", "title", "e"),
        unsigned=(True, False, False),
        collations=(None, 33, 8),
        members=((), (), (b"x", b"\xe9")),
        key=((0, 0),),
    )
    found = from_table_map(table_map, known)
    assert [(c.name, c.column_type, c.charset) for c in found.columns] == [
        ("id", "int unsigned", None),
        ("title", "varchar(6)", "utf8mb3"),
        ("e", "enum('x','é')", "latin1"),
    ]
    assert found.key == ("id",)
    history.learn(found)
    assert history.definition("d", "t") == found


@pytest.mark.parametrize("server", [MYSQL, MARIADB, ServerKind("mysql", (5, 7, 22))])
def test_members_that_servers_damage_when_they_convert_them_are_not_believed(server: ServerKind) -> None:
    for member, before, after, expected in (
        ("\xe9", "utf8mb4", "latin1", Unknown),  # which every server then reads as two characters
        ("\xe9", "latin1", "utf8mb4", Unknown),
        ("e", "utf8mb4", "ucs2", Unknown),
        ("e", "utf8mb4", "latin1", Altered),
        ("\xe9", "utf8mb4", "utf8mb3", Altered),
        ("\N{PILE OF POO}", "utf8mb4", "utf8mb3", Unknown),
    ):
        table = f"t (e ENUM('{member}') CHARACTER SET {before})"
        (event,) = _run(_history(table, server=server), f"ALTER TABLE t CONVERT TO CHARACTER SET {after}")
        assert isinstance(event, expected), (member, before, after)


def _begun_empty(*, server: ServerKind = MYSQL, **options: Any) -> TableHistory:
    history = TableHistory(server, lambda database, name: not name.startswith("_"), **options)
    history.begin(Catalogue(is_whole=False))
    return history


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE IF NOT EXISTS t (a INT)",
        "CREATE TABLE t LIKE older",
        "CREATE TABLE t (a TEXT)",
        "ALTER TABLE t ADD b INT",
        "TRUNCATE TABLE t",
    ],
)
def test_what_depends_on_the_time_before_the_history_is_left_to_the_log_itself(sql: str) -> None:
    history = _begun_empty()
    assert _run(history, sql) == []
    assert history.definition("d", "t") is None
    assert _run(history, "CREATE TABLE IF NOT EXISTS t (a INT)") == []
    assert history.definition("d", "t") is None
    assert "IF NOT EXISTS" in history.why_unknown("d", "t")


@pytest.mark.parametrize("before", ["DROP TABLE IF EXISTS t", "CREATE DATABASE d", "DROP DATABASE IF EXISTS d"])
def test_create_table_if_not_exists_is_believed_where_the_log_shows_that_there_was_none(before: str) -> None:
    history = _begun_empty()
    assert _run(history, before) == []
    restored = _begun_empty()
    restored.restore(history.everything())
    for each in (history, restored):
        (event,) = _run(each, "CREATE TABLE IF NOT EXISTS t (a INT)")
        assert isinstance(event, Created)


@pytest.mark.parametrize(
    "sql", ["RENAME TABLE older TO t", "ALTER TABLE older RENAME TO t", "RENAME TABLE t TO _t, u TO t"]
)
def test_rows_of_a_table_never_seen_do_not_come_under_a_captured_name_unsaid(sql: str) -> None:
    history = _begun_empty()
    if "_t" in sql:
        _run(history, "CREATE TABLE t (a INT)")
    (event,) = _run(history, sql)
    assert isinstance(event, Unknown)


def test_a_table_that_is_not_understood_is_not_believed_by_create_if_not_exists() -> None:
    history = _history("_t (x INT)")
    assert _run(history, "ALTER TABLE _t FROBNICATE") == []
    assert _run(history, "CREATE TABLE IF NOT EXISTS _t (y INT)") == []
    (event,) = _run(history, "RENAME TABLE _t TO t")
    assert isinstance(event, Unknown)


def test_the_character_set_of_a_database_made_before_the_history_is_not_guessed() -> None:
    history = _begun_empty()
    _run(history, "CREATE DATABASE IF NOT EXISTS d CHARACTER SET utf8mb4", charsets=(255, 255, 255))
    _run(history, "ALTER DATABASE d ENCRYPTION = 'Y'", charsets=(255, 255, 255))
    (event,) = _run(history, "CREATE TABLE t (a INT)", charsets=(255, 255, 255))
    assert isinstance(event, Created)  # no column depends on it
    (event,) = _run(history, "ALTER TABLE t ADD b TEXT")
    assert isinstance(event, Unknown)
    assert "database_charsets" in event.why
    assert _run(history, "ALTER DATABASE d CHARACTER SET latin2") == []
    (event,) = _run(history, "CREATE TABLE v (a TEXT)")
    assert isinstance(event, Created)
    assert event.after.columns[0].charset == "latin2"


def test_the_character_set_of_a_database_may_be_given() -> None:
    history = _begun_empty()
    _run(history, "CREATE TABLE t (a INT)")
    later = _begun_empty(database_charsets={"d": "latin2"})  # the option was set after capture had stopped
    later.restore(history.everything())
    (altered,) = _run(later, "ALTER TABLE t ADD b TEXT")
    (created,) = _run(later, "CREATE TABLE u (a TEXT)")
    assert isinstance(altered, Altered)
    assert isinstance(created, Created)
    assert (altered.after.columns[1].charset, created.after.columns[0].charset) == ("latin2", "latin2")
    assert _run(later, "DROP DATABASE d")
    assert _run(later, "CREATE DATABASE d", charsets=(255, 255, 255)) == []
    (created,) = _run(later, "CREATE TABLE u (a TEXT)")
    assert isinstance(created, Created)
    assert created.after.columns[0].charset == "utf8mb4"


@pytest.mark.parametrize(
    ("column", "is_certain"),
    [
        ("x TIMESTAMP", False),
        ("x TIMESTAMP NOT NULL", False),
        ("x TIMESTAMP DEFAULT CURRENT_TIMESTAMP", False),
        ("x TIMESTAMP NULL", True),
        ("x TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP", True),
        ("x DATETIME", True),
    ],
)
def test_explicit_defaults_for_timestamp_is_not_guessed(column: str, is_certain: bool) -> None:
    history = _begun_empty(server=MARIADB, explicit_timestamps=None)
    (event,) = _run(history, "CREATE TABLE t (id INT)")
    assert isinstance(event, Created)
    (event,) = _run(history, f"ALTER TABLE t ADD {column}")
    assert isinstance(event, Altered if is_certain else Unknown)
    if isinstance(event, Unknown):
        assert "explicit_defaults_for_timestamp" in event.why
    logged = _begun_empty(explicit_timestamps=None)
    (event,) = _run(logged, f"CREATE TABLE t (id INT, {column})", explicit_defaults_for_timestamp=False)
    assert isinstance(event, Created)


def test_names_that_differ_in_case_only_are_a_doubt_where_nothing_says_what_they_are() -> None:
    history = _begun_empty(fold=None)
    assert _run(history, "CREATE TABLE Orders (a INT)")
    with pytest.raises(SourceChanged, match="lower_case_table_names"):
        history.definition("d", "orders")
    (event,) = _run(history, "ALTER TABLE D.orders ADD b INT")
    assert isinstance(event, Unknown)
    assert "lower_case_table_names" in event.why
    assert event.tables == (("d", "Orders"),)
    assert history.definition("d", "Orders") is None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("TRUNCATE TABLE t", Truncated),
        ("DROP TABLE t", Dropped),
        ("DROP DATABASE d", Dropped),
        ("RENAME TABLE t TO u", Unknown),
    ],
)
def test_what_happens_to_a_table_that_consumers_know_is_told_though_the_history_was_lost(
    sql: str, expected: Any
) -> None:
    history = _begun_empty()
    history.doubt("d", "t")
    (event,) = _run(history, sql)
    assert isinstance(event, expected)
    if expected is Dropped:
        assert _run(history, "DROP TABLE IF EXISTS t") == []
