"""Elements of JSON documents as columns: arrays of objects, each of which becomes a row.

Arrow's own reader takes documents a whole array at a time. Where one of them does not fit, the array is halved until
what does not fit is found, and only that is read by itself.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from databus.core import UnrepresentableValue
from databus.formats._buffers import bytes_of
from databus.formats._read import json_type, json_value
from databus.schema import Column, forms_of

_BLOCK_BYTES_MAX: Final = 256 << 20
_BLANKS: Final = " \t\r\n"
_ELEMENTS: Final = "e"
_SHOWN_MAX: Final = 40
_WRONG: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError, UnrepresentableValue)

Places = npt.NDArray[np.int64]


class ElementProblem(NamedTuple):
    """A value that does not fit."""

    place: int
    """Place of its document."""
    reason: str


class Elements(NamedTuple):
    """What documents hold."""

    of: Places
    """For each element the place of its document, in order."""
    ordinals: npt.NDArray[np.int32]
    """For each element its number in its document, from 1 on."""
    columns: Sequence[pa.Array]
    """The members that were asked for, in Arrow's types; null where a member is missing or does not fit."""
    problem: ElementProblem | None = None
    """The first value that does not fit."""


class _Number(str):
    """A number, by its digits."""

    __slots__ = ()


def elements(documents: pa.LargeStringArray, columns: Sequence[Column]) -> Elements:
    """The elements of JSON documents: objects of an array, or one object. Null, in JSON or not, and `[]` have none.

    columns: members to read, others are ignored. A document that is no JSON, or neither an array nor an object, is a
    problem, and has no elements; an element that is neither an object nor null is one without members.
    """
    valid = np.flatnonzero(documents.is_valid().to_numpy(zero_copy_only=False))
    texts = pc.ascii_trim(documents.drop_null() if documents.null_count else documents, _BLANKS)
    parts = list(_read(texts, columns, 0)) if len(texts) else []
    if not parts:
        return Elements(np.array([], np.int64), np.array([], np.int32), [pa.array([], _arrow(c)) for c in columns])
    arrays = [pa.concat_arrays([part.columns[i] for part in parts]) for i in range(len(columns))]
    problem = next((part.problem for part in parts if part.problem is not None), None)
    return Elements(
        valid[np.concatenate([part.of for part in parts])],
        np.concatenate([part.ordinals for part in parts]),
        arrays,
        None if problem is None else problem._replace(place=int(valid[problem.place])),
    )


def _read(texts: pa.LargeStringArray, columns: Sequence[Column], at: int) -> "list[Elements]":
    """The elements of documents, the first of which has the place `at`."""
    bulk = _in_bulk(texts, columns, at)
    if bulk is not None:
        return [bulk]
    if len(texts) == 1:
        return [_by_itself(texts[0].as_py(), columns, at)]
    half = len(texts) // 2
    return [*_read(texts.slice(0, half), columns, at), *_read(texts.slice(half), columns, at + half)]


def _arrow(column: Column) -> pa.DataType:
    return forms_of(column.type).arrow


# Many documents at once


