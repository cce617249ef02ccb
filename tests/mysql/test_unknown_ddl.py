"""DDL that the reader does not understand: its tables are read again, and everything else goes on.

The reader is made not to understand what holds the word `frobnicate`, for everything that servers take is to be
understood one day.
"""

from dataclasses import replace
from typing import Any

import pytest

from databus.core import ControlKind, UnsupportedFeature
from databus.sources.mysql import MysqlSource, _held_tables
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql.tables import UnreadableStatement, _history
from databus.testing.servers import Server
from tests.mysql.following import FAMILIES, Follower, create

ODD = "/* frobnicate */"


@pytest.fixture(autouse=True)
def _partly_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    read = _history.read_statement

    def blind(text: str, *more: Any) -> Any:
        if "frobnicate" in text:
            raise UnreadableStatement("'frobnicate' was not expected")
        return read(text, *more)

    monkeypatch.setattr(_history, "read_statement", blind)


@pytest.fixture
def shop(server: Server, database: str) -> tuple[Server, str]:
    create(server, database)
    server.run(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO {database}.t VALUES (1, '10'), (2, '20'), (3, '30')",
    )
    return server, database


def controls(follower: Follower, source: str) -> list[str]:
    """What consumers are told of a table, with the class of a schema, without its first reading."""
    found = []
    for group in follower.tape.groups:
        if group.control is not None and group.control.table.source == source:
            body = group.control.body
            found.append(f"schema {body['class']}" if body["kind"] == "schema" else str(body["kind"]))
    return found[2:] if found[:2] == ["snapshot_begin", "snapshot_end"] else found


def logged(follower: Follower, source: str) -> list[Any]:
    """The ids of rows that came by the log, not by a reading."""
    return [
        row["id"]
        for group in follower.tape.groups
        for rows in group.rows
        if rows.table.source == source and not group.snapshot
        for row in rows.batch.to_pylist()
    ]


def test_the_tables_of_a_statement_that_is_not_understood_are_read_again_and_others_flow_on(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server)
    follower.check(server, database)
    server.run(
        f"INSERT INTO {database}.t VALUES (4, '40')",
        f"ALTER TABLE {database}.t MODIFY v INT, ADD w INT NOT NULL DEFAULT 7 {ODD}",
        f"INSERT INTO {database}.b VALUES ('meanwhile', 1, 1)",
        f"INSERT INTO {database}.t VALUES (5, 50, 8)",
    )
    copy = follower.check(server, database)
    assert controls(follower, f"{database}.t")[-3:] == ["schema 3", "snapshot_begin", "snapshot_end"]
    assert copy.kinds(f"{database}.b") == []
    assert follower.source is not None
    assert follower.source.lag().statements_unknown == 1
    server.run(f"UPDATE {database}.t SET w = w + 1 WHERE id < 3")
    follower.check(server, database)


def statements_behind(database: str) -> list[str]:
    """Two that are not understood and two that are, with rows of each form between."""
    return [
        f"INSERT INTO {database}.t VALUES (4, '40')",
        f"ALTER TABLE {database}.t MODIFY v INT {ODD}",
        f"INSERT INTO {database}.t VALUES (5, 50)",
        f"ALTER TABLE {database}.t CHANGE v x BIGINT, ADD w INT",
        f"INSERT INTO {database}.t VALUES (6, 60, 1)",
        f"INSERT INTO {database}.b VALUES ('meanwhile', 1, 1)",
        f"ALTER TABLE {database}.t DROP w, ADD y INT FIRST {ODD}",
        f"INSERT INTO {database}.t VALUES (9, 7, 70)",
        f"TRUNCATE TABLE {database}.t",
        f"INSERT INTO {database}.t VALUES (9, 8, 80)",
        f"ALTER TABLE {database}.t ADD z INT",
        f"INSERT INTO {database}.t VALUES (9, 9, 90, 3)",
    ]


def test_rows_of_a_form_that_nobody_knows_are_left_out_and_the_loss_is_told(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server)
    follower.check(server, database)
    follower.kill()
    server.run(*statements_behind(database))
    copy = follower.check(server, database)
    assert [each for each in logged(follower, f"{database}.t") if each != 4] == [9]
    assert "gap" in copy.kinds(f"{database}.t")
    assert copy.kinds(f"{database}.b") == []


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_session_that_is_killed_behind_any_group_holds_the_same_tables_again(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server)
    follower.check(server, database)
    follower.kill()
    server.run(*statements_behind(database))
    for _ in range(16):
        if follower.step() is not None:
            follower.kill()
    copy = follower.check(server, database)
    assert [each for each in logged(follower, f"{database}.t") if each != 4] == [9]
    assert "gap" in copy.kinds(f"{database}.t")


