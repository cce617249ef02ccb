"""Changes as lines of JSON: every value exactly, in order, big integers as they are asked for."""

import datetime as dt
import json

import pyarrow as pa
import pytest

from databus.core import ChangeType, UnrepresentableValue
from databus.formats import BigIntegers, change_lines, control_line, from_json_value, json_line, to_json_value
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