def _in_bulk(texts: pa.LargeStringArray, columns: Sequence[Column], at: int) -> Elements | None:
    """None where one of them does not fit."""
    run = _lines(texts)
    if run is None or len(run) > _BLOCK_BYTES_MAX:
        return None
    members = pa.struct([pa.field(column.name, json_type(column)) for column in columns])
    schema = pa.schema([pa.field(_ELEMENTS, pa.list_(members))])
    try:
        table = pj.read_json(
            pa.BufferReader(pa.py_buffer(run)),
            pj.ReadOptions(use_threads=False, block_size=len(run)),
            pj.ParseOptions(explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(texts):
            return None
        lists = pa.concat_arrays(table.column(0).chunks)
        structs = lists.flatten()
        arrays = [_fitted(column, pc.struct_field(structs, place)) for place, column in enumerate(columns)]
    except _WRONG:
        return None
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    firsts = np.cumsum(lengths) - lengths
    ordinals = np.arange(len(structs), dtype=np.int64) - np.repeat(firsts, lengths) + 1
    return Elements(np.repeat(np.arange(at, at + len(texts)), lengths), ordinals.astype(np.int32), arrays)


def _lines(texts: pa.LargeStringArray) -> memoryview | None:
    """A line of JSON for each document; None where one is neither an array nor an object, nor null.

    Each stands in its line twice, once as the value of a member and once inside of an array: what is no JSON and looks
    like some in one of these places, such as `[],"x":[]` or `{},{}`, does not in the other.
    """
    is_array = pc.and_(pc.starts_with(texts, "["), pc.ends_with(texts, "]"))
    is_object = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if not pc.all(pc.or_(pc.or_(is_array, is_object), pc.equal(texts, "null"))).as_py():
        return None
    opens, closes = (pc.if_else(is_object, _text(bracket), _text("")) for bracket in "[]")
    nested_opens, nested_closes = (pc.if_else(is_object, _text(""), _text(bracket)) for bracket in "[]")
    head, middle = _text(f'{{"{_ELEMENTS}":'), _text(',"c":')
    pieces = (head, opens, texts, closes, middle, nested_opens, texts, nested_closes, _text("}\n"))
    return bytes_of(pc.binary_join_element_wise(*pieces, _text("")))


def _text(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _fitted(column: Column, raw: pa.Array) -> pa.Array:
    """The values of a member that was read as `json_type`. Raises one of `_WRONG`."""
    values = json_value(column, raw)
    if pa.types.is_floating(values.type) and pc.all(pc.is_finite(values)).as_py() is False:
        raise UnrepresentableValue("not a number that JSON has")
    return values


# One document


def _by_itself(text: str, columns: Sequence[Column], at: int) -> Elements:
    problems: list[str] = []
    try:
        document = json.loads(text, parse_int=_Number, parse_float=_Number)
    except (ValueError, RecursionError) as error:
        problems.append(f"not JSON: {error}")
        document = None
    if isinstance(document, Mapping):
        document = [document]
    if document is not None and not isinstance(document, list):
        problems.append(f"neither an array nor an object: {_shown(document)}")
        document = None
    objects = [_object(number, element, problems) for number, element in enumerate(document or [], 1)]
    arrays = [_column(objects, column, problems) for column in columns]
    problem = ElementProblem(at, problems[0]) if problems else None
    return Elements(np.full(len(objects), at), np.arange(1, len(objects) + 1, dtype=np.int32), arrays, problem)


def _object(number: int, element: Any, problems: list[str]) -> Mapping[str, Any]:
    if isinstance(element, Mapping):
        return element
    if element is not None:
        problems.append(f"element {number} is not an object: {_shown(element)}")
    return {}


def _column(objects: Sequence[Mapping[str, Any]], column: Column, problems: list[str]) -> pa.Array:
    cells = [pa.nulls(0, _arrow(column))]
    for number, element in enumerate(objects, 1):
        value = element.get(column.name)
        try:
            cells.append(_cell(column, value))
        except _WRONG:
            problems.append(f"element {number}: {column.name}: {_shown(value)} is not a {column.type}")
            cells.append(pa.nulls(1, _arrow(column)))
    return pa.concat_arrays(cells)


def _cell(column: Column, value: Any) -> pa.Array:
    """A value as Arrow's reader makes it. Raises one of `_WRONG`."""
    if value is None:
        return pa.nulls(1, _arrow(column))
    is_number = isinstance(value, _Number)
    kind = json_type(column)
    is_decimal = pa.types.is_decimal(kind)
    if pa.types.is_boolean(kind):
        if not isinstance(value, bool):
            raise ValueError(value)
        return pa.array([value])
    if not isinstance(value, str) or (not is_decimal and is_number == pa.types.is_string(kind)):
        raise ValueError(value)
    return _fitted(column, pa.array([str(value)], pa.string()).cast(kind))


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "an object" if isinstance(value, Mapping) else "an array"
    text = str(value) if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
    text = text.encode(errors="backslashreplace").decode()  # a surrogate by itself, which nothing can print
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
