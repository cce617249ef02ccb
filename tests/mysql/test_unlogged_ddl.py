"""DDL that is in no log (SET sql_log_bin = 0): the log's own table maps show it, exactly where it took effect."""

from typing import Any

import pytest

from databus.core import ControlKind, UnsupportedFeature
from databus.testing._source_suite import Tape
from databus.testing.servers import Server
from tests.mysql.following import Follower, create


def alter_unlogged(server: Server, *statements: str) -> None:
    with server.connect(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        for statement in statements:
            cursor.execute(statement)


def told(tape: Tape, source: str) -> list[tuple[str, tuple[int, int], Any]]:
    """What was said of a table, in the log's order: a control's columns, or a logged row's `id` and its columns."""
    found: list[tuple[str, tuple[int, int], Any]] = []
    for group in tape.groups:
        control = group.control
        if control is not None and control.kind is ControlKind.SCHEMA and control.table.source == source:
            found.append(("schema", control.pair, control.table.names))
        for rows in group.rows:
            if rows.table.source == source:
                found += [
                    ("row", (row["_commit_version"], row["_seq"]), (row["id"], rows.table.names))
                    for row in rows.batch.to_pylist()
                    if not row["_snapshot"]
                ]
    return found


def three_forms(server: Server, database: str) -> None:
    """Transactions of `t` in three forms, with others between, that a reader finds all at once."""
    for number in range(3):
        server.run(f"INSERT INTO {database}.t VALUES ({number}, 'first')", f"UPDATE {database}.a SET price = {number}")
    alter_unlogged(server, f"ALTER TABLE {database}.t ADD COLUMN more INT")
    for number in range(3, 6):
        server.run(
            f"INSERT INTO {database}.t VALUES ({number}, 'second', 1)",
            f"UPDATE {database}.t SET v = 'again' WHERE id = {number - 1}",
        )
    alter_unlogged(server, f"ALTER TABLE {database}.t DROP COLUMN v")
    server.run(f"INSERT INTO {database}.t VALUES (6, 2)", f"DELETE FROM {database}.t WHERE id = 0")


@pytest.fixture
def shop(server: Server, database: str) -> tuple[Server, str]:
    if server.kind == "mysql-5.7":
        pytest.skip("MySQL 5.7's log does not name columns")
    create(server, database)
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(20))")
    return server, database


@pytest.mark.parametrize("group_bytes_max", [1_024, 4 << 20])
def test_the_control_stands_between_the_rows_of_the_old_form_and_of_the_new(shop, follow, group_bytes_max) -> None:
    server, database = shop
    follower = follow(database, server, group_bytes_max=group_bytes_max)
    follower.check(server, database)
    follower.kill()  # so that it then finds them all in one piece
    three_forms(server, database)
    follower.check(server, database)

    found = told(follower.tape, f"{database}.t")
    pairs = [pair for _, pair, _ in found]
    assert pairs == sorted(pairs)
    forms = [("id", "v"), ("id", "v", "more"), ("id", "more")]
    assert [what for kind, _, what in found if kind == "schema"] == forms[1:]
    at = 0
    for kind, _, what in found:
        at += kind == "schema"
        assert (what if kind == "schema" else what[1]) == forms[at]
    assert [what[0] for kind, _, what in found if kind == "row"] == [0, 1, 2, 3, 2, 2, 4, 3, 3, 5, 4, 4, 6, 0]


def test_rows_before_the_change_are_captured_where_it_stops(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server, on_class3="stop")
    follower.check(server, database)
    follower.kill()
    three_forms(server, database)
    with pytest.raises(UnsupportedFeature, match="on_class3"):
        follower.catch_up(server, database)
    found = told(follower.tape, f"{database}.t")
    assert [what for _, _, what in found] == [(number, ("id", "v")) for number in range(3)]
    with pytest.raises(UnsupportedFeature, match="on_class3"):
        follower.catch_up(server, database)


def test_a_source_killed_at_any_group_says_the_same(shop, follow) -> None:
    server, database = shop
    first, second = follow(database, server), follow(database, server)
    for each in (first, second):
        each.check(server, database)
    three_forms(server, database)
    first.check(server, database)
    before = len(second.tape.groups)
    while len(told(second.tape, f"{database}.t")) < len(told(first.tape, f"{database}.t")):
        if second.step() is not None and len(second.tape.groups) > before:
            before = len(second.tape.groups)
            second.kill()
    second.check(server, database)

    def logged(follower: Follower) -> list[Any]:
        found = told(follower.tape, f"{database}.t")
        return [(kind, what, pair if kind == "row" else pair[0]) for kind, pair, what in found]

    assert logged(second) == logged(first)


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_a_table_that_was_made_unlogged_is_read(shop, follow, metadata) -> None:
    """Without the log's saying so; IMPORT TABLE does the same."""
    server, database = shop
    if metadata == "MINIMAL" and server.flavor == "mariadb":
        metadata = "NO_LOG"
    server.run(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        follower = follow(database, server)
        follower.check(server, database)
        alter_unlogged(
            server,
            f"CREATE TABLE {database}.u (id INT PRIMARY KEY, v VARCHAR(20))",
            f"INSERT INTO {database}.u VALUES (1, 'unlogged'), (2, 'unlogged')",
        )
        server.run(
            f"UPDATE {database}.a SET price = 3",
            f"INSERT INTO {database}.u VALUES (3, 'logged')",
            f"DELETE FROM {database}.u WHERE id = 1",
        )
        follower.check(server, database)
        assert [kind for kind, _, _ in told(follower.tape, f"{database}.u")] == ["schema", "row", "row"]
        server.run(
            f"ALTER TABLE {database}.u ADD COLUMN w INT DEFAULT 7", f"INSERT INTO {database}.u VALUES (4, '', 8)"
        )
        follower.check(server, database)
        assert follower.copy().kinds(f"{database}.u") == ["schema", "schema"]
    finally:
        server.run("SET GLOBAL binlog_row_metadata = FULL")


def test_a_table_that_was_made_unlogged_is_read_whenever_the_source_was_killed(shop, follow) -> None:
    server, database = shop
    followers = [follow(database, server, server_id=7_000 + number) for number in range(5)]
    for each in followers:
        each.check(server, database)
    alter_unlogged(
        server,
        f"CREATE TABLE {database}.u (id INT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO {database}.u VALUES (1, 'unlogged')",
    )
    server.run(f"INSERT INTO {database}.u VALUES (2, 'logged')", f"ALTER TABLE {database}.u ADD COLUMN w INT")
    for steps, each in enumerate(followers):
        goal = len(each.tape.groups) + steps
        while len(each.tape.groups) < goal:
            each.step()
        assert each.source is not None
        each.source.poll(200)  # and what comes next is lost
        each.kill()
        each.check(server, database)
