"""Row images of any table: the kernels read back what was written, and never more than is there."""

import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.core import CorruptData, LimitExceeded, UnrepresentableValue
from databus.sources.mysql._definition import FieldType, TableDefinition
from databus.sources.mysql.rows import Decoded, DecodePlan, decode, make_plan
from tests.mysql.rows.guarded import guarded
from tests.mysql.rows.images import KINDS, Kind, column, image, integer, tables
from tests.mysql.rows.walker import place

pytestmark = pytest.mark.usefixtures("walls")

Table = tuple[TableDefinition, list[Kind], list[list[Any]]]


def plan_of(definition: TableDefinition, **more: Any) -> DecodePlan:
    columns = definition.columns
    return make_plan(definition, [c.type for c in columns], [c.meta for c in columns], **more)


def run(plan: DecodePlan, events: list[tuple[int, bytes]], **more: Any) -> list[Decoded]:
    """Decode events (kind, images) that stand one after the other with a byte between, up to the end of memory."""
    starts, ends, data = [], [], b""
    for _, images in events:
        data += b"\xaa"
        starts.append(len(data))
        data += images
        ends.append(len(data))
    kinds = np.array([kind for kind, _ in events], dtype=np.int8)
    return decode(
        plan, guarded(data), kinds, np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64), place, **more
    )


def expected(kinds: list[Kind], rows: list[list[Any]], number: int) -> list[Any]:
    return [None if row[number] is None else kinds[number].expect(row[number]) for row in rows]


@given(tables(), st.data())
def test_any_rows_of_any_table_are_read_back_equal(table: Table, data: st.DataObject) -> None:
    definition, kinds, rows = table
    excluded = frozenset(data.draw(st.sets(st.sampled_from([c.name for c in definition.columns]))))
    policy = data.draw(st.sampled_from(["error", "replace"]))
    plan = plan_of(definition, excluded=excluded, invalid_text=policy)
    events, left = [], list(rows)
    while left:
        count = data.draw(st.integers(0, len(left)))
        kind = data.draw(st.sampled_from([1, 2, 3])) if count % 2 == 0 else data.draw(st.sampled_from([1, 3]))
        events.append((kind, b"".join(image(kinds, row) for row in left[:count])))
        left = left[count:]
    (found,) = run(plan, events)
    assert found.images == len(rows)
    assert found.images_per_event.sum() == len(rows)
    names = [c.name for c in definition.columns if c.name not in excluded]
    assert [c.name for c in plan.table.columns] == names
    for array, name in zip(found.arrays, names, strict=True):
        array.validate(full=True)
        assert array.to_pylist() == expected(kinds, rows, int(name[1:]))


def test_change_types_are_those_of_the_events() -> None:
    definition, kinds, rows = small_table()
    images = [image(kinds, row) for row in rows[:4]]
    events = [(1, images[0]), (2, images[1] + images[2]), (3, images[3]), (1, b"")]
    (found,) = run(plan_of(definition), events)
    assert found.change_types.tolist() == [1, 2, 3, 4]
    assert found.images_per_event.tolist() == [1, 2, 1, 0]


@given(tables(), st.integers(1, 400))
def test_a_run_is_split_where_text_would_be_too_much(table: Table, text_bytes_max: int) -> None:
    """However it is split, the parts are the whole, in order; a single event that is too much is refused."""
    definition, kinds, rows = table
    plan = plan_of(definition)
    events = [(1, image(kinds, row)) for row in rows]
    try:
        parts = run(plan, events, text_bytes_max=text_bytes_max)
    except LimitExceeded as error:
        assert "binlog_row_event_max_size" in str(error)  # noqa: PT017 - or there is no error
        return
    assert [part.first_event for part in parts] == np.cumsum([0, *(p.images for p in parts)])[:-1].tolist()
    for number in range(len(kinds)):
        values = [value for part in parts for value in part.arrays[number].to_pylist()]
        assert values == expected(kinds, rows, number)


def small_table() -> Table:
    kinds = [integer(FieldType.LONG, 32, is_unsigned=False), KINDS[-1]]
    columns = tuple(column(f"c{i}", kind, is_nullable=i == 1) for i, kind in enumerate(kinds))
    return TableDefinition("shop", "t", columns), kinds, [[1, b"a"], [2, None], [3, b""], [-4, b"dd"]]


@given(tables(), st.integers(0, 2**32))
@settings(max_examples=4 * settings.default.max_examples)
def test_damaged_images_give_an_error_with_the_place_or_values(table: Table, seed: int) -> None:
    """Bits turned, bytes cut, put in or doubled: no crash, no read beyond the end, no other error."""
    definition, kinds, rows = table
    dice = random.Random(seed)
    plan = plan_of(
        definition, zero_dates=dice.choice(["error", "null"]), invalid_text=dice.choice(["error", "replace"])
    )
    for _ in range(10):
        data = bytearray(b"".join(image(kinds, row) for row in rows))
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(data) + 1)
            how = dice.randrange(4)
            if how == 0 and at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            elif how == 1:
                del data[at : at + dice.randrange(1, 9)]
            elif how == 2:
                data[at:at] = dice.randbytes(dice.randrange(1, 9))
            else:
                data[at : at + 2] = b"\xff\xff"
        try:
            parts = run(plan, [(dice.choice([1, 2, 3, 4]), bytes(data))])
        except (CorruptData, UnrepresentableValue) as error:
            assert re.search(r"shop\.t: .* at binlog\.000001 at \d+", str(error))  # noqa: PT017 - there need be none
            continue
        for part in parts:
            for array in part.arrays:
                array.validate(full=True)


@given(tables(), tables(), st.sampled_from([1, 2, 3, 4]))
@settings(max_examples=4 * settings.default.max_examples)
def test_images_of_another_table_give_an_error_with_the_place_or_values(table: Table, other: Table, kind: int) -> None:
    """A history that is not this log's: whatever the bytes, each column's kernel keeps to what it was promised."""
    _, kinds, rows = other
    plan = plan_of(table[0], zero_dates="null", invalid_text="replace")
    try:
        parts = run(plan, [(kind, b"".join(image(kinds, row) for row in rows))])
    except CorruptData as error:
        assert re.search(r"shop\.t: .* at binlog\.000001 at \d+", str(error))  # noqa: PT017 - there need be none
        return
    for part in parts:
        for array in part.arrays:
            array.validate(full=True)


def test_nothing_is_read_or_written_without_events() -> None:
    definition, _, _ = small_table()
    (found,) = run(plan_of(definition), [])
    assert found.images == 0
    assert all(len(array) == 0 for array in found.arrays)


def test_events_outside_of_the_buffer_are_refused() -> None:
    definition, _, _ = small_table()
    empty = np.zeros(4, dtype=np.uint8)
    with pytest.raises(ValueError, match="outside"):
        decode(plan_of(definition), empty, np.ones(1, np.int8), np.array([0]), np.array([5]), place)
