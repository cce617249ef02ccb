"""Results as bytes: any cut of the stream gives the same rows; damaged bytes an error or rows, never a crash."""

import struct
from collections.abc import Callable
from decimal import Context
from typing import Any

import numpy as np
import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.core import DatabusError
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import Policies, describe
from databus.sources.mysql.snapshot._key import key_columns
from databus.sources.mysql.snapshot._result import RowReader
from databus.sources.mysql.snapshot._shape import Columns, Shape

DEFINITION = TableDefinition(
    "shop",
    "t",
    (
        ColumnDefinition("id", FieldType.LONG, 0, "int", is_nullable=False),
        ColumnDefinition("price", FieldType.NEWDECIMAL, 38 << 8 | 2, "decimal(38,2)"),
        ColumnDefinition("name", FieldType.VARCHAR, 400, "varchar(400)", charset="binary"),
        ColumnDefinition("at", FieldType.DATETIME2, 6, "datetime(6)"),
        ColumnDefinition("took", FieldType.TIME2, 6, "time(6)"),
        ColumnDefinition("flag", FieldType.BIT, 1, "bit(1)"),
        ColumnDefinition("body", FieldType.LONG_BLOB, 4, "longblob", charset="binary"),
    ),
    ("id",),
)
SHAPE = Shape(DEFINITION, describe(DEFINITION), key_columns(DEFINITION), Policies(zero_dates="null"))
EPOCH_DAYS_2000 = 10_957

rows_of_table = st.lists(
    st.tuples(
        st.integers(-(2**31), 2**31 - 1),
        st.none() | st.integers(-(10**38) + 1, 10**38 - 1),
        st.none() | st.binary(max_size=300),
        st.none() | st.integers(0, 86_400_000_000 - 1),
        st.none() | st.integers(-838 * 3_600_000_000, 838 * 3_600_000_000),
        st.none() | st.booleans(),
        st.none() | st.binary(max_size=70_000),
    ),
    max_size=20,
)


def lenenc(data: bytes) -> bytes:
    size = len(data)
    if size < 251:
        return bytes([size]) + data
    return (b"\xfc" + size.to_bytes(2, "little") if size < 65536 else b"\xfd" + size.to_bytes(3, "little")) + data


def cell(number: int, value: Any) -> bytes:
    """A value in the binary protocol, slowly and obviously."""
    if number == 0:
        return struct.pack("<i", value)
    if number == 1:
        sign, digits = ("-" if value < 0 else ""), f"{abs(value):03}"
        return lenenc(f"{sign}{digits[:-2]}.{digits[-2:]}".encode())
    if number == 3:
        seconds, us = divmod(value, 1_000_000)
        clock = struct.pack("<BBB", seconds // 3600, seconds // 60 % 60, seconds % 60)
        body = struct.pack("<HBB", 2000, 1, 1) + (clock if value else b"") + (struct.pack("<I", us) if us else b"")
        return bytes([len(body)]) + body
    if number == 4:
        seconds, us = divmod(abs(value), 1_000_000)
        body = struct.pack(
            "<BIBBB", value < 0, seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60, seconds % 60
        )
        return (
            bytes([0])
            if not value
            else bytes([len(body) + (4 if us else 0)]) + body + (us.to_bytes(4, "little") if us else b"")
        )
    return lenenc(bytes([value])) if number == 5 else lenenc(value)


def stream(rows: list[tuple[Any, ...]]) -> bytes:
    packets = []
    for row in rows:
        nulls = sum(1 << (2 + number) for number, value in enumerate(row) if value is None)
        cells = b"".join(cell(number, value) for number, value in enumerate(row) if value is not None)
        packets.append(b"\x00" + nulls.to_bytes((len(row) + 9) // 8, "little") + cells)
    packets.append(b"\xfe\x00\x00\x02\x00")
    return b"".join(
        len(body).to_bytes(3, "little") + bytes([(7 + number) % 256]) + body for number, body in enumerate(packets)
    )


def source(data: bytes, cuts: Callable[[], int]) -> Callable[[memoryview], int]:
    at = 0

    def read_into(view: memoryview) -> int:
        nonlocal at
        count = min(max(cuts(), 1), len(view), len(data) - at)
        view[:count] = data[at : at + count]
        at += count
        return count

    return read_into


def read(data: bytes, cuts: Callable[[], int], rows_max: int = 100) -> tuple[Columns, Any]:
    columns = Columns(SHAPE, rows_max)
    reader = RowReader(source(data, cuts), 7, 1 << 20, "a test")
    last = reader.take(columns, 1 << 30, SHAPE.key)
    return columns, last


@given(rows_of_table, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_the_stream_gives_the_rows(rows: list[tuple[Any, ...]], random: Any) -> None:
    longest = random.choice([1 << 20, 5_000, 300])
    columns, last = read(stream(rows), lambda: random.randint(1, longest))
    arrays = columns.arrays("a test")
    assert columns.rows == len(rows)
    assert last == (None if not rows else (rows[-1][0],))
    found = [
        arrays[0].to_pylist(),
        [None if value is None else int(value.scaleb(2, CONTEXT)) for value in arrays[1].to_pylist()],
        arrays[2].to_pylist(),
        [
            None if value is None else value - EPOCH_DAYS_2000 * 86_400_000_000
            for value in arrays[3].cast("int64").to_pylist()
        ],
        *(array.to_pylist() for array in arrays[4:]),
    ]
    assert [tuple(column[number] for column in found) for number in range(len(rows))] == rows


CONTEXT = Context(prec=60)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_are_an_error_or_rows_but_never_a_crash(seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = stream([(n, n * 10**20, b"x" * n, n, -n, n % 2 == 0, b"y" * 300) for n in range(20)])
    errors = 0
    for _ in range(1_500):
        data = bytearray(whole)
        for at in random.integers(0, len(data), random.integers(1, 4)):
            data[at] = random.integers(0, 256)
        del data[int(random.integers(1, len(data) + 1)) :]
        try:
            columns, _ = read(bytes(data), lambda: 1 << 20)
            for array in columns.arrays("a test"):
                len(array.to_pylist())
        except (DatabusError, pymysql.MySQLError, UnicodeDecodeError):
            errors += 1
    assert errors > 100
