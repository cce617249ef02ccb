"""Columns of many rows: they are decoded a column at a time, and a wrong value is still said to be of the first row."""

import datetime as dt
import decimal
import re
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import CorruptData, UnrepresentableValue
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import Decoded, decode, make_plan
from databus.sources.mysql.rows import _program as ops
from tests.mysql.rows.guarded import guarded
from tests.mysql.rows.images import decimals
from tests.mysql.rows.walker import place

pytestmark = pytest.mark.usefixtures("walls")

ID = ColumnDefinition("id", FieldType.LONG, 0, "int", is_nullable=False)
NAME = ColumnDefinition("name", FieldType.VARCHAR, 400, "varchar(100)", charset="utf8mb4")
NAME_OF_25 = ColumnDefinition("name", FieldType.VARCHAR, 100, "varchar(25)", charset="utf8mb4")
CODE = ColumnDefinition("code", FieldType.VARCHAR, 100, "varchar(100)", charset="ascii")
MOMENT = ColumnDefinition("moment", FieldType.DATETIME2, 0, "datetime")
WHOLE = ["a", "plain text", "é", "東京", "ก", "힣", "😀", "\x7f\x00"]
BROKEN = ["c3", "a9", "e69d", "c080", "e09fbf", "eda080", "f08fbfbf", "f4908080", "f5808080", "ff", "80"]
PIECES = st.sampled_from([*map(str.encode, WHOLE), *map(bytes.fromhex, BROKEN)])


def run(columns: list[ColumnDefinition], events: list[list[bytes]], **more: Any) -> Decoded:
    definition = TableDefinition("shop", "t", tuple(columns))
    plan = make_plan(definition, [c.type for c in columns], [c.meta for c in columns], **more)
    sizes = [sum(map(len, images)) for images in events]
    ends = np.cumsum(sizes)
    data = guarded(b"".join(image for images in events for image in images))
    (found,) = decode(plan, data, np.full(len(events), 1, np.int8), ends - sizes, ends, place)
    return found


def image(number: int, text: bytes | None) -> bytes:
    if text is None:
        return b"\xfe" + struct.pack("<i", number)
    return b"\xfc" + struct.pack("<i", number) + len(text).to_bytes(2 if len(text) > 255 else 1, "little") + text


