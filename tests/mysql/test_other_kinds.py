"""Names of tables in statements about views and sequences, and the other way round: servers log what had no effect."""

from contextlib import suppress
from typing import Any

import pymysql

from databus.testing.servers import Server
from tests.mysql.following import create

HARMLESS = (
    "DROP VIEW IF EXISTS a",
    "DROP VIEW IF EXISTS nothing, b, mark",
    "CREATE VIEW IF NOT EXISTS a AS SELECT 1 AS one",
    "DROP SEQUENCE IF EXISTS a",
    "CREATE SEQUENCE IF NOT EXISTS b",
    "CREATE OR REPLACE VIEW a AS SELECT 1 AS one",
)
"""What some servers do not know or refuse, the others accept and log."""


def run_what_is_accepted(server: Server, database: str, *statements: str) -> None:
    with server.connect(database=database, autocommit=True) as session, session.cursor() as cursor:
        for statement in statements:
            with suppress(pymysql.MySQLError):  # then it is not logged
                cursor.execute(statement)


def test_a_table_stays_where_a_view_or_a_sequence_of_its_name_is_dropped_or_made(
    server: Server, database: str, follow: Any
) -> None:
    create(server, database)
    follower = follow(database, server)
    follower.check(server, database)
    for statement in HARMLESS:
        run_what_is_accepted(server, database, statement)
        server.run(f"UPDATE {database}.a SET price = price + 1", f"REPLACE INTO {database}.b VALUES ('x', 1, 1)")
        follower.check(server, database)
    assert follower.copy().kinds() == []


def test_a_view_stays_where_a_table_of_its_name_is_dropped_and_makes_room_when_it_is_dropped_itself(
    server: Server, database: str, follow: Any
) -> None:
    create(server, database)
    follower = follow(database, server)
    follower.check(server, database)
    run_what_is_accepted(
        server,
        database,
        "CREATE VIEW v AS SELECT 1 AS one",
        "DROP TABLE IF EXISTS v",
        "CREATE TABLE IF NOT EXISTS v (id INT PRIMARY KEY)",
        "DROP VIEW v",
        "CREATE TABLE v (id INT PRIMARY KEY, w INT)",
        "INSERT INTO v VALUES (1, 2)",
        "DROP TABLE IF EXISTS v",
        "CREATE VIEW v AS SELECT 1 AS one",
    )
    follower.check(server, database)
    assert follower.copy().kinds() == ["drop"]


def test_where_the_history_begins_in_the_middle_a_table_is_not_taken_for_a_view(
    server: Server, database: str, follow: Any
) -> None:
    create(server, database)
    file, offset = server.position()
    run_what_is_accepted(server, database, *HARMLESS[:3])
    follower = follow(database, server, start=f"{file}:{offset}")
    follower.step()
    server.run(f"UPDATE {database}.a SET price = 5 WHERE id = 20")
    follower.until(lambda: (20,) in follower.copy().tables.get(f"{database}.a", {}), 20)


def test_a_table_made_after_one_of_the_server_s_own_is_asked_for_when_its_rows_come(
    plain_server: Any, follow: Any
) -> None:
    """No log says what the database `mysql` has. MySQL refuses the statement."""
    server = plain_server("mariadb-10.11")
    server.run("CREATE OR REPLACE DATABASE own", "CREATE TABLE own.mark (id INT PRIMARY KEY, n BIGINT)")
    server.run(f"GRANT LOCK TABLES ON own.* TO '{server.capture_user}'@'%'")  # `b` stays in Aria
    follower = follow("own", server)
    follower.catch_up(server, "own")
    server.run(
        "CREATE TABLE own.a LIKE mysql.help_category",
        "ALTER TABLE own.a ENGINE=InnoDB",
        "INSERT INTO own.a VALUES (1, 'name', 2, 'url')",
        "CREATE TABLE own.b LIKE mysql.proc",
        "ALTER TABLE own.missing ANALYZE PARTITION p",
    )
    follower.check(server, "own")
    server.run("DROP DATABASE own")
