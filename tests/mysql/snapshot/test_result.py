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

from databus.core import DatabusError, UnrepresentableValue
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import Policies, describe
from databus.sources.mysql.snapshot._keys import key_columns
from databus.sources.mysql.snapshot._result_shape import Columns, ResultShape
from databus.sources.mysql.snapshot._results import RowReader
from tests.mysql.rows.images import tables

pytestmark = pytest.mark.usefixtures("walls")

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
SHAPE = ResultShape(DEFINITION, describe(DEFINITION), key_columns(DEFINITION), Policies(zero_dates="null"))
EPOCH_DAYS_2000 = 10_957
PACKET_MAX = 0xFFFFFF

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
    for head, width in ((b"\xfc", 2), (b"\xfd", 3), (b"\xfe", 8)):
        if size < 1 << 8 * width:
            return head + size.to_bytes(width, "little") + data
    raise ValueError(size)


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
    bodies = []
    for row in rows:
        nulls = sum(1 << (2 + number) for number, value in enumerate(row) if value is None)
        cells = b"".join(cell(number, value) for number, value in enumerate(row) if value is not None)
        bodies.append(b"\x00" + nulls.to_bytes((len(row) + 9) // 8, "little") + cells)
    return packets(bodies)


def source(data: bytes, cuts: Callable[[], int]) -> Callable[[memoryview], int]:
    at = 0

    def read_into(view: memoryview) -> int:
        nonlocal at
        count = min(max(cuts(), 1), len(view), len(data) - at)
        view[:count] = data[at : at + count]
        at += count
        return count

    return read_into


def read(
    data: bytes,
    cuts: Callable[[], int],
    rows_max: int = 100,
    *,
    shape: ResultShape = SHAPE,
    row_bytes_max: int = 1 << 20,
) -> tuple[Columns, Any]:
    columns = Columns(shape, rows_max)
    reader = RowReader(source(data, cuts), 7, row_bytes_max, "a test")
    last = reader.take(columns, 1 << 30, shape.key)
    return columns, last


def packets(bodies: list[bytes]) -> bytes:
    """What a server sends for these payloads and the end of the result."""
    parts = []
    for body in [*bodies, b"\xfe\x00\x00\x02\x00"]:
        parts += [body[at : at + PACKET_MAX] for at in range(0, len(body) + 1, PACKET_MAX)]
    return b"".join(len(part).to_bytes(3, "little") + bytes([(7 + i) % 256]) + part for i, part in enumerate(parts))


@given(rows_of_table, st.randoms(use_true_random=False))
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
    longest = (1 << 20, 5_000, 700, 90)[seed]
    whole = stream([(n, n * 10**20, b"x" * n, n, -n, n % 2 == 0, b"y" * 300) for n in range(20)])
    errors, count = 0, 12 * settings.default.max_examples
    for _ in range(count):
        data = bytearray(whole)
        for at in random.integers(0, len(data), random.integers(1, 4)):
            data[at] = random.integers(0, 256)
        del data[int(random.integers(1, len(data) + 1)) :]
        try:
            columns, _ = read(bytes(data), lambda: int(random.integers(longest)))
            for array in columns.arrays("a test"):
                len(array.to_pylist())
        except (DatabusError, pymysql.MySQLError, UnicodeDecodeError):
            errors += 1
    assert errors > count // 6


@given(tables(), st.lists(st.binary(max_size=80), max_size=8), st.data())
@settings(max_examples=4 * settings.default.max_examples)
def test_any_packets_are_an_error_or_rows_of_any_table(
    table: tuple[TableDefinition, Any, Any], values: list[bytes], data: st.DataObject
) -> None:
    """Where a value is none of its column, or runs on into the next, each kernel keeps to what it was promised."""
    definition = table[0]
    shape = ResultShape(definition, describe(definition, zero_dates="null"), (), Policies("null", "replace"))
    nulls = bytes((len(definition.columns) + 9) // 8)
    bodies = [
        b"\0" + (data.draw(st.binary(min_size=len(nulls), max_size=len(nulls))) if data.draw(st.booleans()) else nulls)
        + b"".join(data.draw(st.sampled_from([lenenc(value), value])) for value in values)
        for _ in range(data.draw(st.integers(1, 4)))
    ]  # fmt: skip
    try:
        columns, _ = read(packets(bodies), lambda: 1 << 20, shape=shape)
        for array in columns.arrays("a test"):
            array.validate(full=True)
    except DatabusError:
        pass


@pytest.mark.parametrize("more", [-100, 0, 1, 70_000])
def test_a_row_of_several_packets_is_read_and_one_that_is_damaged_refused(more: int) -> None:
    body = b"z" * (PACKET_MAX + more)
    rows = [(1, None, b"a", None, None, None, b"b"), (2, 5, None, None, None, True, body), (3, *[None] * 6)]
    columns, last = read(stream(rows), lambda: 1 << 20, row_bytes_max=1 << 25)
    assert last == (3,)
    assert columns.arrays("a test")[6].to_pylist() == [b"b", body, None]
    broken = bytearray(stream(rows))
    broken[broken.index(b"\1\1" + lenenc(body)[:4]) + 3] ^= 1  # in the value's length
    with pytest.raises(DatabusError):
        read(bytes(broken), lambda: 1 << 20, row_bytes_max=1 << 25)


@pytest.mark.parametrize("key", [(), ("name",)])
def test_bytes_that_are_no_text_are_replaced_but_not_in_a_key(key: tuple[str, ...]) -> None:
    name = ColumnDefinition("name", FieldType.VARCHAR, 40, "varchar(10)", charset="utf8mb4", is_nullable=False)
    definition = TableDefinition("shop", "t", (name,), key)
    shape = ResultShape(definition, describe(definition), (), Policies(invalid_text="replace"))
    columns, _ = read(packets([b"\0\0" + lenenc(b"a\xffb")]), lambda: 1 << 20, shape=shape)
    if not key:
        assert columns.arrays("a test")[0].to_pylist() == ["a\N{REPLACEMENT CHARACTER}b"]
        return
    with pytest.raises(UnrepresentableValue, match=r"column 'name' .*never in the table's key"):
        columns.arrays("a test")
