"""Columns that come as text: what the server shows of a value, whether the row was logged or read, in keys too."""

from datetime import date
from typing import Any

import numpy as np
import pytest

from databus.core import ConfigError, CorruptData, UnrepresentableValue
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import decode, make_plan
from databus.testing.servers import Server
from tests.mysql.following import Follower, create

DATES = ["0000-00-00", "2020-00-10", "2020-02-31", "1000-01-01", "9999-12-31", "2024-02-29"]
CLOCKS = ["00:00:00", "23:59:59.999999", "01:02:03.4"]
COLUMNS: dict[str, list[str]] = {
    "DATE": DATES,
    **{
        f"DATETIME({digits})": [f"{day} {clock}" for day in DATES[:5] for clock in CLOCKS] for digits in (0, 1, 4, 5, 6)
    },
    **{
        f"TIMESTAMP({digits}) NULL": ["0", "1970-01-01 00:00:01", "2024-02-29 12:34:56.123456", "2038-01-19 03:14:07"]
        for digits in (0, 3, 6)
    },
    **{
        f"TIME({digits})": ["-838:59:59", "00:00:00", "-00:00:01.234567", "99:59:59.9", "100:00:00", "-1:00:00.5"]
        for digits in (0, 1, 2, 6)
    },
    "YEAR": ["0", "1901", "2155"],
    "DECIMAL(12,3)": ["-0.5", "0", "123456789.125", "-999999999.999"],
    "DECIMAL(38,10)": ["-0.0000000001", "9999999999999999999999999999.5"],
    "DECIMAL(5,0) ZEROFILL": ["12"],
    "BIGINT UNSIGNED": ["18446744073709551615", "0"],
    "TINYINT": ["-128", "127"],
    "BIT(1)": ["0", "1"],
    "BIT(64)": ["18446744073709551615", "5"],
    "BIT(11)": ["1025"],
    "ENUM('a','b')": ["b", "a"],
    "SET('a','b','c')": ["c,a"],
    "VARCHAR(9)": ["x"],
}
ALL = {f"c{number}": "string" for number in range(len(COLUMNS))}
LENIENT = "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"


def rows_of(follower: Follower, source: str) -> dict[Any, dict[str, Any]]:
    return {key: row for key, (_, row) in follower.copy().tables[source].items()}


def shown(server: Server, database: str, words: list[str]) -> dict[Any, dict[str, Any]]:
    """What the server shows. It has no text of a BIT but the number, and of ZEROFILL the digits are the value."""
    names = [f"c{number}" for number in range(len(words))]
    is_number = ["BIT" in kind or "ZEROFILL" in kind for kind in words]
    columns = [
        f"CAST({n} + 0 AS CHAR)" if each else f"CAST({n} AS CHAR)" for n, each in zip(names, is_number, strict=True)
    ]
    with server.connect(database=database, init_command=LENIENT) as session, session.cursor() as cursor:
        cursor.execute(f"SELECT id, {', '.join(columns)} FROM t")
        return {(row[0],): dict(zip(("id", *names), row, strict=True)) for row in cursor.fetchall()}


@pytest.mark.old_servers
def test_text_is_what_the_server_shows_of_rows_that_were_logged_and_that_are_read(
    server: Server, database: str, follow
) -> None:
    create(server, database)
    words = list(COLUMNS)
    columns = ", ".join(f"c{number} {kind}{'' if 'NULL' in kind else ' NULL'}" for number, kind in enumerate(words))
    options = {"types": {f"{database}.t": ALL}}
    with server.connect(database=database, init_command=LENIENT) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
        logging = follow(database, server, **options)
        logging.catch_up(server, database)
        for row in range(max(map(len, COLUMNS.values()))):
            values = [values[row % len(values)] for values in COLUMNS.values()]
            literals = [value if "BIT" in kind else f"'{value}'" for kind, value in zip(words, values, strict=True)]
            cursor.execute(f"INSERT INTO t VALUES ({row}, {', '.join(literals)})")
        cursor.execute("INSERT INTO t (id) VALUES (100)")
    logging.catch_up(server, database)
    reading = follow(database, server, **options)
    reading.catch_up(server, database)
    expected = shown(server, database, words)
    assert rows_of(logging, f"{database}.t") == expected
    assert rows_of(reading, f"{database}.t") == expected


