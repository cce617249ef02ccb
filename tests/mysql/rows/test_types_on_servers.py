"""Every type, written on a real server, read from its log, and compared with the server's own SELECT."""

import datetime as dt
import struct
from typing import Any

import pyarrow as pa
import pytest

from databus.testing.servers import Server
from tests.mysql.rows.walker import decode_all

pytestmark = [pytest.mark.old_servers, pytest.mark.both_servers]

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a DATETIME has no zone


def in_words(words: str, value: Any, kind: pa.DataType) -> str | None:
    """A decoded value as `selected` has the server say it."""
    name, _, rest = words.partition("(")
    if name == "DECIMAL" and pa.types.is_string(kind):
        return value if value is None else str(value)
    scale = int(rest[: rest.index(")")]) if rest and "TIME" in name else 0
    return text_of(value, kind, scale, is_time=name == "TIME")


def text_of(  # noqa: PLR0911
    value: Any, kind: pa.DataType, scale: int, *, is_time: bool
) -> str | None:
    """A decoded value in the words of `CAST(... AS CHAR)`, bytes and text in hexadecimal."""
    if value is None:
        return None
    if is_time:
        size = abs(value)
        seconds, fraction = divmod(size, 1_000_000)
        whole = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return ("-" if value < 0 else "") + whole + (f".{fraction:06d}"[: 1 + scale] if scale else "")
    if pa.types.is_string(kind):
        return str(value.encode().hex().upper())
    if pa.types.is_binary(kind):
        return str(value.hex().upper())
    if pa.types.is_timestamp(kind):
        text = f"{value.replace(tzinfo=None):%Y-%m-%d %H:%M:%S.%f}"
        return text.rjust(26, "0")[: 20 + scale if scale else 19]
    if pa.types.is_boolean(kind):
        return str(int(value))
    if pa.types.is_decimal(kind):
        return f"{value:f}"
    return str(value)


