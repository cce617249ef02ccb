"""A value read by a snapshot is the log's, for every type of each server."""

from typing import Any

import pyarrow as pa
import pytest

from databus.sources.mysql.rows import Policies, describe
from databus.sources.mysql.snapshot import MysqlSnapshotReader, TableTask
from databus.sources.snapshots import Placed, SnapshotOptions
from databus.testing.servers import Server
from tests.mysql.rows import test_types_on_servers as types
from tests.mysql.rows.walker import decode_all
from tests.mysql.snapshot.support import definition_of, log_position

pytestmark = [pytest.mark.old_servers, pytest.mark.both_servers]

Column = tuple[str, list[str]]

DISPLAYED: list[Column] = [  # what a server shows otherwise than it stores it
    ("DECIMAL(8,3) ZEROFILL", ["1.5", "0", "99999.999", "NULL"]),
    ("DECIMAL(45,3) ZEROFILL", ["1.5", "0", "NULL"]),
    ("TINYINT(4) ZEROFILL", ["7", "255"]),
    ("SMALLINT(5) ZEROFILL", ["7"]),
    ("BIGINT(20) ZEROFILL", ["7", "18446744073709551615"]),
    ("FLOAT(7,3)", ["1.1", "1234.5678"]),
    ("DOUBLE(9,2) ZEROFILL", ["1.125", "3"]),
    ("YEAR", ["0", "'2070'", "NULL"]),
    ("CHAR(5) CHARACTER SET binary", ["'a'", "'ab '"]),
    ("BIT(7)", ["b'0'", "b'1000001'", "NULL"]),
]
CHARSETS: list[Column] = [
    (f"VARCHAR(40) CHARACTER SET {charset}", [f"'{text}'", "''", "NULL", "'plain'"])
    for charset, text in [
        ("ucs2", "a\u20ac\u0416"),
        ("utf16", "a\u20ac\U0001f4a9"),
        ("utf16le", "a\u20ac\U0001f4a9"),
        ("utf32", "a\u20ac\U0001f4a9"),
        ("sjis", "\u65e5\u672c"),
        ("gbk", "\u4e2d\u6587"),
        ("big5", "\u4e2d\u6587"),
        ("euckr", "\ud55c\uae00"),
        ("cp1251", "\u0416\u0451"),
        ("hebrew", "\u05d0\u05d1"),
        ("ascii", "abc"),
    ]
]
CHARSETS += [
    ("ENUM('\u0416','b') CHARACTER SET utf16", ["'\u0416'", "'b'", "''", "NULL"]),
    ("SET('\u0416','b','c') CHARACTER SET ucs2", ["'\u0416,c'", "''", "NULL"]),
    ("TEXT CHARACTER SET utf32", ["'\U0001f4a9 '"]),
]
JSONS: list[Column] = [
    (
        "JSON",
        [
            """'{"b": 1, "a": [1, 2.50, null, true, "\u20ac\\\\n"], "c": {}}'""",
            "'[]'",
            "NULL",
            """JSON_OBJECT('d', 1.5, 'e', 1e100, 'n', 18446744073709551615)""",
            """'"text"'""",
        ],
    )
]
GROUPS = {
    **{name: getattr(types, name) for name in ("INTEGERS", "DECIMALS", "FLOATS", "TIMES", "TEXTS", "BYTES")},
    "DISPLAYED": DISPLAYED,
    "CHARSETS": CHARSETS,
    "JSONS": JSONS,
}


def snapshot(server: Server, database: str, policies: Policies) -> pa.Table:
    """The table t as it is read."""
    definition = definition_of(server, database, "t")
    table = describe(definition, zero_dates=policies.zero_dates, invalid_text=policies.invalid_text)
    reader = MysqlSnapshotReader(server.connect, SnapshotOptions(chunk_rows_max=4))
    parts = []
    try:
        reader.advance(0, log_position(server))
        reader.begin(TableTask(definition, table, policies=policies))
        while True:
            found = reader.take(30)
            assert isinstance(found, Placed)
            parts.append(pa.table(found.arrays, names=list(table.names)))
            for array in found.arrays:
                array.validate(full=True)
            if found.is_last:
                return pa.concat_tables(parts).combine_chunks()
    finally:
        reader.close()