@pytest.mark.old_servers
def test_invalid_dates_in_keys_are_read_chunk_by_chunk_and_logged(server: Server, database: str, follow) -> None:
    create(server, database)
    days = [f"{year}-{month:02}-{day:02}" for year in ("0000", "2020") for month in range(4) for day in range(0, 32, 5)]
    kinds = {"d": "DATE", "dt": "DATETIME(2)", "ts": "TIMESTAMP"}
    with server.connect(database=database, init_command=LENIENT) as session, session.cursor() as cursor:
        for name, kind in kinds.items():
            cursor.execute(f"CREATE TABLE {name} (k {kind} NOT NULL DEFAULT 0, n INT, PRIMARY KEY (k, n))")
            cursor.execute(
                f"INSERT IGNORE INTO {name} VALUES " + ", ".join(f"('{day}', 1), ('{day}', 2)" for day in days)
            )
        follower = follow(database, server, zero_dates="text", chunk_rows_max=3)
        follower.catch_up(server, database)
        for name in kinds:
            cursor.execute(f"DELETE FROM {name} WHERE n = 2 AND k < '2020-02-20'")
            cursor.execute(f"UPDATE {name} SET n = 3 WHERE n = 1")
        follower.catch_up(server, database)
        for name in kinds:
            cursor.execute(f"SELECT CAST(k AS CHAR), n FROM {name}")
            assert sorted(rows_of(follower, f"{database}.{name}")) == sorted(cursor.fetchall())
        assert len(rows_of(follower, f"{database}.d")) > 40


@pytest.mark.old_servers
def test_keys_that_come_as_text_are_read_chunk_by_chunk_and_logged(server: Server, database: str, follow) -> None:
    create(server, database)
    keys = {
        "TIME(1)": ["'-838:59:59'", "'-00:00:00.5'", "0", "'00:00:00.5'", "'100:00:00'"],
        "YEAR": ["0", "1901", "2026", "2155"],
        "DECIMAL(5,1)": ["-999.9", "-0.1", "0", "10", "9.9"],
        "DECIMAL(20,0) ZEROFILL": ["0", "7", "12345678901234567890"],
        "BIT(9)": ["0", "9", "10", "511"],
        "BIGINT UNSIGNED": ["0", "9", "10", "18446744073709551615"],
        "TINYINT": ["-128", "-1", "9", "10"],
    }
    types = {f"{database}.t{number}": {"k": "string"} for number in range(len(keys))}
    for number, (kind, values) in enumerate(keys.items()):
        rows = ", ".join(f"({value}, {n})" for value in values for n in range(3))
        server.run(
            f"CREATE TABLE {database}.t{number} (k {kind} NOT NULL, n INT, PRIMARY KEY (k, n))",
            f"INSERT INTO {database}.t{number} VALUES {rows}",
        )
    follower = follow(database, server, types=types, chunk_rows_max=2)
    follower.catch_up(server, database)
    for number in range(len(keys)):
        server.run(f"UPDATE {database}.t{number} SET n = n + 10 WHERE n = 1")
        server.run(f"DELETE FROM {database}.t{number} WHERE n = 2")
    follower.catch_up(server, database)
    for number, kind in enumerate(keys):
        shown = "k + 0" if "BIT" in kind or "ZEROFILL" in kind else "k"
        there = server.query(f"SELECT CAST({shown} AS CHAR), n FROM {database}.t{number}")
        assert sorted(rows_of(follower, f"{database}.t{number}")) == sorted(there), kind