# column type, what to select of it, values in SQL
INTEGERS = [
    ("TINYINT", ["-128", "127", "0", "NULL"]),
    ("TINYINT UNSIGNED", ["0", "255", "128"]),
    ("BOOL", ["TRUE", "FALSE"]),
    ("SMALLINT", ["-32768", "32767"]),
    ("SMALLINT UNSIGNED", ["0", "65535", "32768"]),
    ("MEDIUMINT", ["-8388608", "8388607", "-1"]),
    ("MEDIUMINT UNSIGNED", ["0", "16777215", "8388608"]),
    ("INT", ["-2147483648", "2147483647"]),
    ("INT UNSIGNED ZEROFILL", ["0", "4294967295", "NULL"]),
    ("BIGINT", ["-9223372036854775808", "9223372036854775807"]),
    ("BIGINT UNSIGNED", ["0", "18446744073709551615", "9223372036854775808"]),
    ("YEAR", ["0", "1901", "2155", "2026"]),
    ("BIT(1)", ["b'0'", "b'1'", "NULL"]),
    ("BIT(8)", ["b'0'", "b'11111111'"]),
    ("BIT(13)", ["b'1010101010101'", "b'1'"]),
    ("BIT(32)", ["b'10000000000000000000000000000001'"]),
    ("BIT(64)", ["18446744073709551615", "1"]),
]
DECIMALS = [
    (f"DECIMAL({p},{s})", values)
    for p, s in [(1, 0), (1, 1), (5, 2), (9, 9), (10, 0), (12, 2), (18, 9), (18, 18), (19, 0), (20, 10), (27, 13),
                 (28, 1), (37, 30), (38, 0), (38, 10), (38, 30), (39, 0), (50, 20), (65, 0), (65, 30), (30, 30)]
    for largest in [("9" * (p - s) or "0") + ("." + "9" * s if s else "")]
    for values in [[
        "0", "-0.0", "NULL", largest, "-" + largest, "0." + "0" * (s - 1) + "1" if s else "1",
        "-0." + "1" * s if s else "-1", "1" + "0" * (p - s - 1) if p > s else "0",
    ]]
]  # fmt: skip
FLOATS = [
    ("FLOAT", ["1.1", "-3.402823466e38", "1e-38", "0", "16777217", "1e-45", "NULL"]),
    ("DOUBLE", ["1.1", "-1.7976931348623157e308", "5e-324", "0", "123456789.123456789"]),
]
TIMES = [
    (f"{kind}{f'({scale})' if scale else ''}", values)
    for kind, all_values in {
        "DATE": ["'0001-01-01'", "'9999-12-31'", "'1969-12-31'", "'2000-02-29'", "NULL"],
        "TIME": ["'-838:59:59'", "'838:59:59'", "'-00:00:00.000001'", "'-00:00:00.1'", "'-12:00:00.999999'",
                 "'00:00:00'", "'-00:00:01'", "NULL", "'12:34:56.789123'"],
        "DATETIME": ["'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'1969-12-31 23:59:59.9'",
                     "'2026-11-21 20:33:40.123456'", "NULL"],
        "TIMESTAMP": ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'2026-11-21 20:33:40.123456'", "NULL"],
    }.items()
    for scale in ([0] if kind == "DATE" else [0, 1, 2, 3, 4, 5, 6])
    for values in [all_values]
]  # fmt: skip
TEXTS = [
    ("CHAR(0)", ["''", "NULL"]),
    ("CHAR(10) CHARACTER SET utf8mb4", ["''", "'a  '", "'\N{SNOWMAN}\N{PILE OF POO}'", "'  b'", "NULL"]),
    ("CHAR(255) CHARACTER SET utf8mb4", ["REPEAT('\N{PILE OF POO}', 255)", "'x'"]),
    ("VARCHAR(63) CHARACTER SET utf8mb4", ["REPEAT('\N{PILE OF POO}', 63)", "'x  '"]),
    ("VARCHAR(64) CHARACTER SET utf8mb4", ["REPEAT('\N{PILE OF POO}', 64)", "''"]),
    ("VARCHAR(255) CHARACTER SET latin1", ["REPEAT('\xe9', 255)", "'\x80\u20ac'"]),
    ("VARCHAR(256) CHARACTER SET latin1", ["REPEAT('\xe9', 256)"]),
    ("VARCHAR(3000)", ["REPEAT('abc', 1000)", "''"]),
    ("TINYTEXT", ["REPEAT('a', 255)", "''", "NULL"]),
    ("TEXT", ["REPEAT('b', 65535)", "'\N{SNOWMAN}'"]),
    ("MEDIUMTEXT", ["REPEAT('c', 70000)", "'d'"]),
    ("LONGTEXT CHARACTER SET koi8r", ["REPEAT('\u0416', 70000)"]),
    ("ENUM('a','\xe9','it''s','c,d')", ["'a'", "'it''s'", "'\xe9'", "'c,d'", "NULL", "''"]),
    ("SET('x','y','z\N{SNOWMAN}')", ["''", "'x'", "'x,z\N{SNOWMAN}'", "'y,x,z\N{SNOWMAN}'", "NULL"]),
    ("ENUM(" + ",".join(f"'m{i}'" for i in range(300)) + ")", ["'m0'", "'m255'", "'m256'", "'m299'"]),
    ("SET(" + ",".join(f"'s{i}'" for i in range(64)) + ")", ["'s0,s63'", "'s8'", "''", "18446744073709551615"]),
    ("ENUM('\u0416','b') CHARACTER SET koi8r", ["'\u0416'", "'b'"]),
]
BYTES = [
    ("BINARY(5)", ["'a'", "x'0000000000'", "x'6100'", "x'FFFEFDFCFB'", "''", "NULL"]),
    ("BINARY(255)", ["'a'"]),
    ("VARBINARY(300)", ["x'00FF00'", "''", "REPEAT('a', 300)"]),
    ("TINYBLOB", ["x'00'", "NULL"]),
    ("BLOB", ["REPEAT(x'FF', 65535)"]),
    ("MEDIUMBLOB", ["REPEAT(x'FE', 70000)"]),
    ("LONGBLOB", ["''"]),
    ("GEOMETRY", ["ST_GeomFromText('POINT(1 2)', 4326)", "ST_GeomFromText('LINESTRING(0 0,1 1)')", "NULL"]),
    ("POINT", ["ST_GeomFromText('POINT(-1.5 2.25)')"]),
]
MARIADB = [
    ("UUID", ["UUID()", "'00000000-0000-0000-0000-000000000000'", "'123e4567-e89b-12d3-a456-426655440000'", "NULL",
              "'ffffffff-ffff-4fff-8fff-ffffffffff00'", "'01890a5d-ac96-774b-bcce-b302099a8057'"]),
    ("INET4", ["'0.0.0.0'", "'255.255.255.255'", "'10.0.100.0'", "NULL"]),
    ("INET6", [f"'{text}'" for text in (
        "::", "::1", "1::", "2001:db8::ff00:42:8329", "::ffff:192.0.2.128", "::192.0.2.128", "1:0:0:2::3", "::2",
        "::1:0", "1:2:3:4:5:6:7:8", "1:0:3:4:5:6:7:8", "0:1:2:3:4:5:6:0", "::ffff:0:0", "1:2:3:4:5:6::", "::ffff:1:2:3",
    )]),
    ("VARCHAR(200) COMPRESSED", ["REPEAT('ab', 100)", "''", "'x'", "NULL", "REPEAT('\N{SNOWMAN}', 200)"]),
    ("VARCHAR(1000) COMPRESSED", ["REPEAT('ab', 100)", "REPEAT('x', 1000)"]),
    ("TEXT COMPRESSED", ["REPEAT('\N{SNOWMAN}', 2000)", "'short'", "''"]),
    ("LONGBLOB COMPRESSED", ["REPEAT('ab', 100000)", "x'00FF'"]),
    ("JSON", ["'{\"b\":1,  \"a\":[1, 2.50]}'", "NULL", "'\"x\"'"]),
]  # fmt: skip


