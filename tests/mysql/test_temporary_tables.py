# ruff: noqa: E501 - statements read best whole
"""Temporary tables that have the names of captured ones: what is done to them is not done to the others."""

from collections.abc import Callable

import pytest

from databus.core import name_parts
from databus.testing.servers import Server
from tests.mysql.following import Follower, create

CASES = {
    "renamed": ["RENAME TABLE a TO c"],
    "renamed and back": ["RENAME TABLE a TO c", "RENAME TABLE c TO a"],
    "renamed to a table's name": ["RENAME TABLE a TO b"],
    "swapped": ["CREATE TEMPORARY TABLE new_a (id INT, at INT, name INT, price INT)", "RENAME TABLE a TO old_a, new_a TO a"],
    "renamed by ALTER": ["ALTER TABLE a ADD z INT, RENAME c", "ALTER TABLE c RENAME a"],
    "looked after": ["OPTIMIZE TABLE a", "REPAIR TABLE a", "TRUNCATE a", "CREATE INDEX i ON a (id)"],
    "by a session without ROW": ["SET binlog_format = 'MIXED'", "CREATE TEMPORARY TABLE b (k INT)", "ALTER TABLE b ADD z INT", "TRUNCATE b"],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_that_name_stays_as_it_was(
    server: Server, database: str, follow: Callable[..., Follower], case: str
) -> None:
    if not server.kind.startswith("mariadb") and "RENAME TABLE" in "".join(CASES[case]):
        pytest.skip("MySQL renames no temporary table")
    create(server, database)
    server.run(f"INSERT INTO {database}.b VALUES ('x', 1, 0.5)")
    follower = follow(database, server)
    follower.catch_up(server, database)
    with server.connect(database=database, autocommit=True) as session, session.cursor() as cursor:
        if "SET" not in CASES[case][0]:
            cursor.execute("CREATE TEMPORARY TABLE a (id INT PRIMARY KEY, name INT)")
        for statement in CASES[case]:
            cursor.execute(statement)
    copy = follower.check(server, database)
    server.run(f"UPDATE {database}.a SET name = 'later' WHERE id = 11", f"UPDATE {database}.b SET x = 2")
    assert len(follower.check(server, database).kinds()) == len(copy.kinds())


def test_tables_that_are_renamed_are_not_read_for_nothing(plain_server, follow) -> None:
    """What a rename says is believed where the server has the tables by their new names."""
    server, database = plain_server("mariadb-10.11"), "renamed"
    server.run(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    create(server, database)
    follower = follow(database, server, exclude=[f"{database}.old_*"])
    follower.catch_up(server, database)
    server.run(
        f"RENAME TABLE {database}.a TO {database}.old_a",
        f"CREATE TABLE {database}.a LIKE {database}.old_a",
        f"RENAME TABLE {database}.b TO {database}.old_b",
    )
    follower.catch_up(server, database)
    told = [(name_parts(each["source"])[1], each["kind"]) for each in follower.copy().controls[-2:]]
    assert told == [("a", "drop"), ("b", "drop")]
    server.run(f"DROP DATABASE {database}")