@pytest.mark.parametrize("kind", FAMILIES)  # MySQL 5.7 refuses such a statement under GTIDs
def test_rows_that_follow_such_a_statement_in_its_own_transaction_are_read(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server)
    follower.check(server, database)
    server.run(
        f"CREATE TABLE {database}.n (frobnicate INT PRIMARY KEY) SELECT id AS frobnicate FROM {database}.t",
        f"INSERT INTO {database}.n VALUES (4)",
    )
    follower.check(server, database)
    assert controls(follower, f"{database}.n")[-3:] == ["schema 3", "snapshot_begin", "snapshot_end"]


def test_capture_stops_before_it_where_that_is_asked_for(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server, unknown_ddl="stop")
    follower.check(server, database)
    server.run(
        f"INSERT INTO {database}.b VALUES ('before', 1, 1)",
        f"ALTER TABLE {database}.t ADD w INT {ODD}",
        f"INSERT INTO {database}.t VALUES (4, '40', 5)",
    )
    with pytest.raises(UnsupportedFeature, match=r"unknown_ddl: reread"):
        follower.until(lambda: False)
    assert ("before", 1) in follower.copy().tables[f"{database}.b"]
    assert controls(follower, f"{database}.t") == []
    again = follow(database, server, unknown_ddl="stop")
    again.tape = follower.tape
    again._folder = follower._folder
    with pytest.raises(UnsupportedFeature, match="frobnicate"):
        again.until(lambda: False)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {0}.t SELECT 4, '40', 'frobnicate'",
        "ALTER TABLE {0}.t ADD w VARCHAR(20) COMMENT 'frobnicate",  # as a text that is cut would end
    ],
)
def test_capture_stops_where_the_tables_cannot_be_told(shop, follow, monkeypatch, statement) -> None:
    server, database = shop
    follower = follow(database, server)
    follower.check(server, database)
    apply = _history.TableHistory.apply

    def other(history: Any, query: Any, **more: Any) -> Any:
        if query.text.startswith("ALTER"):
            object.__setattr__(query, "text", statement.format(database))
        return apply(history, query, **more)

    monkeypatch.setattr(_history.TableHistory, "apply", other)
    server.run(f"ALTER TABLE {database}.t ADD w INT")
    with pytest.raises(UnsupportedFeature, match="frobnicate"):
        follower.until(lambda: False)


def test_all_tables_that_a_statement_names_are_read_again_and_those_that_are_gone_are_dropped(shop, follow) -> None:
    server, database = shop
    server.run(
        f"CREATE TABLE {database}.u (id INT PRIMARY KEY, x INT)",
        f"INSERT INTO {database}.u VALUES (1, 1)",
        f"CREATE TABLE {database}._w (id INT PRIMARY KEY, y INT)",
        f"INSERT INTO {database}._w VALUES (7, 7)",
        f"CREATE TABLE {database}.gone (id INT PRIMARY KEY)",
    )
    follower = follow(database, server, exclude=[f"{database}.[_]*"])
    follower.catch_up(server, database)
    server.run(
        f"/* frobnicate */ RENAME TABLE {database}.t TO {database}.`it's`, {database}.u TO {database}.t, "
        f"{database}._w TO {database}.w",
        f"INSERT INTO {database}.t VALUES (2, 2)",
        f"INSERT INTO {database}.w VALUES (8, 8)",
        f"/* frobnicate */ DROP TABLE {database}.gone",
    )
    copy = follower.check(server, database)
    assert {name: sorted(key[0] for key in copy.tables[f"{database}.{name}"]) for name in ("t", "it's", "w")} == {
        "t": [1, 2],
        "it's": [1, 2, 3],
        "w": [7, 8],
    }
    assert controls(follower, f"{database}.gone")[-1] == controls(follower, f"{database}.u")[-1] == "drop"
    assert copy.kinds(f"{database}.a") == []