def test_a_source_that_stopped_at_an_invalid_date_goes_on_once_it_comes_as_text(
    server: Server, database: str, follow
) -> None:
    create(server, database)
    with server.connect(database=database, init_command=LENIENT) as session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE t (k DATE, n INT, PRIMARY KEY (k, n))")
        cursor.execute("CREATE TABLE quiet (k DATE, n INT, PRIMARY KEY (k, n))")
        cursor.execute("INSERT INTO t VALUES ('2020-01-01', 1)")
        cursor.execute("INSERT INTO quiet VALUES ('2020-01-01', 1)")
        follower = follow(database, server)
        follower.catch_up(server, database)
        cursor.execute("INSERT INTO t VALUES ('2020-02-31', 1), (0, 1)")
        with pytest.raises(UnrepresentableValue, match=r"types: \{.*\.t: \{k: string\}\}"):
            follower.catch_up(server, database)
        text = {f"{database}.{name}": {"K": "string"} for name in ("t", "quiet")}
        follower.config = follower.config.model_copy(update={"types": text})
        follower.catch_up(server, database)
        assert sorted(rows_of(follower, f"{database}.t")) == [("0000-00-00", 1), ("2020-01-01", 1), ("2020-02-31", 1)]
        assert list(rows_of(follower, f"{database}.quiet")) == [("2020-01-01", 1)]  # although no row of it came
        cursor.execute("DELETE FROM t WHERE k <> '2020-01-01'")
        follower.catch_up(server, database)
        follower.kill()
        follower.config = follower.config.model_copy(update={"types": {}})
        follower.catch_up(server, database)
        assert list(rows_of(follower, f"{database}.t")) == [(date(2020, 1, 1), 1)]


def test_a_reading_that_stopped_half_way_begins_anew_as_text(server: Server, database: str, follow) -> None:
    create(server, database)
    with server.connect(database=database, init_command=LENIENT) as session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE t (k DATE PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES ('2019-01-01'), ('2019-01-02'), ('2020-02-31'), ('2020-03-01')")
    follower = follow(database, server, chunk_rows_max=1)
    with pytest.raises(UnrepresentableValue):
        follower.catch_up(server, database)
    follower.config = follower.config.model_copy(update={"zero_dates": "text"})
    follower.catch_up(server, database)
    assert sorted(rows_of(follower, f"{database}.t")) == [
        ("2019-01-01",), ("2019-01-02",), ("2020-02-31",), ("2020-03-01",),
    ]  # fmt: skip


def test_ddl_says_of_text_what_the_rows_that_are_there_hold(server: Server, database: str, follow) -> None:
    create(server, database)
    added = {
        "d": "DATE DEFAULT '2020-01-31'", "dt": "DATETIME(2) NOT NULL DEFAULT '2020-01-31 01:02:03.5'",
        "z": "DATE NOT NULL", "ti": "TIME(1) DEFAULT '-100:00:00.5'", "y": "YEAR NOT NULL", "n": "INT DEFAULT 7",
        "de": "DECIMAL(9,2) DEFAULT -1.5", "b": "BIT(9) DEFAULT 300", "b1": "BIT(1) DEFAULT b'1'",
    }  # fmt: skip
    options = {"types": {f"{database}.t": dict.fromkeys([*added, "old", "renamed"], "string")}}
    with server.connect(database=database, init_command=LENIENT) as session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, old DATETIME(1), kept DATE, other DATE)")
        cursor.execute("INSERT INTO t VALUES (1, '2020-02-31 01:01:01.5', '2020-01-01', NULL)")
        follower = follow(database, server, **options)
        follower.catch_up(server, database)
        # said, since a copy of the table would change what a lenient session calls invalid
        steps = [f"ADD {name} {words}, ALGORITHM=INPLACE" for name, words in added.items()]
        steps += [
            "MODIFY old DATETIME(3)",
            "CHANGE kept renamed DATE",
            "MODIFY de DECIMAL(11,2)",
            "MODIFY de DECIMAL(13,4)",
        ]
        for step in steps:
            cursor.execute(f"ALTER TABLE t {step}")
            follower.catch_up(server, database)
            names = [
                name for name in added if name in step or f"ADD {name} " in " ".join(steps[: steps.index(step) + 1])
            ]
            columns = [f"CAST({name} {'+ 0' if name[0] == 'b' else ''} AS CHAR)" for name in names]
            cursor.execute(f"SELECT CAST(old AS CHAR), {', '.join(columns)} FROM t")
            (row,) = rows_of(follower, f"{database}.t").values()
            assert (row["old"], *(row[name] for name in names)) == cursor.fetchone(), step
        assert row["renamed"] == "2020-01-01"
    classes = [(body["class"], sorted(body["fill"])) for body in follower.copy().controls if body["kind"] == "schema"]
    assert (3, ["z"]) not in classes
    assert [number for number, _ in classes][-4:] == [3, 3, 3, 3]
    assert (2, ["dt"]) in classes


