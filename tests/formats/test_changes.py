"""Changes as lines of JSON: every value exactly, in order, big integers as they are asked for."""

import datetime as dt
import json
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import ChangeType, UnrepresentableValue
from databus.formats import (
    BigIntegers,
    change_lines,
    change_text,
    control_line,
    from_json_value,
    json_line,
    to_json_value,
)
from databus.formats._changes import lines_by_column, lines_by_row
from databus.schema import Column, TableSchema, forms_of, frame_schema
from tests.schema.test_schema import EXTREMES

AT = dt.datetime(2026, 7, 1, 12, 0, 0, 1, dt.UTC)


def frame(type_name, values, *, scns=None, kind=ChangeType.INSERT):
    schema = frame_schema(TableSchema("main.t", (Column("v", type_name),)))
    count = len(values)
    bus = [[int(kind)] * count, scns or [7] * count, list(range(count)), [AT] * count, ["a"] * count, [False] * count]
    columns = [pa.array(values, forms_of(type_name).arrow), *bus]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


@pytest.mark.parametrize("type_name", list(EXTREMES))
def test_each_value_is_the_one_that_its_slow_form_says_and_comes_back(type_name):
    values = [*EXTREMES[type_name], None]
    lines = [json.loads(line.text) for line in change_lines([("shop/main.t", frame(type_name, values))])]
    python = pa.array(values, forms_of(type_name).arrow).to_pylist()
    assert [line["v"] for line in lines] == [to_json_value(value) for value in python]
    assert [from_json_value(line["v"], type_name) for line in lines] == python


def test_a_line_has_the_source_first_then_the_columns_then_the_bus():
    (line,) = change_lines([("shop/main.t", frame("string", ["\u00fc\n"], kind=ChangeType.UPDATE_POSTIMAGE))])
    assert line.text == (
        '{"_source":"shop/main.t","v":"\u00fc\\n","_change_type":"update_postimage","_commit_version":7,"_seq":0,'
        '"_commit_timestamp":"2026-07-01T12:00:00.000001Z","_txid":"a","_snapshot":false}'
    )
    assert (line.pair, line.change_type) == ((7, 0), "update_postimage")
    assert change_lines([("shop/main.t", frame("string", []))]) == change_lines([]) == []


def test_lines_of_several_batches_are_in_the_order_of_their_pairs():
    one, other = frame("int8", [1, 2], scns=[1, 4]), frame("int8", [3, 4], scns=[2, 3])
    found = [json.loads(line.text)["v"] for line in change_lines([("a", one), ("b", other)])]
    assert found == [1, 3, 4, 2]


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_that_a_double_cannot_hold_are_strings_where_asked(sign):
    batch = frame("int64", [sign * (2**53 - 1), sign * 2**53], scns=[5, 2**53])
    for form, kind in ((BigIntegers.NUMBER, int), (BigIntegers.STRING, str)):
        lines = [json.loads(line.text) for line in change_lines([("a", batch)], form)]
        assert [line["v"] for line in lines] == [sign * (2**53 - 1), kind(sign * 2**53)]
        assert [line["_commit_version"] for line in lines] == [5, kind(2**53)]
        body = {"begin": [1, 2**53], "deep": {"n": -(2**60)}, "yes": True}
        control = json.loads(control_line("a", body, (2**53, 1), form))
        assert control["_control"] == {"begin": [1, kind(2**53)], "deep": {"n": kind(-(2**60))}, "yes": True}
        assert (control["_commit_version"], control["_seq"]) == (kind(2**53), 1)
        assert json.loads(json_line({"_position": {"scn": 2**53}}, form)) == {"_position": {"scn": kind(2**53)}}


@pytest.mark.parametrize("type_name", ["timestamp", "timestamptz"])
@pytest.mark.parametrize("us", [2**63 - 1, -(2**62), 253_402_300_800_000_000])
def test_a_time_that_has_no_text_is_refused_by_the_columns_name(type_name, us):
    batch = frame(type_name, pa.array([us], pa.int64()).cast(forms_of(type_name).arrow))
    with pytest.raises(UnrepresentableValue, match=r"shop/main\.t\.v: holds a time outside the years 0 to 9999"):
        change_lines([("shop/main.t", batch)])


