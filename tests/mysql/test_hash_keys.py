"""MariaDB's unique keys over hashes, whose columns no query shows, and columns of users that are called like those."""

from collections.abc import Callable

import pytest

from databus.sources.mysql.binlog import TableMap
from databus.sources.mysql.tables import from_table_map
from databus.testing.servers import Server
from tests.mysql.following import Follower
from tests.mysql.tables.tail import LogTail


@pytest.mark.parametrize("row_metadata", ["FULL", "MINIMAL"])
def test_only_the_servers_own_columns_of_hashes_are_left_out(
    plain_server: Callable[[str], Server], follow: Callable[..., Follower], row_metadata: str
) -> None:
    server = plain_server("mariadb-10.11")
    before = server.query("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    server.run(f"SET GLOBAL binlog_row_metadata = {row_metadata}", "CREATE DATABASE hashes")
    try:
        server.run("CREATE TABLE hashes.mark (id INT PRIMARY KEY, n BIGINT)")
        follower = follow("hashes", server)
        follower.catch_up(server, "hashes")
        server.run(
            "USE hashes",
            "CREATE TABLE own (id INT PRIMARY KEY, DB_ROW_HASH_1 BIGINT UNSIGNED)",
            "INSERT INTO own VALUES (1, 5)",
            "CREATE TABLE text (id INT PRIMARY KEY, DB_ROW_HASH_1 BIGINT UNSIGNED, DB_ROW_HASH_x INT, u TEXT UNIQUE)",
            "INSERT INTO text VALUES (1, 5, 6, 'a')",
            "ALTER TABLE text ADD db_row_hash_2 BIGINT UNSIGNED, ADD UNIQUE (u, id) USING HASH",
            "INSERT INTO text VALUES (2, 5, 7, 'b', 8)",
            "CREATE TABLE memory (id INT PRIMARY KEY, u VARCHAR(20), UNIQUE (u) USING HASH) ENGINE=MEMORY",
            "INSERT INTO memory VALUES (1, 'a')",
        )
        follower.check(server, "hashes")
        server.run("ALTER TABLE hashes.memory ENGINE=InnoDB", "INSERT INTO hashes.memory VALUES (2, 'b')")
        follower.check(server, "hashes")
        server.run("UPDATE hashes.text SET db_row_hash_2 = id", "ALTER TABLE hashes.text DROP KEY u, DROP KEY u_2")
        server.run("UPDATE hashes.text SET db_row_hash_2 = 9")
        follower.check(server, "hashes")
    finally:
        server.run(f"SET GLOBAL binlog_row_metadata = {before}", "DROP DATABASE hashes")


def test_a_table_that_only_the_log_tells_of_loses_no_column_that_is_called_so(
    plain_server: Callable[[str], Server],
) -> None:
    """The server's own are BIGINT UNSIGNED, at the end, and numbered."""
    server = plain_server("mariadb-10.11")
    server.run("CREATE DATABASE hashes")
    try:
        tail = LogTail(server)
        server.run(
            "USE hashes",
            "CREATE TABLE a (id INT PRIMARY KEY, u TEXT UNIQUE, DB_ROW_HASH_1 INT, DB_ROW_HASH_ BIGINT UNSIGNED)",
            "CREATE TABLE b (id INT PRIMARY KEY, DB_ROW_HASH_1 BIGINT UNSIGNED, v INT)",
            "CREATE TABLE c (id INT PRIMARY KEY, DB_ROW_HASH_2 BIGINT UNSIGNED)",
            "CREATE TABLE d (id INT PRIMARY KEY, DB_ROW_HASH_1 BIGINT)",
            "CREATE TABLE e (id INT PRIMARY KEY, u TEXT UNIQUE, v TEXT UNIQUE)",
            "INSERT INTO a (id) VALUES (1)",
            *(f"INSERT INTO {name} (id) VALUES (1)" for name in "bcde"),
        )
        hidden = {found.name: from_table_map(found).hidden for found in tail.new() if isinstance(found, TableMap)}
        assert hidden == {
            "a": {"DB_ROW_HASH_2"},
            "b": set(),
            "c": set(),
            "d": set(),
            "e": {"DB_ROW_HASH_1", "DB_ROW_HASH_2"},
        }
    finally:
        server.run("DROP DATABASE hashes")
