"""JSON that `curl` and control bodies carry holds every value exactly."""

import json

import pyarrow as pa
import pytest

from databus.core import UnrepresentableValue
from databus.formats import from_json_value, to_json_value
from databus.schema import forms_of
from tests.schema.test_schema import EXTREMES


@pytest.mark.parametrize("type_name", list(EXTREMES))
def test_a_value_read_back_from_json_is_the_same(type_name):
    for value in pa.array([*EXTREMES[type_name], None], forms_of(type_name).arrow).to_pylist():
        assert from_json_value(json.loads(json.dumps(to_json_value(value))), type_name) == value


@pytest.mark.parametrize(
    ("value", "text"), [(float("inf"), "Infinity"), (float("-inf"), "-Infinity"), (float("nan"), "NaN")]
)
def test_numbers_that_json_has_not_are_strings_and_come_back(value, text):
    assert to_json_value(value) == text
    assert str(from_json_value(text, "float64")) == str(value)


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        ("x", "int64"),
        (True, "int64"),
        (1, "string"),
        ("%%", "binary"),
        ("x", "date"),
        ("x", "decimal(4,2)"),
        (1, "bool"),
    ],
)
def test_what_is_not_a_value_of_the_type_is_refused(value, type_name):
    with pytest.raises(UnrepresentableValue, match=type_name.split("(")[0]):
        from_json_value(value, type_name)
