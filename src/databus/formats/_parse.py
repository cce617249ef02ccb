"""JSON messages to Arrow, a whole array of messages at a time.

Arrow's own reader takes them where each value is of the kind that its type expects. Where one is not (`"NaN"` among
numbers, integers as text, a document among texts), all messages of that call are read one by one. So they are where the
bytes of one are no UTF-8, which Arrow's reader hands on as text, or a number is so large that it makes infinity.
"""

import json
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from databus.core import UnrepresentableValue
from databus.formats._buffers import bytes_of

BLOCK_BYTES_MAX: Final = 1 << 30
"""How many bytes of messages are read in one call; Arrow's reader takes at most 2 GiB at once."""


DOCUMENT: Final = pa.large_string()
"""The type of a member that is a document of any kind, of which its text is wanted; it is only read one by one."""
_MISFITS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError)  # half of a character


class Parsed(NamedTuple):
    """Messages that were read."""

    members: dict[str, pa.Array]
    """One array for each member that was asked for."""
    objects: list[dict[str, Any]] | None
    """The messages as Python's objects, where they were read one by one."""


def parsed(
    values: pa.LargeBinaryArray, schema: pa.Schema, numbers: npt.NDArray[np.int64], *, one_by_one: bool = False
) -> Parsed:
    """Read messages, none of them null, each of which is an object. schema: the members to read, others are ignored.
    numbers: what each message is called in an error.

    Raises `UnrepresentableValue`, with the number of the message, for one that is no such object.
    """
    table = None if one_by_one or not len(values) else _in_bulk(values, schema)
    if table is not None:
        return Parsed(dict(zip(schema.names, table.columns, strict=True)), None)
    objects = [json_object(number, value) for number, value in zip(numbers, values.to_pylist(), strict=True)]
    members = {field.name: _column(objects, field, numbers) for field in schema}
    return Parsed(members, objects)


def _in_bulk(values: pa.LargeBinaryArray, schema: pa.Schema) -> pa.RecordBatch | None:
    is_object = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if not pc.all(is_object).as_py() or not _is_text(values):
        return None
    binary = pa.large_binary()
    run = bytes_of(pc.binary_join_element_wise(values, pa.scalar(b"\n", binary), pa.scalar(b"", binary)))
    if len(run) > BLOCK_BYTES_MAX:
        raise UnrepresentableValue(
            f"{len(run)} bytes of messages in one call; at most {BLOCK_BYTES_MAX} are read at once"
        )
    try:
        table = pj.read_json(
            pa.BufferReader(pa.py_buffer(run)),
            pj.ReadOptions(use_threads=False, block_size=len(run)),
            pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None  # read one by one, the message that is wrong is found and named
    if table.num_rows != len(values):
        return None
    batch = table.combine_chunks().to_batches()[0]
    return None if any(map(_has_infinity, batch.columns)) else batch


def _has_infinity(values: pa.Array) -> bool:
    """Whether there is one, which Arrow's reader makes of a number that is too large."""
    if pa.types.is_struct(values.type):
        return any(map(_has_infinity, values.flatten()))
    if pa.types.is_list(values.type):
        return _has_infinity(values.flatten())
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_inf(values)).as_py())


def _is_text(values: pa.LargeBinaryArray) -> bool:
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def json_object(number: int, value: bytes) -> dict[str, Any]:
    """A message as an object of Python's. Raises `UnrepresentableValue`, with its number, if it is not an object."""
    try:
        document = json.loads(value, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise UnrepresentableValue(f"message {number}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UnrepresentableValue(f"message {number}: not an object: {value[:40]!r}")
    return document


def _column(objects: list[dict[str, Any]], field: pa.Field, numbers: npt.NDArray[np.int64]) -> pa.Array:
    cells = []
    for number, document in zip(numbers, objects, strict=True):
        try:
            cells.append(_fitted(document.get(field.name), field.type))
        except (ValueError, TypeError, InvalidOperation) as error:
            raise UnrepresentableValue(f"message {number}: {field.name}: {error}") from error
    try:
        return pa.array(cells, field.type)
    except _MISFITS:
        for number, cell in zip(numbers, cells, strict=True):  # which of them it is
            try:
                pa.array([cell], field.type)
            except _MISFITS as error:
                raise UnrepresentableValue(f"message {number}: {field.name}: {error}") from error
        raise


def _fitted(value: Any, kind: pa.DataType) -> Any:  # noqa: C901, PLR0911 - one for each kind
    """A value as Arrow takes it for this type. Raises `ValueError` for a value of another type."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{str(value)[:40]!r} is not an object")
        return {field.name: _fitted(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise ValueError(f"{str(value)[:40]!r} is not a list")
        return [_fitted(item, kind.value_type) for item in value]
    if pa.types.is_boolean(kind):
        if not isinstance(value, bool):
            raise ValueError(f"{str(value)[:40]!r} is not true or false")
        return value
    if isinstance(value, bool) and not (pa.types.is_string(kind) or kind == DOCUMENT):
        raise ValueError(f"{value} is not a number")
    if pa.types.is_floating(kind):
        return _float(value, kind)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_integer(kind):
        if not isinstance(value, int | str):
            raise ValueError(f"{value} is not an integer")
        return int(value)
    return value if isinstance(value, str) and kind != DOCUMENT else document_text(value)


def _float(value: Any, kind: pa.DataType) -> float:
    """Raises `ValueError` for a number that would become infinite."""
    is_infinite = isinstance(value, float) or (isinstance(value, str) and "inf" in value.lower())
    try:
        number = float(value)
        with np.errstate(over="ignore"):
            if is_infinite or not np.isinf(kind.to_pandas_dtype()(number)):
                return number
    except OverflowError:
        pass
    raise ValueError(f"{str(value)[:40]} is beyond a {kind}")


def document_text(value: Any) -> str:
    """A document as the text that a JSON column has: MySQL's blanks, and numbers with their digits."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {document_text(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(document_text(item) for item in value) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
