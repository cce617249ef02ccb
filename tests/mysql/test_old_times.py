"""Columns in the form of MariaDB 5.3, whose table maps do not say how many digits of a second they have."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from databus.testing.servers import Server
from tests.mysql.following import Follower
from tests.mysql.rows.test_policies import said as said_otherwise

KINDS = ("TIME", "DATETIME")  # of a TIMESTAMP, what SELECT answers has no time zone


def said(value: Any, digits: int) -> str:
    if isinstance(value, timedelta):
        value = value // timedelta(microseconds=1)
    return value if isinstance(value, str) else said_otherwise(value, digits)


@pytest.fixture
def old_server(plain_server: Callable[[str], Server]) -> Iterator[Server]:
    server = plain_server("mariadb-10.11")
    server.run("SET GLOBAL mysql56_temporal_format = 0", "CREATE DATABASE old_times")
    yield server
    server.run("SET GLOBAL mysql56_temporal_format = 1", "DROP DATABASE old_times")


@pytest.mark.parametrize("form", ["known from the catalogue", "made in the log", "altered", "not in the log"])
def test_many_rows_of_old_times_come_as_they_are(
    old_server: Server, follow: Callable[..., Follower], form: str
) -> None:
    server = old_server
    server.run("CREATE TABLE old_times.mark (id INT PRIMARY KEY, n BIGINT)")
    columns = ", ".join(f"{kind[0]}{n} {kind}({n}) NULL" for kind in KINDS for n in range(7))
    stamps = ", ".join(f"s{n} TIMESTAMP({n}) NULL" for n in range(7))
    make = [f"CREATE TABLE old_times.t (id INT PRIMARY KEY, {columns})"]
    make += [f"CREATE TABLE old_times.s (id INT PRIMARY KEY, {stamps})"]
    follower = follow("old_times", server, types={"old_times.s": {f"s{n}": "string" for n in range(7)}})
    if form == "known from the catalogue":
        server.run(*make)
    follower.catch_up(server, "old_times")
    if form != "known from the catalogue":
        server.run(f"SET sql_log_bin = {int(form != 'not in the log')}", *make, "SET sql_log_bin = 1")
    if form == "altered":
        server.run("ALTER TABLE old_times.t ADD z INT", "ALTER TABLE old_times.s ADD z INT")
    texts = [f"2020-01-{n + 1:02d} 10:11:{n + 10}.{n}12345" for n in range(13)]
    rows = ", ".join(f"({n}, {', '.join([repr(text[11:])] * 7 + [repr(text)] * 7)})" for n, text in enumerate(texts))
    names = ", ".join(f"{kind[0]}{n}" for kind in KINDS for n in range(7))
    stamps = ", ".join(f"s{n}" for n in range(7))
    rows_s = ", ".join(f"({n}, {', '.join([repr(text)] * 7)})" for n, text in enumerate(texts))
    server.run(
        "SET time_zone = '+00:00'",
        f"INSERT INTO old_times.t (id, {names}) VALUES {rows}",
        f"INSERT INTO old_times.s (id, {stamps}) VALUES {rows_s}",
    )
    follower.catch_up(server, "old_times")
    copy = follower.copy()
    for table, listed in (("t", names), ("s", stamps)):
        held = copy.tables[f"old_times.{table}"]
        shown = ", ".join(f"CAST({name} AS CHAR)" for name in listed.split(", "))
        for number, *want in server.query(f"SELECT id, {shown} FROM old_times.{table} ORDER BY id"):
            row = held[number,][1]
            assert [said(row[name], int(name[1])) for name in listed.split(", ")] == want