def check(
    server: Server, database: str, columns: list[Column], policies: Policies | None = None, more: str = ""
) -> pa.Table:
    """Write a table, read it both ways, and compare all values exactly."""
    policies = policies or Policies()
    session = server.connect(
        charset="utf8mb4", database=database, init_command="SET time_zone = '+00:00', sql_mode = ''"
    )
    with session, session.cursor() as cursor:
        parts = [f"c{n} {kind}{'' if 'NULL' in kind else ' NULL'}" for n, (kind, _) in enumerate(columns)]
        cursor.execute(
            f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(parts)}{more}) DEFAULT CHARSET utf8mb4 ENGINE=InnoDB"
        )
        since = server.position()
        rows = max(len(values) for _, values in columns)
        names = ", ".join(["id", *(f"c{n}" for n in range(len(columns)))])
        lines = [
            f"({row}, " + ", ".join(values[row % len(values)] for _, values in columns) + ")" for row in range(rows)
        ]
        cursor.execute(f"INSERT INTO t ({names}) VALUES " + ", ".join(lines))
        session.commit()
    _, logged = decode_all(server, since, "t", zero_dates=policies.zero_dates, invalid_text=policies.invalid_text)
    read = snapshot(server, database, policies).sort_by("id")
    logged = logged.combine_chunks().sort_by("id")
    assert read.schema.names == logged.schema.names
    for name in read.schema.names:
        assert read[name].type == logged[name].type, name
        assert _plain(read[name]) == _plain(logged[name]), name
    return read


def _plain(column: pa.ChunkedArray) -> Any:
    """Values that compare exactly, those that Python's types cannot hold included."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_floating(column.type):
        return [None if value is None else value.hex() for value in column.to_pylist()]
    return column.to_pylist()


@pytest.mark.parametrize("group", GROUPS)
def test_a_snapshot_gives_what_the_log_gives(server: Server, database: str, group: str) -> None:
    check(server, database, GROUPS[group])


def test_types_that_only_mariadb_has(server: Server, database: str) -> None:
    if server.flavor != "mariadb":
        pytest.skip("MySQL has no such types")
    check(server, database, types.MARIADB)


def test_dates_that_are_none_become_null_where_that_is_asked_for(server: Server, database: str) -> None:
    zero = ["'0000-00-00'", "'2020-00-10'", "'2021-02-00'", "'2020-02-29'", "NULL"]
    columns = [("DATE", zero), ("DATETIME(3)", zero), ("TIMESTAMP NULL", ["'0000-00-00'", "'2020-02-29'"])]
    read = check(server, database, columns, Policies(zero_dates="null"))
    assert read["c0"].null_count == 4


def test_generated_and_invisible_columns_are_read(server: Server, database: str) -> None:
    invisible = ", hidden INT INVISIBLE DEFAULT 5" if server.kind != "mysql-5.7" else ""
    more = f", twice INT AS (c0 * 2) STORED, thrice INT AS (c0 * 3) VIRTUAL{invisible}"
    read = check(server, database, [("INT", ["1", "2", "NULL"])], more=more)
    assert read["thrice"].to_pylist() == [3, 6, None]
    assert not invisible or read["hidden"].to_pylist() == [5, 5, 5]


def test_text_that_is_none_follows_the_policy(server: Server, database: str) -> None:
    """MySQL lets bytes into a column by way of a conversion in place."""
    read = check(server, database, [("VARCHAR(9) CHARACTER SET ascii", ["'a'"])], Policies(invalid_text="replace"))
    assert read["c0"].to_pylist() == ["a"]
