# ruff: noqa: E501 - statements read best whole
"""ALTERs that write all rows into a new table, in sessions unlike those that wrote the rows: a mirror holds what SELECT
answers, and a table is read again only where the copy may have changed a value.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import pymysql
import pytest
from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions

from databus.testing.servers import Server
from tests.mysql.following import Copy, Follower

WRITER = "time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES', div_precision_increment = 4, default_week_format = 0"
OTHER = "time_zone = 'Test/Twice', sql_mode = 'PAD_CHAR_TO_FULL_LENGTH', div_precision_increment = 9, default_week_format = 3, collation_connection = 'latin1_bin'"
ORDINARY = "time_zone = 'SYSTEM', sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE', div_precision_increment = 4, default_week_format = 0"
COPIES = {
    "asked": "ALTER TABLE {t} ADD z INT, ALGORITHM=COPY",
    "engine": "ALTER TABLE {t} ENGINE=InnoDB",
    "type": "ALTER TABLE {t} MODIFY v BIGINT",
    "charset": "ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4",
    "partitions": "ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 2",
    "order": "ALTER TABLE {t} ORDER BY v",
    "check": "ALTER TABLE {t} ADD CHECK (v > 0)",
    "optimized": "OPTIMIZE TABLE {t}",
    "wider": "ALTER TABLE {t} MODIFY m {wider}",
}
"""By a word for the table's name: what copies a table by itself."""
COPIES_OLD = {
    "forced": "ALTER TABLE {t} FORCE",
    "comment": "ALTER TABLE {t} COMMENT 'x'",
    "default": "ALTER TABLE {t} ALTER v SET DEFAULT 7",
    "key": "ALTER TABLE {t} ADD KEY (v)",
    "index": "CREATE INDEX i ON {t} (v)",
}
"""What does so with old_alter_table."""
MOMENTS = ("m TIMESTAMP NULL", "TIMESTAMP(3) NULL", ["2020-10-25 00:30:00", "2020-10-25 01:30:00"])
DATES = ("m DATETIME", "DATETIME(3)", ["2020-02-31 00:00:00", "2020-00-10 00:00:00"])
UNSTEADY = [
    *(("VARCHAR(80)", expression) for expression in (
        "CONCAT(v / 3)", "CONCAT(DATE_FORMAT(d, '%W'))", "DAYNAME(d)", "WEEK(d)", "UNIX_TIMESTAMP(d)", "CONCAT(ts)",
        "CONCAT(c, '|')", "CONCAT('2020-02-31' + INTERVAL 1 DAY)", "CONCAT(STR_TO_DATE(s, '%Y-%m-%d'))", "FORMAT(v, 2)", "CONCAT(CAST(s AS DATE))")),
    ("DATETIME", "'2020-01-01 10:11:12.6'"),
]  # fmt: skip
STEADY = [
    "v + 1", "v - 2 * id", "v DIV 2", "v % 2", "MOD(v, 2)", "ABS(v)", "ROUND(dc, 1)", "TRUNCATE(dc, 1)", "FLOOR(dc)", "CEILING(dc)", "SIGN(v)", "dc * 3", "f + 1",
    "CONCAT(s, '-', v)", "CONCAT_WS(',', s, dc)", "UPPER(s)", "LCASE(s)", "LEFT(s, 2)", "RIGHT(s, 2)", "SUBSTRING(s, 2, 3)", "SUBSTRING(s FROM 2)", "SUBSTRING_INDEX(s, '-', 1)",
    "TRIM(BOTH '-' FROM s)", "LTRIM(s)", "REPLACE(s, '-', '+')", "REVERSE(s)", "CHAR_LENGTH(s)", "LPAD(v, 5, '0')", "INSTR(s, '0')", "LOCATE('0', s)", "MD5(s)", "SHA2(s, 256)", "HEX(s)", "LENGTH(s)", "CRC32(s)",
    "IF(v > 1, 'a', NULL)", "CASE WHEN v > 1 THEN s ELSE 'x' END", "COALESCE(s, '-')", "IFNULL(s, '')", "NULLIF(v, 1)", "GREATEST(v, id)", "s IN ('a', 'b')", "v BETWEEN 1 AND 3 OR s IS NOT NULL", "s = 'A'", "ISNULL(s)",
    "JSON_UNQUOTE(JSON_EXTRACT(j, '$.a'))", "JSON_LENGTH(j)", "CAST(s AS SIGNED)", "CAST(dc AS DECIMAL(5,1))", "YEAR(d)", "MONTH(d)", "DAYOFMONTH(d)", "QUARTER(d)", "HOUR(d)", "MINUTE(d)", "SECOND(d)", "CONCAT(d)",
]  # fmt: skip
COLUMNS = "id INT PRIMARY KEY, v INT, dc DECIMAL(7,3), f DOUBLE, s VARCHAR(20), c CHAR(9), j JSON, d DATETIME"
ROW = "1, 1, 2.345, 0.1, '2020-02-31', 'c', '{\"a\": \"b\"}', '2020-01-05 10:11:12'"