def decimals(precision, scale):
    """Every decimal of that shape, small and large ones alike."""
    unscaled = st.integers(0, precision).flatmap(lambda digits: st.integers(-(10**digits) + 1, 10**digits - 1))
    return unscaled.map(lambda value: Decimal(value).scaleb(-scale, Context(prec=60)))  # not rounded


def integers(bits, *, signed):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.one_of(st.integers(low, high), st.integers(max(low, -9), 9), st.sampled_from([low, high]))


TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))  # noqa: DTZ001 - it has no zone
DOUBLES = st.one_of(st.floats(), st.floats(-1e17, 1e17), st.integers(-(2**60), 2**60).map(float))
VALUES = {
    **{f"int{bits}": integers(bits, signed=True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": integers(bits, signed=False) for bits in (8, 16, 32, 64)},
    "bool": st.booleans(),
    "float32": st.floats(width=32),
    "float64": DOUBLES,
    "decimal(38,0)": decimals(38, 0),
    "decimal(38,38)": decimals(38, 38),
    "decimal(12,2)": decimals(12, 2),
    "string": st.one_of(st.text(), st.text(st.characters(max_codepoint=0x7F)), st.text('\\"/\n\t\x00\x1f\x7f')),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": TIMES,
    "timestamptz": TIMES.map(lambda value: value.replace(tzinfo=dt.UTC)),
}
columns = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(st.one_of(st.none(), VALUES[name]), max_size=30))
)


def test_every_type_is_among_those_compared():
    assert set(VALUES) == set(EXTREMES)


@given(columns, st.sampled_from(BigIntegers), st.sampled_from(ChangeType))
def test_lines_made_by_column_are_those_made_by_row_to_the_byte(column, form, kind):
    batch = frame(*column, kind=kind)
    by_row = lines_by_row('shop/main."t"\u00fc', batch, form)
    by_column = lines_by_column('shop/main."t"\u00fc', batch, form)
    assert by_column.null_count == 0
    assert by_column.to_pylist() == [f"{line.text}\n" for line in by_row]


def test_doubles_of_every_size_are_written_as_python_writes_them():
    bits = np.random.default_rng(1).integers(0, 1 << 64, 20_000, np.uint64, endpoint=False)
    sizes = np.outer(10.0 ** np.arange(-8, 20), np.arange(1, 200)).ravel()
    values = np.concatenate(
        [bits.view(np.float64), sizes, sizes / 7, [-0.0, 0.0, 1e-4, 1e15, 1e16, 9.999999999999999e14]]
    )
    batch = frame("float64", pa.array(values))
    by_row = lines_by_row("a", batch, BigIntegers.NUMBER)
    assert lines_by_column("a", batch, BigIntegers.NUMBER).to_pylist() == [f"{line.text}\n" for line in by_row]


@pytest.mark.parametrize("after", [None, (-1, -1), (2, 11), (3, 39), (9, 0)])
@pytest.mark.parametrize("count", [1, 40, 70])
def test_text_in_bulk_is_the_lines_in_order_after_a_pair(count, after):
    one = frame("string", [f"a{n}" for n in range(count)], scns=[1 + n // 10 * 2 for n in range(count)])
    other = frame("int64", list(range(count)), scns=[2 + n // 10 * 2 for n in range(count)])
    labels = pa.array(["insert"] * count).dictionary_encode()
    as_users_see_it = other.set_column(1, "_change_type", labels)
    for batches in (
        [("a", one)],
        [("a", one), ("b", other)],
        [("a", one.slice(count // 2)), ("b", as_users_see_it)],
        [],
    ):
        wanted = [line for line in change_lines(batches) if after is None or line.pair > after]
        assert change_text(batches, after=after) == "".join(f"{line.text}\n" for line in wanted).encode()


def test_values_in_a_dictionary_are_written_as_they_are_without_one():
    texts = pa.array(['a"', None, "b\n", 'a"'] * 20)
    plain = frame("string", texts)
    in_dictionary = plain.set_column(0, "v", pc.dictionary_encode(texts))
    assert change_text([("s", in_dictionary)]) == change_text([("s", plain)])
