"""A row is the same whether it was logged or read: one follower has seen it in the log, another reads the table."""

from typing import Any

import pymysql
import pytest

from databus.testing.servers import Server
from tests.mysql.following import Follower, create

# words of a column, and values that it may take; what a server refuses, words or values, is left out there
COLUMNS: dict[str, list[str]] = {
    "DATE": ["'0000-00-00'", "'2020-00-10'", "'2020-02-31'", "'9999-12-31'", "'0001-01-01'", "NULL"],
    "DATETIME(3)": ["0", "'2020-02-31 01:02:03.456'", "'1000-01-01'", "'2026-10-25 02:30:00.999'"],
    "TIMESTAMP(6) NULL": ["0", "'1970-01-01 00:00:01'", "'2026-10-25 02:30:00.000001'", "'2038-01-19 03:14:07.999999'"],
    "TIME": ["'-838:59:59'", "'00:00:00'", "'-00:00:01'", "NULL"],
    "TIME(1)": ["'-838:59:59'", "'-00:00:00.1'", "'-12:00:00.9'", "'838:59:58.9'"],
    "TIME(6)": ["'-00:00:00.000001'", "'-838:59:58.999999'", "'00:00:00.000001'"],
    "YEAR": ["0", "'0000'", "1901", "2155", "'70'", "69"],
    "BIT(1)": ["b'0'", "b'1'"],
    "BIT(7)": ["b'1010101'"],
    "BIT(64)": ["18446744073709551615", "b'0'"],
    "FLOAT": ["-0.0", "0.1", "16777217", "1e-45", "3.402823466e38", "1.17549435e-38", "123456.7891"],
    "FLOAT UNSIGNED ZEROFILL": ["0.1", "1e10"],
    "FLOAT(7,3)": ["1234.5678", "-0.0004"],
    "DOUBLE": ["-0.0", "5e-324", "-1.7976931348623157e308", "0.1", "1e22", "123456789.12345678"],
    "DOUBLE(12,4)": ["12345678.12345", "-0.00001"],
    "DECIMAL(65,30)": ["-0.0", f"{'9' * 35}.{'9' * 30}", f"-{'9' * 35}.{'1' * 30}", f"0.{'0' * 29}1"],
    "DECIMAL(5,2) UNSIGNED ZEROFILL": ["1.5", "0", "999.99"],
    "DECIMAL(50,0) ZEROFILL": ["0", "12"],
    "BIGINT UNSIGNED ZEROFILL": ["18446744073709551615", "0"],
    "TINYINT(1)": ["-128", "2"],
    "CHAR(10)": ["'a  '", "''", "'\N{PILE OF POO}'"],
    "CHAR(10) CHARACTER SET utf16": ["'a  '", "''", "'\N{PILE OF POO}'"],
    "VARCHAR(10) CHARACTER SET ucs2": ["'a  '", "'\xe9'"],
    "NCHAR(5)": ["'\xe9 '"],
    "BINARY(5)": ["'a'", "x'6100'", "''", "x'0000000000'"],
    "VARBINARY(5)": ["x'0020'", "''"],
    "VARCHAR(300) COMPRESSED": ["REPEAT('\xe9', 299)", "''", "'a '", "NULL"],
    "BLOB COMPRESSED": ["REPEAT(x'00', 5000)", "''"],
    "ENUM('a','b ','\xe9')": ["''", "'b'", "3", "0"],
    "ENUM('x','y') NOT NULL": ["'nothing of these'", "2"],
    "SET('a','b','c')": ["''", "'c,a'", "7", "'a,a'"],
    "JSON": ["'{\"b\": 1.0, \"a\": [1e2, -0.0, \"\\\\u00e9\"]}'", "'[]'", "'\"\"'", "NULL"],
    "GEOMETRY": [
        f"ST_GeomFromText('{text}')"
        for text in (
            "POINT(1 -0)", "LINESTRING(0 0,1 1)", "POLYGON((0 0,4 0,4 4,0 0))", "MULTIPOINT(1 1,2 2)",
            "GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))", "GEOMETRYCOLLECTION EMPTY",
        )
    ] + ["ST_GeomFromText('POINT(1 2)', 4326)"],
    "POINT": ["ST_GeomFromText('POINT(1e308 -1e-308)')", "NULL"],
    "UUID": ["'00112233-4455-6677-8899-aabbccddeeff'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "NULL"],
    "INET4": ["'0.0.0.0'", "'255.255.255.255'", "NULL"],
    "INET6": ["'::'", "'::1'", "'::ffff:1.2.3.4'", "'2001:db8::ff00:42:8329'", "'::1.2.3.4'", "'1:0:0:2::3'"],
    "VECTOR(3)": ["TO_VECTOR('[1,-0.0,1e-45]')", "NULL"],
    "LONGTEXT CHECK (JSON_VALID(c))": ["'{\"b\": 1.0}'"],
    "INT INVISIBLE": ["5", "NULL"],
    "VARCHAR(20) AS (CONCAT(n, '\xe9')) VIRTUAL": ["DEFAULT"],
    "VARCHAR(20) AS (CONCAT(n, 'x')) STORED": ["DEFAULT"],
    "DOUBLE AS (n / 3) VIRTUAL": ["DEFAULT"],
    "DATE AS (IF(n > 2, '2020-01-01', NULL)) VIRTUAL": ["DEFAULT"],
    "TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)": ["DEFAULT"],
}  # fmt: skip


def statements(words: str, values: list[str]) -> list[str]:
    """What is done to a table of an id, a number, and a column of this type."""
    found = [f"INSERT INTO t (id, n, c) VALUES ({i}, {i}, {value})" for i, value in enumerate(values)]
    found += [f"UPDATE t SET n = n + 1, c = {values[0]} WHERE id = {len(values) - 1}", "UPDATE t SET n = n + 1"]
    found += [f"INSERT INTO t (id, n, c) VALUES (0, 1, {values[-1]}) ON DUPLICATE KEY UPDATE n = n + 5"]
    found += [f"REPLACE INTO t (id, n, c) VALUES (0, 7, {values[-1]})", "INSERT INTO t (id, n) VALUES (90, 1), (91, 2)"]
    return [*found, "UPDATE t SET id = id + 1000 WHERE id > 0", "DELETE FROM t WHERE id = 1091"]


def rows_of(follower: Follower, database: str) -> dict[str, dict[Any, dict[str, Any]]]:
    """The rows of all tables but the mark."""
    tables = follower.copy().tables
    return {
        source: {key: row for key, (_, row) in held.items()}
        for source, held in sorted(tables.items())
        if source.startswith(f"{database}.t")
    }


@pytest.mark.parametrize("sql_mode", ["", "ALLOW_INVALID_DATES,PAD_CHAR_TO_FULL_LENGTH"])
def test_a_row_that_was_logged_is_the_row_that_is_read(server: Server, database: str, follow, sql_mode: str) -> None:
    create(server, database)
    made: dict[str, str] = {}
    with server.connect(database=database, charset="utf8mb4") as session, session.cursor() as cursor:
        cursor.execute("SET sql_mode = %s, time_zone = '+02:00'", (sql_mode,))
        for number, words in enumerate(COLUMNS):
            try:
                cursor.execute(f"CREATE TABLE t{number} (id INT PRIMARY KEY, n INT, c {words}) CHARACTER SET utf8mb4")
            except pymysql.MySQLError:
                continue  # this server has no such type
            made[f"t{number}"] = words
        following = follow(database, server, zero_dates="null")
        following.catch_up(server, database)
        for name, words in made.items():
            for statement in statements(words, COLUMNS[words]):
                try:
                    cursor.execute(statement.replace(" t ", f" {name} "))
                except pymysql.MySQLError:
                    continue  # a value that it does not take
    following.catch_up(server, database)
    reading = follow(database, server, zero_dates="null")
    reading.catch_up(server, database)
    logged, read = rows_of(following, database), rows_of(reading, database)
    assert logged.keys() == read.keys()
    assert sum(map(len, read.values())) > 2 * len(made)
    differences = [
        (made[source.partition(".")[2]], key, repr(logged[source].get(key)), repr(read[source].get(key)))
        for source in read
        for key in sorted({*read[source], *logged[source]})
        if repr(logged[source].get(key)) != repr(read[source].get(key))  # of -0.0, too
    ]
    assert differences == []
    assert _schemas(following) == _schemas(reading)


def _schemas(follower: Follower) -> dict[str, set[str]]:
    """The schemas in which each table's rows came."""
    found: dict[str, set[str]] = {}
    for group in follower.tape.groups:
        for rows in group.rows:
            if ".t" in rows.table.source:
                found.setdefault(rows.table.source, set()).add(rows.table.fingerprint)
    return found