def is_utf8(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


TEXTS = st.one_of(
    st.none(),
    st.lists(PIECES, max_size=4).map(b"".join).filter(is_utf8),
    st.text(max_size=20).map(str.encode).filter(lambda text: len(text) < 100),
)


@given(st.lists(TEXTS, min_size=1, max_size=3), st.lists(PIECES, max_size=3).map(b"".join), st.data())
def test_the_first_text_that_is_none_is_named_wherever_it_stands(
    pattern: list[bytes | None], odd: bytes, data: st.DataObject
) -> None:
    """Characters cut in two by the end of a value are none, although the next value has the rest."""
    rows = data.draw(st.integers(1, 3 * ops.ROWS_AT_ONCE))
    texts = [pattern[i % len(pattern)] for i in range(rows)]
    texts[data.draw(st.integers(0, rows - 1))] = odd
    cut = data.draw(st.integers(0, rows))
    events = [[image(i, text) for i, text in enumerate(texts)][part] for part in (slice(cut), slice(cut, None))]
    if is_utf8(odd):
        found = run([ID, NAME_OF_25], events)
        assert found.arrays[1].to_pylist() == [None if text is None else text.decode() for text in texts]
        found.arrays[1].validate(full=True)
        return
    first = next(i for i, text in enumerate(texts) if not is_utf8(text))
    with pytest.raises(UnrepresentableValue, match="column 'name'") as caught:
        run([ID, NAME_OF_25], events)
    assert f"(image {(first if first < cut else first - cut) + 1} of the rows event at" in str(caught.value)
    at = sum(len(image(i, text)) for i, text in enumerate(texts[:first]))
    assert f"at binlog.000001 at {at + 5} " in str(caught.value)


@pytest.mark.parametrize("text", ["é", "東", "ก", "😀"])
def test_a_character_may_not_be_spread_over_two_values(text: str) -> None:
    raw = text.encode()
    for at in range(1, len(raw)):
        images = [image(0, "ü".encode()), image(1, raw[:at]), image(2, raw[at:])]
        with pytest.raises(UnrepresentableValue, match="image 2 of"):
            run([ID, NAME_OF_25], [images])


@pytest.mark.parametrize("lead", range(0xC0, 0x100))
def test_after_each_lead_byte_comes_what_may_and_nothing_else(lead: int) -> None:
    """The edges of Unicode's table 3-7."""
    for second in (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
        for more in range(3):
            text = bytes([lead, second]) + b"\x80" * more
            if is_utf8(text):
                assert run([ID, NAME_OF_25], [[image(0, text)]]).arrays[1].to_pylist() == [text.decode()]
            else:
                with pytest.raises(UnrepresentableValue, match="image 1 of"):
                    run([ID, NAME_OF_25], [[image(0, text)]])


@given(st.binary(max_size=90), st.integers(0, 2 * ops.ROWS_AT_ONCE))
def test_any_bytes_are_text_for_us_exactly_if_they_are_for_python(text: bytes, before: int) -> None:
    images = [image(i, "ü東".encode()) for i in range(before)] + [image(before, text)]
    if is_utf8(text):
        assert run([ID, NAME_OF_25], [images]).arrays[1][before].as_py() == text.decode()
    else:
        with pytest.raises(UnrepresentableValue, match=f"image {before + 1} of"):
            run([ID, NAME_OF_25], [images])


@pytest.mark.parametrize(
    ("name_row", "code_row", "named"), [(5, 9, "'name'"), (9, 5, "'code'"), (5, 5, "'name'"), (5, 300, "'name'")]
)
def test_the_first_row_is_named_whichever_column_is_wrong(name_row: int, code_row: int, named: str) -> None:
    images = []
    for row in range(400):
        name = b"\xff" if row == name_row else b"ok"
        code = b"\xe9" if row == code_row else b"ok"
        images.append(
            b"\xf8" + struct.pack("<i", row) + struct.pack("<H", len(name)) + name + bytes([len(code)]) + code
        )
    with pytest.raises(UnrepresentableValue, match=f"column {named}.*image {min(name_row, code_row) + 1} of"):
        run([ID, NAME, CODE], [images])


def test_every_kind_of_year_has_the_days_of_the_calendar_and_no_others() -> None:
    years = [
        0,
        1,
        4,
        99,
        100,
        101,
        399,
        400,
        1582,
        1896,
        1900,
        1904,
        1969,
        1970,
        1999,
        2000,
        2023,
        2024,
        2100,
        9996,
        9999,
    ]
    images, expected = [], []
    for year in years:
        for month in range(13):
            for day in range(32):
                packed = (year * 13 + month) << 22 | day << 17 | 23 << 12 | 59 << 6 | 58
                images.append(b"\xfe" + (packed + 0x80_0000_0000).to_bytes(5, "big"))
                expected.append(days_of(year, month, day))
    values = run([MOMENT], [images], zero_dates="null").arrays[0].cast("int64").to_pylist()
    clock_us = (86_400 - 2) * 1_000_000
    assert values == [None if days is None else days * 86_400_000_000 + clock_us for days in expected]


def test_every_year_has_the_right_length() -> None:
    images = [
        b"\xfe" + ((year * 13 + month) << 22 | 1 << 17 | 0x80_0000_0000).to_bytes(5, "big")
        for year in range(10_000)
        for month in (1, 3)
    ]
    values = run([MOMENT], [images]).arrays[0].cast("int64").to_pylist()
    expected = [days_of(year, month, 1) for year in range(10_000) for month in (1, 3)]
    assert [value // 86_400_000_000 for value in values] == expected


def days_of(year: int, month: int, day: int) -> int | None:
    """By Python's calendar, which has no year 0: that one is 400 years before another."""
    try:
        return dt.date(year or 400, month, day).toordinal() - dt.date(1970, 1, 1).toordinal() - (0 if year else 146_097)
    except ValueError:
        return None


@pytest.mark.parametrize("precision", range(1, 19))
def test_short_decimals_at_their_limits(precision: int) -> None:
    for scale in range(precision + 1):
        kind = decimals(precision, scale)
        column = ColumnDefinition("d", **{"column_type": "decimal", **kind.define})
        limit = 10**precision - 1
        numbers = [0, 1, -1, limit, -limit, limit // 7, -(limit // 7), 10**scale % (limit + 1)]
        values = [decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=100)) for number in numbers]
        images = [b"\xfe" + kind.encode(value) for value in values]
        assert run([column], [images * 40]).arrays[0].to_pylist() == values * 40
        for digit in range(len(images[0]) - 1):
            wrong = bytearray(images[3])
            wrong[1 + digit] |= 0x7F if digit == 0 else 0xFF
            if wrong != images[3]:
                check_refused_or_in_range(column, bytes(wrong), limit, scale)


def check_refused_or_in_range(column: ColumnDefinition, image: bytes, limit: int, scale: int) -> None:
    try:
        (value,) = run([column], [[image]]).arrays[0].to_pylist()
    except CorruptData as error:
        assert re.search("column 'd'.*no DECIMAL", str(error))  # noqa: PT017 - or the digits are still some
    else:
        assert abs(int(value.scaleb(scale))) <= limit