def selected(words: str) -> str:
    kind = words.split("(", maxsplit=1)[0].split(" ", maxsplit=1)[0].upper()
    if kind in ("BIT", "YEAR") or "ZEROFILL" in words:
        return "CAST({0} + 0 AS CHAR)"
    if kind == "FLOAT":
        return "{0} + 0e0"
    if kind in ("CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET", "JSON"):
        return "HEX(CONVERT({0} USING utf8mb4))"
    if kind in ("UUID", "INET4", "INET6"):
        return "HEX(CAST({0} AS CHAR))"
    if kind in ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "GEOMETRY", "POINT", "VECTOR"):
        return "HEX({0})"
    return "{0}" if kind == "DOUBLE" else "CAST({0} AS CHAR)"


def check(server: Server, database: str, columns: list[tuple[str, list[str]]], **policies: Any) -> None:
    """Make a table of these columns, a row for each value, and compare the log with SELECT."""
    session = server.connect(
        charset="utf8mb4", database=database, init_command="SET time_zone = '+00:00', sql_mode = ''"
    )
    with session, session.cursor() as cursor:
        names = [f"c{i}" for i in range(len(columns))]
        parts = ", ".join(f"{n} {t}{'' if 'NULL' in t else ' NULL'}" for n, (t, _) in zip(names, columns, strict=True))
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {parts}) DEFAULT CHARSET utf8mb4")
        since = server.position()
        rows = max(len(values) for _, values in columns)
        lines = [
            f"({row}, " + ", ".join(values[row % len(values)] for _, values in columns) + ")" for row in range(rows)
        ]
        cursor.execute("INSERT INTO t VALUES " + ", ".join(lines))
        cursor.execute("UPDATE t SET id = id + 1000")
        session.commit()
        expressions = ", ".join(selected(t).format(n) for n, (t, _) in zip(names, columns, strict=True))
        cursor.execute(f"SELECT id, {expressions} FROM t ORDER BY id")
        expected = [list(row) for row in cursor.fetchall()]
    changes, found = decode_all(server, since, "t", **policies)
    assert sorted(changes) == [1] * rows + [2] * rows + [3] * rows
    after = [row for row, change in enumerate(changes) if change == 3]
    inserted = [row for row, change in enumerate(changes) if change == 1]
    for number, (words, _) in enumerate(columns, start=1):
        column = found.column(number)
        values = [as_python(column[row]) for row in after]
        assert values == [as_python(column[row]) for row in inserted]
        for value, want in zip(values, (row[number] for row in expected), strict=True):
            if isinstance(want, float):
                assert struct.pack("<d", value) == struct.pack("<d", want), words
            else:
                said = want.decode() if isinstance(want, bytes) else want
                assert in_words(words, value, column.type) == said, (words, value)


def as_python(value: Any) -> Any:
    if pa.types.is_timestamp(value.type):
        number = value.cast(pa.timestamp("us", value.type.tz)).value
        return None if number is None else EPOCH + dt.timedelta(microseconds=number)
    return value.as_py()


@pytest.mark.parametrize("group", ["INTEGERS", "DECIMALS", "FLOATS", "TIMES", "TEXTS", "BYTES"])
def test_the_log_gives_what_select_gives(server: Server, database: str, group: str) -> None:
    check(server, database, globals()[group])


def test_vectors_of_the_newest_mysql(server: Server, database: str) -> None:
    if server.kind != "mysql-9.7":
        pytest.skip("only MySQL 9 has vectors")
    check(server, database, [("VECTOR(3)", ["STRING_TO_VECTOR('[1,-2.5,3e10]')", "NULL"])])


def test_types_that_only_mariadb_has(server: Server, database: str) -> None:
    if "mariadb" not in server.kind:
        pytest.skip("MySQL has no such types")
    check(server, database, MARIADB)
