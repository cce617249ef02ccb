"""What is refused, what becomes null, and how it is said: plans that do not fit, dates that are none, limits."""

import struct
from typing import Any

import numpy as np
import pytest

from databus.core import (
    ConfigError,
    CorruptData,
    LimitExceeded,
    SourceChanged,
    UnrepresentableValue,
    UnsupportedFeature,
)
from databus.schema import forms_of
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import Decoded, decode, describe, make_plan
from databus.testing.servers import Server
from tests.mysql.rows.guarded import guarded
from tests.mysql.rows.walker import decode_all, place


def column(name: str, kind: FieldType, meta: int = 0, words: str = "?", **more: Any) -> ColumnDefinition:
    return ColumnDefinition(name, kind, meta, words, **more)


ID = column("id", FieldType.LONG, words="int", is_nullable=False)
NAME = column("name", FieldType.VARCHAR, 40, "varchar(10)", charset="utf8mb4", is_nullable=False)
DAY = column("day", FieldType.DATE, words="date")
TABLE = TableDefinition("shop", "t", (ID, NAME, DAY), ("id",))


def run(definition: TableDefinition, images: bytes, kind: int = 1, **more: Any) -> Decoded:
    limits = {key: more.pop(key) for key in ("row_bytes_max",) if key in more}
    plan = make_plan(definition, [c.type for c in definition.columns], [c.meta for c in definition.columns], **more)
    ends = np.array([len(images)])
    (found,) = decode(plan, guarded(images), np.array([kind], np.int8), np.zeros(1, np.int64), ends, place, **limits)
    return found


def image(number: int, name: bytes, day: bytes = b"\x21\x00\x00") -> bytes:
    return b"\xf8" + struct.pack("<i", number) + bytes([len(name)]) + name + day


GOOD_DAY = (1 | 2 << 5 | 2026 << 9).to_bytes(3, "little")
NO_DAY = (10 << 5 | 2020 << 9).to_bytes(3, "little")


def test_a_date_that_is_none_is_refused_by_table_column_and_place() -> None:
    images = image(1, b"a", GOOD_DAY) + image(2, b"b", NO_DAY)
    with pytest.raises(UnrepresentableValue, match=r"'day' at binlog.000001 at 17 \(image 2 of .*zero_dates: null"):
        run(TABLE, images)


def test_a_date_that_is_none_becomes_null_if_asked() -> None:
    not_null = TableDefinition("shop", "t", (ID, NAME, column("day", FieldType.DATE, words="date", is_nullable=False)))
    found = run(
        not_null, image(1, b"a", GOOD_DAY) + image(2, b"b", NO_DAY) + image(3, b"c", b"\0\0\0"), zero_dates="null"
    )
    assert [None if d is None else d.isoformat() for d in found.arrays[2].to_pylist()] == ["2026-02-01", None, None]
    assert describe(not_null, zero_dates="null").column("day").nullable
    assert not describe(not_null).column("day").nullable


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (image(1, b"abc", GOOD_DAY)[:-1], "column 'day'.*runs past the end"),
        (image(1, b"abc", GOOD_DAY)[:4], "column '(id|name)'.*runs past the end"),
        (image(1, b"a" * 41, GOOD_DAY), "column 'name'.*longer than the column"),
        (b"\xfa" + struct.pack("<i", 1) + GOOD_DAY, "column 'name'.*NULL, though it is NOT NULL"),
        (b"\xfc" + struct.pack("<i", 1) + b"\x05ab", "column 'name'.*runs past the end"),
    ],
)
def test_images_that_are_none_of_this_table_name_column_and_place(images: bytes, said: str) -> None:
    with pytest.raises(CorruptData, match=rf"shop\.t: {said}.*") as caught:
        run(TABLE, images)
    assert "binlog.000001 at" in str(caught.value)


def test_an_update_without_its_after_image_is_refused() -> None:
    with pytest.raises(CorruptData, match="update without its after image"):
        run(TABLE, image(1, b"a", GOOD_DAY), kind=2)


def test_a_row_above_the_limit_is_refused_by_the_limits_name() -> None:
    run(TABLE, image(1, b"a", GOOD_DAY), row_bytes_max=10)
    with pytest.raises(LimitExceeded, match="row_bytes_max = 9 bytes"):
        run(TABLE, image(1, b"a", GOOD_DAY), row_bytes_max=9)