@pytest.fixture
def twice(server: Server) -> Iterator[None]:
    """A time zone with an hour that comes twice, for the server has none until it is given tables of them."""
    (number,) = server.query("SELECT COALESCE(MAX(Time_zone_id), 0) + 1 FROM mysql.time_zone")[0]
    server.run(
        f"INSERT INTO mysql.time_zone VALUES ({number}, 'N')",
        f"INSERT INTO mysql.time_zone_name VALUES ('Test/Twice', {number})",
        f"INSERT INTO mysql.time_zone_transition_type VALUES ({number}, 0, 3600, 0, 'CET'), ({number}, 1, 7200, 1, 'CEST')",
        f"INSERT INTO mysql.time_zone_transition VALUES ({number}, 1585443600, 1), ({number}, 1603587600, 0)",
    )
    yield
    server.run(
        *(f"DELETE FROM mysql.{table} WHERE Time_zone_id = {number}"
          for table in ("time_zone", "time_zone_name", "time_zone_transition_type", "time_zone_transition"))
    )  # fmt: skip


def make(cursor: "pymysql.cursors.Cursor") -> dict[str, str]:
    """Tables that a copy may change, by what is to be done to each; without those that a server does not have."""
    done: dict[str, str] = {}
    cursor.execute(f"SET {WRITER}")
    for kind, (column, wider, values) in {"moments": MOMENTS, "dates": DATES}.items():
        for word, statement in {**COPIES, **COPIES_OLD}.items():
            if kind == "dates" and word not in ("asked", "optimized", "wider", "comment"):
                continue  # one root: what copies the one, copies the other
            table = f"{kind}_{word}"
            full_text = ", FULLTEXT (s)" if word == "optimized" else ""  # which keeps a server from doing it in place
            columns = f"id INT PRIMARY KEY, v INT, s VARCHAR(20), {column}{full_text}"
            engine = "MyISAM" if word == "engine" else "InnoDB"
            cursor.execute(f"CREATE TABLE {table} ({columns}) ENGINE={engine} CHARACTER SET ascii")
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, 1, 'a', %s)", list(enumerate(values)))
            done[table] = statement.format(t=table, wider=wider)
    for number, (kind, expression) in enumerate(UNSTEADY):
        with suppress(pymysql.err.MySQLError):
            table = f"unsteady_{number}"
            cursor.execute(f"CREATE TABLE {table} ({COLUMNS}, ts TIMESTAMP NULL, g {kind} AS ({expression}) STORED)")
            done[table] = f"ALTER TABLE {table} ADD z INT"
    columns = COLUMNS
    for number, expression in enumerate(STEADY):
        column = f"g{number} VARCHAR(80) AS ({expression}) STORED"
        with suppress(pymysql.err.MySQLError):
            cursor.execute(f"CREATE TEMPORARY TABLE trial ({COLUMNS}, {column})")
            cursor.execute("DROP TEMPORARY TABLE trial")
            columns += f", {column}"
    cursor.execute(f"CREATE TABLE steady ({columns})")
    done["steady"] = "ALTER TABLE steady ADD z INT"
    for table in done:
        if "steady" in table:
            cursor.execute(f"INSERT INTO {table} (id, v, dc, f, s, c, j, d) VALUES ({ROW})")
        if "unsteady" in table:
            cursor.execute(f"UPDATE {table} SET ts = '2020-10-25 00:30:00'")
    return done


