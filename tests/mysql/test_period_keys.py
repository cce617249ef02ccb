# ruff: noqa: E501 - statements read best whole
"""MariaDB's keys WITHOUT OVERLAPS, where the log does not say what a table's key is."""

from collections.abc import Callable

from databus.testing.servers import Server
from tests.mysql.following import Follower


def test_a_period_in_a_key_is_its_columns(new_server: Callable[..., Server], follow: Callable[..., Follower]) -> None:
    """Rows of one `id` and of many periods are many rows. No catalogue shows the columns of a period that is older."""
    server = new_server("mariadb-10.11", row_metadata="MINIMAL")
    server.run(
        "CREATE DATABASE periods",
        "CREATE TABLE periods.mark (id INT PRIMARY KEY, n BIGINT)",
        "CREATE TABLE periods.older (k INT PRIMARY KEY, id INT NOT NULL, s DATE NOT NULL, e DATE NOT NULL, PERIOD FOR p (s, e))",
        "CREATE TABLE periods.nulls LIKE periods.older",
    )
    follower = follow("periods", server)
    follower.catch_up(server, "periods")
    rows = "(1, '2020-01-01', '2020-02-01'), (1, '2020-02-01', '2020-03-01'), (1, '2021-01-01', '2022-01-01'), (2, "
    rows += "'2020-01-01', '2022-01-01')"
    server.run(
        "USE periods",
        "CREATE TABLE made (id INT, s DATE NOT NULL, e DATE NOT NULL, PERIOD FOR p (s, e), PRIMARY KEY (id, p WITHOUT OVERLAPS))",
        "CREATE TABLE altered (id INT NOT NULL, s DATE NOT NULL, e DATE NOT NULL)",
        "ALTER TABLE altered ADD UNIQUE (id, p WITHOUT OVERLAPS), ADD PERIOD FOR p (s, e)",
        f"INSERT INTO made VALUES {rows}",
        f"INSERT INTO altered VALUES {rows}",
        "DELETE FROM made WHERE s = '2020-02-01'",
        "UPDATE altered SET e = '2020-01-05' WHERE s = '2020-01-01'",
        "INSERT INTO older SELECT id * 100000000 + s, id, s, e FROM made",
        "ALTER TABLE older DROP PRIMARY KEY, ADD UNIQUE (id, p WITHOUT OVERLAPS)",
        "UPDATE older SET e = '2020-01-05' WHERE s = '2020-01-01'",
        "ALTER TABLE nulls MODIFY s DATE NULL",  # it stays NOT NULL
        "INSERT INTO nulls SELECT * FROM older",
    )
    follower.check(server, "periods")