def test_a_table_that_is_locked_keeps_no_other_one_from_flowing_on(shop, follow, monkeypatch) -> None:
    server, database = shop
    monkeypatch.setattr(_held_tables, "_AGAIN_S", 0.0)
    monkeypatch.setattr("databus.sources.mysql._definition_lookup._LOCK_S_MAX", 1)
    follower = follow(database, server)
    follower.check(server, database)
    with server.connect(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {database}.t WRITE")
        cursor.execute(f"ALTER TABLE {database}.t ADD w INT {ODD}")
        server.run(f"INSERT INTO {database}.b VALUES ('meanwhile', 1, 1)")
        follower.until(lambda: ("meanwhile", 1) in follower.copy().tables.get(f"{database}.b", {}))
        assert "schema 3" not in controls(follower, f"{database}.t")
    follower.check(server, database)
    assert "schema 3" in controls(follower, f"{database}.t")


def test_a_statement_in_the_middle_of_a_reading_begins_it_again(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server, chunk_rows_max=1)
    follower.until(lambda: "snapshot_begin" in controls(follower, f"{database}.t"))
    server.run(f"ALTER TABLE {database}.t DROP v, ADD w INT NOT NULL DEFAULT 3 {ODD}")
    follower.check(server, database)


def test_a_table_that_is_not_understood_is_read_after_it_was_passed_over(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server, unknown_ddl="stop")
    follower.check(server, database)
    server.run(f"ALTER TABLE {database}.t MODIFY v INT {ODD}", f"INSERT INTO {database}.t VALUES (5, 50)")
    with pytest.raises(UnsupportedFeature, match="frobnicate"):
        follower.until(lambda: False)
    source = MysqlSource("shop", follower.config)
    source.identify()
    groups, _ = source.pass_over(replace(follower.tape.resume(), folder=follower._folder), 1, reads=True)
    source.close()
    for group in groups:
        follower.tape.append(group)
    copy = follower.check(server, database)
    assert "drop" not in copy.kinds(f"{database}.t")
    assert ControlKind.SCHEMA in copy.kinds(f"{database}.t")


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_table_of_a_database_with_a_dot_is_held_and_read_again_over_restarts(server, database, follow) -> None:
    dotted = f"{database}.x"
    create(server, database)
    server.run(
        f"CREATE DATABASE `{dotted}`",
        f"CREATE TABLE `{dotted}`.t (id INT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO `{dotted}`.t VALUES (1, '10')",
    )
    try:
        follower = follow(database, server, tables=[f"{database}.*", f"`{dotted}`.*"])
        follower.check(server, database)
        follower.kill()
        server.run(
            f"ALTER TABLE `{dotted}`.t MODIFY v INT {ODD}",
            f"INSERT INTO `{dotted}`.t VALUES (2, 20)",
            f"ALTER TABLE `{dotted}`.t ADD w INT",
            f"INSERT INTO `{dotted}`.t VALUES (3, 30, 1)",
        )
        for _ in range(6):
            follower.start()
            follower.step()
        follower.catch_up(server, database)
        rows = follower.copy().tables[f"`{dotted}`.t"].values()
        assert sorted((row["id"], row["v"], row["w"]) for _, row in rows) == [(1, 10, None), (2, 20, None), (3, 30, 1)]
    finally:
        server.run(f"DROP DATABASE `{dotted}`")


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_table_that_changes_while_the_catalogue_is_asked_for_is_asked_for_again(shop, follow, monkeypatch) -> None:
    """The catalogue may or may not have such a statement, so nothing is taken for proven then."""
    server, database = shop
    server.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")  # else the log tells the names of columns
    server.run(
        f"CREATE TABLE {database}.w (id INT PRIMARY KEY, a INT, b INT)", f"INSERT INTO {database}.w VALUES (1, 1, 2)"
    )
    try:
        follower = follow(database, server)
        follower.check(server, database)
        read = HistoryKeeper.read_catalogue
        left = ["RENAME COLUMN a TO c", "RENAME COLUMN b TO a", "RENAME COLUMN c TO b"]

        def changed_meanwhile(*given: Any, **named: Any) -> Any:
            found = read(*given, **named)
            while left:
                server.run(f"ALTER TABLE {database}.w {left.pop(0)}")
            return found

        monkeypatch.setattr(HistoryKeeper, "read_catalogue", changed_meanwhile)
        monkeypatch.setattr(_held_tables, "_AGAIN_S", 0.2)
        server.run(f"ALTER TABLE {database}.w ADD d INT {ODD}")
        follower.until(lambda: not left)
        server.run(f"INSERT INTO {database}.w (id, a, b) VALUES (4, 1000, 2000)")
        follower.check(server, database)
    finally:
        server.run("SET GLOBAL binlog_row_metadata = 'FULL'")