def test_an_enum_number_without_a_member_is_refused() -> None:
    state = column("state", FieldType.ENUM, 1, "enum('a','b')", charset="latin1", members=("a", "b"))
    assert run(TableDefinition("shop", "t", (state,)), b"\xfe\x02\xfe\x00\xff").arrays[0].to_pylist() == ["b", "", None]
    with pytest.raises(CorruptData, match=r"'state' at image 2 of .* holds 3, which is none of its 2 members"):
        run(TableDefinition("shop", "t", (state,)), b"\xfe\x02\xfe\x03")
    flags = column("flags", FieldType.SET, 1, "set('a','b')", charset="latin1", members=("a", "b"))
    with pytest.raises(CorruptData, match="holds 4, which is none of its 2 members"):
        run(TableDefinition("shop", "t", (flags,)), b"\xfe\x04")


def test_bytes_that_are_no_text_are_refused_or_replaced() -> None:
    with pytest.raises(UnrepresentableValue, match=r"column 'name' .* utf8mb4.*invalid_text: replace"):
        run(TABLE, image(1, b"a\xffb", GOOD_DAY))
    found = run(TABLE, image(1, b"a\xffb", GOOD_DAY), invalid_text="replace")
    assert found.arrays[1].to_pylist() == ["a\N{REPLACEMENT CHARACTER}b"]


STATE = column("name", FieldType.ENUM, 1, "enum('a','?')", charset="utf8mb4", members=("a", "\udcff"))


@pytest.mark.parametrize(
    ("name", "images"),
    [
        (NAME, image(1, b"a\xffb", GOOD_DAY)),
        (STATE, b"\xf8\x01\0\0\0\x02" + GOOD_DAY),
    ],
)
def test_bytes_that_are_no_text_are_refused_in_a_key_whatever_is_asked(name: ColumnDefinition, images: bytes) -> None:
    """Keys that differ would become one, and a mirror lose a row."""
    keyed = TableDefinition("shop", "t", (ID, name, DAY), ("name",))
    with pytest.raises(UnrepresentableValue, match=r"column 'name' .*never in the table's key"):
        run(keyed, images, invalid_text="replace")


def plan(types: list[int], metas: list[int], nullable: list[bool] | None = None) -> object:
    return make_plan(TABLE, types, metas, nullable)


@pytest.mark.parametrize(
    ("types", "metas", "nullable", "said"),
    [
        ([3, 15], [0, 40], None, "2 columns, but the definition at this position has 3 .*day"),
        ([3, 15, 10, 3], [0, 40, 0, 0], None, "4 columns"),
        ([8, 15, 10], [0, 40, 0], None, "'id' as type LONGLONG"),
        ([3, 15, 10], [0, 44, 0], None, "'name' as type VARCHAR with meta 44.*varchar"),
        ([3, 252, 10], [0, 2, 0], None, "'name' as type BLOB"),
        ([3, 15, 99], [0, 40, 0], None, "'day' as type 99"),
        ([3, 15, 10], [0, 40, 0], [True, False, True], "'id' as nullable"),
    ],
)
def test_a_table_map_of_another_table_is_refused_by_column(
    types: list[int], metas: list[int], nullable: list[bool] | None, said: str
) -> None:
    with pytest.raises(SourceChanged, match=said):
        plan(types, metas, nullable)


def test_two_words_for_one_type_are_the_same() -> None:
    plan([3, 253, 14], [0, 40, 0], [False, False, True])


def test_a_type_that_the_bus_does_not_have_is_refused_unless_excluded() -> None:
    table = TableDefinition("shop", "t", (ID, column("v", FieldType.DECIMAL, 0, "old decimal")))
    with pytest.raises(UnsupportedFeature, match=r"shop\.t: column 'v' has the type old decimal"):
        describe(table)
    assert describe(table, excluded=frozenset({"v"})).names == ("id",)


def test_years_of_two_digits_are_refused_since_a_query_does_not_tell_them_apart() -> None:
    table = TableDefinition("shop", "t", (ID, column("v", FieldType.YEAR, 0, "year(2)")))
    with pytest.raises(UnsupportedFeature, match=r"shop\.t: column 'v' is a YEAR\(2\)"):
        describe(table)
    assert describe(table, excluded=frozenset({"v"})).names == ("id",)


def test_excluded_columns_are_passed_over() -> None:
    table = TableDefinition("shop", "t", (ID, column("v", FieldType.VECTOR, 4, "vector(3)"), NAME))
    images = b"\xf8" + struct.pack("<i", 1) + struct.pack("<I", 5) + b"12345" + b"\x01a"
    found = run(table, images, excluded=frozenset({"v"}))
    assert [array.to_pylist() for array in found.arrays] == [[1], ["a"]]


