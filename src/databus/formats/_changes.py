"""Changes as JSON: one line for each row image and each control, the same wherever changes are written as JSON.

    {"_source":"shop/main.orders","id":1,"total":"9.95","_change_type":"insert","_commit_version":7,"_seq":1,
     "_commit_timestamp":"2026-07-01T12:00:00.000000Z","_txid":"...","_snapshot":false}
    {"_source":"shop/main.orders","_control":{"kind":"truncate","source":"main.orders"},"_commit_version":8,"_seq":1}

An update is two adjacent lines. docs/http.md, "Changes as JSON", is what users are told; start with `change_lines`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, CONTROL, SEQ, SOURCE, ChangeType, Pair, UnrepresentableValue
from databus.formats._json import to_json_value

SAFE_INTEGER_MAX: Final = (1 << 53) - 1
_LABELS: Final = {kind.value: kind.label for kind in ChangeType} | {kind.label: kind.label for kind in ChangeType}
_DATE_LENGTH: Final = len("2026-07-01")
_TIME_LENGTH: Final = len("2026-07-01T12:00:00.000000")


class BigIntegers(StrEnum):
    """How integers beyond 2^53 - 1, either side of zero, are written; as doubles they would lose digits."""

    NUMBER = "number"
    STRING = "string"


class ChangeLine(NamedTuple):
    """One row image as a line of JSON, without a line feed."""

    pair: Pair
    change_type: str
    text: str


def change_lines(
    batches: Iterable[tuple[str, pa.RecordBatch]], big_integers: BigIntegers = BigIntegers.NUMBER
) -> list[ChangeLine]:
    """The lines of some rows, in the order of (`_commit_version`, `_seq`), in which each batch stands already.

    batches: full names of sources (`physical/db.table`), each with rows in its frame's schema or as users see them.
    Raises `UnrepresentableValue` for a time outside the years 0 to 9999.
    """
    found = [_lines_of(source, batch, big_integers) for source, batch in batches]
    if len(found) == 1:
        return found[0]
    return sorted((line for lines in found for line in lines), key=lambda line: line.pair)


def _lines_of(source: str, batch: pa.RecordBatch, big_integers: BigIntegers) -> list[ChangeLine]:
    names = (SOURCE, *batch.schema.names)
    columns = {name: _values(f"{source}.{name}", batch.column(name)) for name in batch.schema.names}
    columns[CHANGE_TYPE] = [_LABELS[kind] for kind in columns[CHANGE_TYPE]]
    pairs = zip(batch.column(COMMIT_VERSION).to_pylist(), batch.column(SEQ).to_pylist(), strict=True)
    if big_integers is BigIntegers.STRING:
        columns = {name: [_in_string(value) for value in values] for name, values in columns.items()}
    rows = zip(*columns.values(), strict=True)
    return [
        ChangeLine(pair, kind, _dumps(dict(zip(names, (source, *row), strict=True))))
        for pair, kind, row in zip(pairs, columns[CHANGE_TYPE], rows, strict=True)
    ]


def control_line(
    source: str, body: Mapping[str, Any], pair: Pair, big_integers: BigIntegers = BigIntegers.NUMBER
) -> str:
    """A control as a line of JSON, without a line feed. body: as it stands in the frame."""
    scn, seq = pair
    return json_line({SOURCE: source, CONTROL: dict(body), COMMIT_VERSION: scn, SEQ: seq}, big_integers)


def json_line(value: Mapping[str, Any], big_integers: BigIntegers = BigIntegers.NUMBER) -> str:
    """An object as a line of JSON, without a line feed: `_position` and the like."""
    return _dumps(_in_strings(dict(value)) if big_integers is BigIntegers.STRING else value)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _in_string(value: Any) -> Any:
    is_big = isinstance(value, int) and not -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX
    return str(value) if is_big else value


def _in_strings(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_strings(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_strings(each) for each in value]
    return _in_string(value)


def _values(name: str, column: pa.Array) -> list[Any]:
    """A column as JSON's own types; only what JSON lacks is looked at value by value."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring(column.cast(pa.string()), " ", "T")
        return _whole(name, text, _TIME_LENGTH + (kind.tz is not None))
    if pa.types.is_date(kind):
        return _whole(name, column.cast(pa.string()), _DATE_LENGTH)
    values: list[Any] = column.to_pylist()
    as_it_is: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_dictionary, pa.types.is_null
    )  # fmt: skip
    return values if any(holds(kind) for holds in as_it_is) else [to_json_value(value) for value in values]


def _whole(name: str, text: pa.Array, length: int) -> list[Any]:
    """Times as text, all of one length: that of a year with four digits."""
    lengths = pc.min_max(pc.utf8_length(text)).as_py()
    if any(found not in (None, length) for found in lengths.values()):
        raise UnrepresentableValue(f"{name}: holds a time outside the years 0 to 9999, for which there is no text")
    values: list[Any] = text.to_pylist()
    return values