def run_all(cursor: "pymysql.cursors.Cursor", session: str, done: dict[str, str]) -> None:
    cursor.execute(f"SET {session}")
    with suppress(pymysql.err.MySQLError):  # MySQL refuses a language of which it has no messages
        cursor.execute("SET lc_time_names = 'de_DE'")
    for table, statement in done.items():
        is_old = session == OTHER and table.partition("_")[2] not in COPIES
        cursor.execute(f"SET old_alter_table = {int(is_old)}")
        if session == OTHER and table == "steady":  # invalid dates are a reason of their own
            cursor.execute("SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,STRICT_ALL_TABLES'")
        with suppress(pymysql.err.MySQLError):
            cursor.execute(statement)


def differences(copy: Copy, server: Server, database: str) -> dict[str, tuple[list[str], list[str]]]:
    """By table, what the server holds and what a mirror does, where it is not the same."""
    texts = dict.fromkeys((FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP), str)
    found = {}
    with server.connect(
        database=database, conv={**conversions, **texts}, init_command="SET time_zone = '+00:00'"
    ) as session:
        for (table,) in server.query(f"SHOW TABLES IN {database}"):
            with session.cursor(pymysql.cursors.DictCursor) as cursor:
                cursor.execute(f"SELECT * FROM {table}")
                theirs = sorted(map(shown, cursor.fetchall()))
            ours = sorted(shown(row) for _, row in copy.tables[f"{database}.{table}"].values())
            if ours != theirs:
                found[table] = (theirs, ours)
    return found


def shown(row: dict[str, Any]) -> str:
    texts = {
        name: f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value) for name, value in row.items()
    }
    return str(sorted((name, text.removesuffix(".000")) for name, text in texts.items()))


def read_again(copy: Copy) -> list[str]:
    """The tables that were."""
    return sorted({str(each["source"]) for each in copy.controls if each.get("class") == 3})


def followed(server: Server, database: str, follow: Callable[..., Follower]) -> Follower:
    server.run(f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)")
    dated = {f"{database}.dates_{word}": {"m": "string"} for word in {**COPIES, **COPIES_OLD}}
    follower = follow(database, server, types=dated)
    follower.catch_up(server, database)
    return follower


@pytest.mark.usefixtures("twice")
def test_a_mirror_holds_what_a_copy_in_another_session_made(
    server: Server, database: str, follow: Callable[..., Follower]
) -> None:
    follower = followed(server, database, follow)
    with server.connect(database=database, charset="utf8mb4", autocommit=True) as session, session.cursor() as cursor:
        run_all(cursor, OTHER, make(cursor))
    follower.catch_up(server, database)
    copy = follower.copy()
    assert differences(copy, server, database) == {}
    assert f"{database}.steady" not in read_again(copy)


def test_an_ordinary_session_has_no_table_read_again(
    server: Server, database: str, follow: Callable[..., Follower]
) -> None:
    follower = followed(server, database, follow)
    with server.connect(database=database, charset="utf8mb4", autocommit=True) as session, session.cursor() as cursor:
        done = make(cursor)
        for table in ("dates_wider", "dates_optimized"):  # their texts do change
            del done[table]
        in_place = {table: f"{statement}, ALGORITHM=INPLACE" for table, statement in done.items() if "steady" in table}
        run_all(cursor, ORDINARY, {**done, **in_place})
    follower.catch_up(server, database)
    copy = follower.copy()
    assert differences(copy, server, database) == {}
    assert read_again(copy) == []