def test_zero_dates_that_ddl_fills_in_are_known_as_text(server: Server, database: str, follow) -> None:
    create(server, database)
    with server.connect(database=database, init_command=LENIENT) as session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES (1)")
        follower = follow(database, server, zero_dates="text")
        follower.catch_up(server, database)
        cursor.execute("ALTER TABLE t ADD d DATE NOT NULL, ADD dt DATETIME(3) NOT NULL, ADD z DATETIME DEFAULT 0")
        follower.catch_up(server, database)
        cursor.execute("SELECT id, CAST(d AS CHAR), CAST(dt AS CHAR), CAST(z AS CHAR) FROM t")
        assert [tuple(row.values()) for row in rows_of(follower, f"{database}.t").values()] == list(cursor.fetchall())
        cursor.execute("ALTER TABLE t ADD x DATETIME(1) DEFAULT '2020-02-31 01:02:03.5'")
        follower.catch_up(server, database)
        assert [row["x"] for row in rows_of(follower, f"{database}.t").values()] == ["2020-02-31 01:02:03.5"]
    assert [body["class"] for body in follower.copy().controls if body["kind"] == "schema"] == [2, 3]


@pytest.mark.old_servers
def test_virtual_columns_beside_invalid_dates_are_what_they_were_when_they_were_logged(
    server: Server, database: str, follow
) -> None:
    """Their expressions may give other values where invalid dates are allowed."""
    create(server, database)
    server.run(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, s VARCHAR(20), v DATE AS (CAST(s AS DATE)) VIRTUAL)",
    )
    logging = follow(database, server, zero_dates="text")
    logging.catch_up(server, database)
    with server.connect(database=database, init_command="SET sql_mode = ''") as session, session.cursor() as cursor:
        cursor.execute("INSERT INTO t (id, s) VALUES (1, '2020-02-31'), (2, '2020-00-10'), (3, '2020-01-01')")
    logging.catch_up(server, database)
    reading = follow(database, server, zero_dates="text")
    reading.catch_up(server, database)
    assert rows_of(logging, f"{database}.t") == rows_of(reading, f"{database}.t")
    assert [row["v"] for row in rows_of(reading, f"{database}.t").values()] == [None, "2020-00-10", "2020-01-01"]


def test_a_type_without_exact_text_is_refused(server: Server, database: str, follow) -> None:
    create(server, database)
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, x FLOAT, b VARBINARY(4))")
    for column in ("x", "b"):
        with pytest.raises(ConfigError, match=rf"types\.{database}\.t\.{column}: .* no exact text"):
            follow(database, server, types={f"{database}.t": {column: "string"}}).catch_up(server, database)


@pytest.mark.parametrize(
    ("column", "bits"),
    [
        (ColumnDefinition("c", FieldType.DATETIME2, 0, "datetime"), (0x80_0000_0000 | 24 << 12).to_bytes(5, "big")),
        (ColumnDefinition("c", FieldType.DATETIME2, 0, "datetime"), bytes(5)),
        (ColumnDefinition("c", FieldType.DATE, 0, "date"), (10_000 << 9).to_bytes(3, "little")),
        (ColumnDefinition("c", FieldType.TIME2, 0, "time"), (0x80_0000 + (839 << 12)).to_bytes(3, "big")),
        (ColumnDefinition("c", FieldType.TIMESTAMP2, 2, "timestamp(2)"), bytes([0, 0, 0, 9, 100])),
    ],
)
def test_bits_that_no_server_writes_are_refused(column: ColumnDefinition, bits: bytes) -> None:
    plan = make_plan(TableDefinition("shop", "t", (column,)), [column.type], [column.meta], texts=frozenset("c"))
    good = b"\xff"  # a null, whose bits say nothing
    data = np.frombuffer(good + b"\xfe" + bits, np.uint8).copy()
    with pytest.raises(CorruptData, match=r"shop\.t: column 'c' at image 2 of .* no (DATE|TIME)"):
        decode(plan, data, np.ones(1, np.int8), np.zeros(1, np.int64), np.full(1, len(data)), "at {}".format)