def test_a_column_of_the_key_cannot_be_excluded() -> None:
    with pytest.raises(ConfigError, match="'id' is excluded, but is part of the table's key"):
        describe(TABLE, excluded=frozenset({"id"}))


def test_arrays_have_the_types_that_the_schema_says() -> None:
    found = run(TABLE, image(1, b"a", GOOD_DAY))
    assert [array.type for array in found.arrays] == [forms_of(c.type).arrow for c in describe(TABLE).columns]


def test_zero_dates_of_real_servers(server: Server, database: str) -> None:
    words = ["DATE", "DATETIME", "DATETIME(3)", "TIMESTAMP NULL", "TIMESTAMP(6) NULL"]
    with server.connect(
        database=database, autocommit=True, init_command="SET sql_mode = 'ALLOW_INVALID_DATES'"
    ) as session:
        cursor = session.cursor()
        cursor.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, " + ", ".join(f"c{i} {w}" for i, w in enumerate(words)) + ")"
        )
        since = server.position()
        cursor.execute("INSERT INTO t VALUES (1, 0, 0, 0, 0, 0)")
        cursor.execute("INSERT INTO t VALUES (2, '2020-00-10', '2020-02-31 01:02:03', '2020-00-00', NULL, NULL)")
    with pytest.raises(UnrepresentableValue, match=rf"{database}\.t: column 'c0' at binlog.000001 at \d+"):
        decode_all(server, since, "t")
    _, found = decode_all(server, since, "t", zero_dates="null")
    assert found.drop_columns(["id"]).to_pylist() == [{f"c{i}": None for i in range(5)}] * 2


def test_times_of_old_forms(new_server: Any) -> None:
    """MariaDB without mysql56_temporal_format: other bytes, the same values."""
    server = new_server("mariadb-10.11", lines=["mysql56-temporal-format=0"])
    values = {
        "TIME": ["-838:59:59", "12:34:56.789123", "-00:00:01.5", "838:59:59"],
        "DATETIME": ["0001-01-01 00:00:00", "2026-11-21 20:33:40.123456", "9999-12-31 23:59:59"],
        "TIMESTAMP": ["1970-01-01 00:00:01", "2026-11-21 20:33:40.123456", "2038-01-19 03:14:07"],
    }
    with server.connect(
        database="test", autocommit=True, init_command="SET time_zone = '+00:00', sql_mode = ''"
    ) as session:
        cursor = session.cursor()
        for kind, texts in values.items():
            cursor.execute(f"CREATE TABLE t{kind} (id INT PRIMARY KEY, " + ", ".join(
                f"c{n} {kind}({n}) NULL" for n in range(7)) + ")")  # fmt: skip
            since = server.position()
            for number, text in enumerate(texts):
                cursor.execute(f"INSERT INTO t{kind} VALUES (%s{', %s' * 7})", (number, *[text] * 7))
            cursor.execute(
                "SELECT " + ", ".join(f"CAST(c{n} AS CHAR)" for n in range(7)) + f" FROM t{kind} ORDER BY id"
            )
            want = cursor.fetchall()
            _, found = decode_all(server, since, f"t{kind}")
            for row, texts_ in zip(found.drop_columns(["id"]).to_pylist(), want, strict=True):
                for digits, (value, text) in enumerate(zip(row.values(), texts_, strict=True)):
                    assert said(value, digits) == text
            cursor.execute(f"INSERT INTO t{kind} VALUES (%s{', %s' * 7})", (9, *["0"] * 7))
            cursor.execute(f"INSERT INTO t{kind} (id) VALUES (10)")
            columns = [f"c{n}" for n in range(7)]
            cursor.execute(f"SELECT {', '.join(f'CAST({c} AS CHAR)' for c in columns)} FROM t{kind} ORDER BY id")
            _, found = decode_all(server, since, f"t{kind}", texts=frozenset(columns))
            assert [tuple(row.values()) for row in found.select(columns).to_pylist()] == list(cursor.fetchall())


def said(value: Any, digits: int) -> str:
    if isinstance(value, int):
        seconds, rest = divmod(abs(value), 1_000_000)
        whole = f"{'-' if value < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return whole + (f".{rest:06d}"[: digits + 1] if digits else "")
    return f"{value:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")[: 20 + digits if digits else 19]
