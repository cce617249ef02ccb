# ruff: noqa: E501, ISC004 - statements read best whole
"""Classes of changes: each claim that values stay, or become a known one, holds on real servers, row by row."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pymysql
import pytest

from databus.sources.mysql._definition import FieldType
from databus.sources.mysql.binlog import Query, TableMap
from databus.sources.mysql.tables import Altered, TableEvent, from_table_map, read_catalogue
from databus.testing.servers import Server
from tests.mysql.tables.tail import LogTail, new_history, server_of

_ROWS = (
    "(1, 127, 200, 1.50, 0.1, 0.1, 'abc  ', 'xyz', 'é', 'b', 'a,c', '2020-01-02', '2020-01-02 03:04:05.25', '-11:12:13.5', "
    "x'00ff00', x'00ff', NULL, b'101', 2020, 'ascii', 5, DEFAULT)",
    "(2, -128, 0, -99999.99, -1e10, 1e100, '', '', '', 'a', '', '1000-01-01', '9999-12-31 23:59:59.99', '838:59:59', '', '', 5, 0, "
    "1999, '', NULL, DEFAULT)",
)
_TABLE = """CREATE TABLE t (id INT PRIMARY KEY, ti TINYINT, un TINYINT UNSIGNED, de DECIMAL(7,2), fl FLOAT, do DOUBLE,
  vc VARCHAR(20), ch CHAR(5), u3 VARCHAR(20) CHARACTER SET utf8, en ENUM('a','b'), se SET('a','b','c'), da DATE,
  dt DATETIME(2), tm TIME(1), vb VARBINARY(5), bi BINARY(4), nu INT NULL, bt BIT(3), ye YEAR, asc_ VARCHAR(9) CHARACTER SET ascii,
  base INT, made INT AS (base + 1) STORED)
  CHARACTER SET utf8mb4"""

PROVEN = [
    "MODIFY ti SMALLINT",
    "MODIFY ti BIGINT",
    "MODIFY un SMALLINT",
    "MODIFY un BIGINT UNSIGNED",
    "MODIFY de DECIMAL(12,2)",
    "MODIFY de DECIMAL(12,4)",
    "MODIFY fl DOUBLE",
    "MODIFY vc VARCHAR(300)",
    "MODIFY vc TEXT",
    "MODIFY vc MEDIUMTEXT",
    "MODIFY ch CHAR(9)",
    "MODIFY ch VARCHAR(5)",
    "MODIFY u3 VARCHAR(20) CHARACTER SET utf8mb4",
    "MODIFY u3 VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "MODIFY asc_ VARCHAR(9) CHARACTER SET utf8mb4",
    "MODIFY asc_ VARCHAR(9) CHARACTER SET utf8",
    "MODIFY vb VARBINARY(9)",
    "MODIFY en ENUM('a','b','c')",
    "MODIFY en ENUM('c','b','a')",
    "MODIFY se SET('a','b','c','d')",
    "MODIFY se SET('z','a','b','c')",
    "MODIFY dt DATETIME(6)",
    "MODIFY tm TIME(3)",
    "MODIFY vb BLOB",
    "MODIFY nu BIGINT NULL",
    "MODIFY bt BIT(9)",
    "CHANGE vc renamed VARCHAR(20)",
    "CHANGE vc renamed VARCHAR(30) FIRST",
    "DROP COLUMN en",
    "ADD INDEX (vc), ADD UNIQUE (ti), COMMENT 'x'",
    "ALTER COLUMN ti SET DEFAULT 5",
    "MODIFY ti TINYINT AFTER un",
    "ENGINE=InnoDB",
    "FORCE, ALGORITHM=COPY",
    "DEFAULT CHARACTER SET latin1",
    "MODIFY base INT DEFAULT 5 COMMENT 'x'",
    "MODIFY asc_ VARCHAR(99) CHARACTER SET ascii FIRST, DROP COLUMN en",
]
UNPROVEN = [
    "MODIFY ti TINYINT UNSIGNED",
    "MODIFY un TINYINT",
    "MODIFY ti CHAR(5)",
    "MODIFY de DECIMAL(7,1)",
    "MODIFY de DECIMAL(7,4)",
    "MODIFY de DOUBLE",
    "MODIFY do FLOAT",
    "MODIFY fl DOUBLE(20,3)",
    "MODIFY vc VARCHAR(2)",
    "MODIFY vc CHAR(20)",
    "MODIFY vc VARCHAR(20) CHARACTER SET latin1",
    "MODIFY vc VARBINARY(80)",
    "MODIFY en ENUM('a')",
    "MODIFY en VARCHAR(5)",
    "MODIFY se SET('c','b','a')",
    "MODIFY dt DATETIME",
    "MODIFY dt TIMESTAMP NULL",
    "MODIFY tm TIME",
    "MODIFY bi BINARY(9)",
    "MODIFY nu INT NOT NULL",
    "MODIFY bt BIT",
    "MODIFY ye INT",
    "MODIFY da DATETIME",
    "CONVERT TO CHARACTER SET latin1",
    "ADD g INT AS (ti + 1)",
    "ADD c TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "ADD c DATETIME DEFAULT NOW()",
    "ADD c DATE NOT NULL",
    "ADD c TIMESTAMP NULL DEFAULT '2020-01-01 00:00:00'",
    "ADD c INT DEFAULT 2.5e0",
    "ADD c INT DEFAULT x'3132'",
    "ADD c BIT(4) DEFAULT 1.5",
    "ADD c YEAR DEFAULT '0070'",
    "ADD c DECIMAL(6,2) DEFAULT -0.001",
    "ADD c DOUBLE DEFAULT -0.0",
    "ADD c VARCHAR(9) DEFAULT -0",
    "ADD c VARCHAR(3) DEFAULT 'abc   '",
    "ADD c DATE DEFAULT '1999-12-31 23:59:59'",
    "DROP PRIMARY KEY",
    "DROP PRIMARY KEY, ADD PRIMARY KEY (id, ti)",
    "DROP COLUMN ti, ADD COLUMN ti INT",
    "CHANGE ti un_ TINYINT, CHANGE un ti TINYINT UNSIGNED",
    "DROP COLUMN ti, CHANGE un ti TINYINT UNSIGNED",
    "DROP COLUMN made, ENGINE=BLACKHOLE",
    "MODIFY id BIGINT AUTO_INCREMENT, DROP PRIMARY KEY, ADD KEY (id)",
    "MODIFY id INT AUTO_INCREMENT",
    "MODIFY base BIGINT",
    "MODIFY made INT AS (base + 2) STORED",
]
FILLED = [
    "INT",
    "INT DEFAULT 7",
    "INT NOT NULL",
    "INT NOT NULL DEFAULT '-5'",
    "TINYINT UNSIGNED NOT NULL DEFAULT 255",
    "BIGINT UNSIGNED DEFAULT 18446744073709551615",
    "DECIMAL(10,3) DEFAULT 1.2345",
    "DECIMAL(10,3) NOT NULL",
    "DECIMAL(60,3) DEFAULT 12345678901234567890123456789012345678901234567890.5",
    "FLOAT DEFAULT 0.1",
    "DOUBLE NOT NULL DEFAULT 1e-5",
    "VARCHAR(20) NOT NULL",
    "VARCHAR(20) DEFAULT 'it''s\\n\\\\'",
    "VARCHAR(20) CHARACTER SET latin1 DEFAULT 'é'",
    "CHAR(5) DEFAULT 'a  '",
    "CHAR(5) NOT NULL",
    "BINARY(4) DEFAULT 'ab'",
    "BINARY(4) NOT NULL",
    "VARBINARY(4) DEFAULT x'00ff'",
    "TEXT NOT NULL",
    "BLOB",
    "ENUM('x','y') NOT NULL",
    "ENUM('x','Y') DEFAULT 'y'",
    "SET('x','y','z') DEFAULT 'z,x'",
    "SET('x') NOT NULL",
    "DATE DEFAULT '2020-02-29'",
    "DATETIME(3) DEFAULT '2020-01-02 03:04:05.678'",
    "DATETIME DEFAULT '2020-01-02'",
    "TIMESTAMP NULL",
    "TIME(2) DEFAULT '-12:34:56.78'",
    "TIME NOT NULL",
    "YEAR NOT NULL DEFAULT 1999",
    "YEAR NOT NULL",
    "YEAR DEFAULT '5'",
    "BIT(9) DEFAULT b'101'",
    "BIT DEFAULT 1",
    "BIT(4) NOT NULL",
    "JSON",
    "INT NOT NULL DEFAULT 3 FIRST, ADD INDEX (c)",
    "INT INVISIBLE DEFAULT 4",
]


class _Table:
    """A table with rows on a real server, and the history that follows it."""

    def __init__(self, server: Server, database: str, **options: Any) -> None:
        self._connection = server.connect(charset="utf8mb4")
        self.run(f"DROP DATABASE IF EXISTS {database}")
        self.run(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        self.run(f"USE {database}")
        self._tail = LogTail(server)
        self.history = new_history(server, captured=lambda db, _: db == database, **options)
        self.history.begin(read_catalogue(server.query, server_of(server)))

    def renew(self) -> None:
        self.run("SET sql_mode = ''")
        self.run("DROP TABLE IF EXISTS t")
        self.run(_TABLE)
        for row in _ROWS:
            self.run(f"INSERT INTO t VALUES {row}")
        self._follow()

    def new(self) -> list[Query | TableMap]:
        return list(self._tail.new())

    def _follow(self) -> list[TableEvent]:
        statements = [found for found in self.new() if isinstance(found, Query)]
        return [event for statement in statements for event in self.history.apply(statement)]

    def run(self, sql: str) -> None:
        self._connection.cursor().execute(sql)

    def rows(self) -> list[dict[str, Any]]:
        cursor = self._connection.cursor(pymysql.cursors.DictCursor)
        cursor.execute("SELECT * FROM t ORDER BY id")
        return [{name: _plain(value) for name, value in row.items()} for row in cursor.fetchall()]

    def value(self, expression: str) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(f"SELECT {expression} FROM t LIMIT 1")
        return cursor.fetchone()[0]

    def alter(self, actions: str) -> list[TableEvent]:
        self.run(f"ALTER TABLE t {actions}")
        return self._follow()

    def close(self) -> None:
        self._connection.close()


def _plain(value: Any) -> Any:
    return value.lstrip(b"\0") if isinstance(value, bytes) and len(value) <= 2 else value


@pytest.fixture(scope="module")
def shared(kind: str, plain_server: Callable[[str], Server]) -> Iterator[_Table]:
    made = _Table(plain_server(kind), "db_classes")
    yield made
    made.run("DROP DATABASE db_classes")
    made.close()


@pytest.fixture
def table(shared: _Table) -> _Table:
    shared.renew()
    return shared


@pytest.mark.parametrize("actions", PROVEN)
def test_what_is_said_to_keep_values_keeps_them(table: _Table, actions: str) -> None:
    before = table.rows()
    events = table.alter(actions)
    renamed: dict[str, str] = {}
    for event in events:
        assert isinstance(event, Altered)
        assert event.number == 1, event.reasons
        renamed |= event.renamed
    after = table.rows()
    for old, new in zip(before, after, strict=True):
        for name, value in new.items():
            source = next((o for o, n in renamed.items() if n == name), name)
            assert value == old[source] or (actions == "MODIFY fl DOUBLE" and value == pytest.approx(old[source]))


@pytest.mark.parametrize("actions", UNPROVEN)
def test_what_may_change_values_is_class_3(table: _Table, actions: str) -> None:
    try:
        events = table.alter(actions)
    except pymysql.err.MySQLError as error:
        pytest.skip(f"this server refuses it: {error}")
    assert [type(event) for event in events] == [Altered]
    event = events[0]
    assert isinstance(event, Altered)
    assert event.number == 3
    assert not event.fill
    assert not event.renamed


@pytest.mark.parametrize("definition", FILLED)
def test_a_new_column_is_filled_with_what_the_server_fills_it(table: _Table, definition: str) -> None:
    try:
        events = table.alter(f"ADD COLUMN c {definition}")
    except pymysql.err.MySQLError as error:
        pytest.skip(f"this server refuses it: {error}")
    assert [type(event) for event in events] == [Altered]
    event = events[0]
    assert isinstance(event, Altered)
    assert event.number == 2, event.reasons
    column = next(column for column in event.after.columns if column.name == "c")
    expected = event.fill["c"]
    if column.type is FieldType.TIME2:
        value, expected = table.value("CAST(c AS CHAR)"), _clock(expected, column.meta)
    elif column.type is FieldType.BIT:
        value = table.value("c + 0")
    elif column.charset == "binary":
        value, expected = table.value("HEX(c)"), None if expected is None else expected.hex().upper()
    else:
        value = table.value("c")
    assert value == expected if column.type is not FieldType.FLOAT else value == pytest.approx(expected, rel=1e-6)


def _clock(microseconds: int, digits: int) -> str:
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    text += f".{fraction:06d}"[: digits + 1] if digits else ""
    return f"-{text}" if microseconds < 0 else text


@pytest.mark.parametrize(
    "actions",
    ["MODIFY ts TIMESTAMP", "CHANGE ts tt TIMESTAMP", "MODIFY ts TIMESTAMP, ADD z INT", "ADD c TIMESTAMP NOT NULL"],
)
@pytest.mark.parametrize("zero_dates", ["null", "error"])
def test_what_a_mariadb_session_decides_about_timestamps_is_class_3(
    plain_server: Callable[[str], Server], actions: str, zero_dates: Literal["null", "error"]
) -> None:
    """The session fills NULLs with the time of the change, and its log does not say that it does."""
    table = _Table(plain_server("mariadb-10.11"), "db_sessions", zero_dates=zero_dates)
    table.run("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL)")
    table.run("INSERT INTO t VALUES (1, NULL)")
    table.alter("COMMENT 'followed'")
    table.run("SET explicit_defaults_for_timestamp = OFF, sql_mode = ''")
    (event,) = table.alter(actions)
    assert isinstance(event, Altered)
    assert event.number == 3
    table.close()


def test_an_option_of_an_engine_may_say_what_a_column_holds(plain_server: Callable[[str], Server]) -> None:
    table = _Table(plain_server("mariadb-10.11"), "db_options")
    table.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    table.alter("COMMENT 'followed'")
    table.run("SET sql_mode = 'IGNORE_BAD_TABLE_OPTIONS'")
    for actions in ("MODIFY v INT flag=5 COMMENT 'x=y'", "ADD c INT DEFAULT 5 `field_format`='x'"):
        (event,) = table.alter(actions)
        assert isinstance(event, Altered)
        assert event.number == 3
    table.close()


def test_without_excluded_columns_their_changes_are_no_reason(table: _Table) -> None:
    (event,) = table.alter("MODIFY ti CHAR(5), ADD c INT DEFAULT 5, CHANGE vc w VARCHAR(20)")
    assert isinstance(event, Altered)
    assert event.number == 3
    seen = event.without(frozenset({"ti"}))
    assert seen.number == 2


def test_strictness_proves_that_there_was_no_null(table: _Table) -> None:
    table.run("SET sql_mode = 'STRICT_TRANS_TABLES'")
    with pytest.raises(pymysql.err.MySQLError):
        table.alter("MODIFY nu INT NOT NULL")
    table.run("UPDATE t SET nu = 1")
    (event,) = [event for event in table.alter("MODIFY nu INT NOT NULL") if isinstance(event, Altered)]
    assert event.number == 1


def test_a_column_that_was_auto_increment_keeps_its_numbers(table: _Table) -> None:
    table.run("UPDATE t SET id = 0 WHERE id = 1")
    table.run("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
    (event,) = table.alter("MODIFY id INT AUTO_INCREMENT")
    assert isinstance(event, Altered)
    assert event.number == 1
    table.run("SET sql_mode = ''")
    (event,) = table.alter("CHANGE id number BIGINT AUTO_INCREMENT")
    assert isinstance(event, Altered)
    assert event.number == 1
    assert table.value("MIN(number)") == 0


def test_where_the_log_alone_told_of_a_table_any_other_column_may_be_generated(table: _Table) -> None:
    table.run("INSERT INTO t (id) VALUES (9)")
    shown = [found for found in table.new() if isinstance(found, TableMap) and found.metadata.names is not None]
    if not shown:
        pytest.skip("this server does not name columns in its log")
    table.history.learn(from_table_map(shown[-1]))
    for actions, number in (("ADD INDEX (base), ADD more INT DEFAULT 1", 2), ("MODIFY base BIGINT", 3)):
        (event,) = table.alter(actions)
        assert isinstance(event, Altered)
        assert event.number == number, event.reasons
