"""What Debezium's JSON says of its own columns, where each message has its schema beside it (`schemas.enable=true`).

A connector may have written a column otherwise than the table says: decimals of another scale, since the column was
changed, or times in other units, by its `time.precision.mode`. Such values are read as they were written. What would be
read without an error, as something else than it is, is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import UnrepresentableValue
from databus.formats._debezium_types import DECIMAL, DebeziumForm, connect_type
from databus.formats._mysql_words import is_clock
from databus.formats._parse import json_object
from databus.formats._read import Places
from databus.schema import Column, TableSchema, forms_of

_SCHEMA: Final = b'{"schema":'
_PAYLOAD: Final = b',"payload":'
_PRECISION_MAX: Final = 38
_CONNECT: Final = "org.apache.kafka.connect.data"
_MOMENTS: Final = {
    "io.debezium.time.Timestamp": "datetime(3)",
    f"{_CONNECT}.Timestamp": "datetime(3)",
    "io.debezium.time.MicroTimestamp": "datetime(6)",
}
_DATES: Final = ("io.debezium.time.Date", f"{_CONNECT}.Date")


def schemas_of(values: pa.LargeBinaryArray, numbers: Places) -> dict[bytes, Places]:
    """The text of each schema, and the places of the messages that have it. numbers: what each is called in an error.

    Connect's converter writes the schema first, so that messages of one schema begin with the same bytes.
    """
    ends = pc.find_substring(values, _PAYLOAD).to_numpy()
    is_first = pc.starts_with(values, _SCHEMA).to_numpy(zero_copy_only=False) & (ends > 0)
    found: dict[bytes, list[npt.NDArray[np.int64]]] = {}
    for end in np.unique(ends[is_first]).tolist():
        places = np.flatnonzero(is_first & (ends == end))
        texts = pc.binary_slice(values.take(pa.array(places)), len(_SCHEMA), end).dictionary_encode()
        for number, text in enumerate(texts.dictionary.to_pylist()):
            chosen = places[texts.indices.to_numpy() == number]
            if _is_json(text):
                found.setdefault(text, []).append(chosen)
            else:
                is_first[chosen] = False
    for place in np.flatnonzero(~is_first).tolist():
        schema = json_object(int(numbers[place]), values[place].as_py()).get("schema")
        found.setdefault(json.dumps(schema).encode(), []).append(np.array([place]))
    return {text: np.sort(np.concatenate(each)) for text, each in found.items()}


def columns_written(table: TableSchema, schema: bytes, form: DebeziumForm) -> list[Column]:
    """The table's columns as they have to be read from messages of this schema. Where it says nothing of a column, that
    is as the table has it.

    Raises `UnrepresentableValue` for a column that was written as something of which it cannot be made.
    """
    images = _fields(json.loads(schema))
    written = _fields(images.get("after", images.get("before")))
    return [_column(column, written.get(column.name), form) for column in table.columns]


def _column(column: Column, said: Mapping[str, Any] | None, form: DebeziumForm) -> Column:
    if said is None:
        return column
    ours, kind, name = connect_type(column, form), said.get("type"), said.get("name")
    is_unlike = (kind == "bytes") != (ours.type == "bytes") or (name == DECIMAL) != (ours.name == DECIMAL)
    if column.type == "timestamp" and name in _MOMENTS:
        return replace(column, db_type=_MOMENTS[name])
    is_unlike |= column.type == "timestamp" or (is_clock(column) and name != ours.name)
    is_unlike |= column.type == "date" and name not in _DATES
    if is_unlike:
        raise UnrepresentableValue(
            f"{column.name} was written as {_shown(kind, name)}, and is read as {_shown(ours.type, ours.name)}: see "
            "the connector's modes for such columns, and the column's type in `schemas`"
        )
    return _of_scale(column, said) if name == DECIMAL else column


def _of_scale(column: Column, said: Mapping[str, Any]) -> Column:
    parameters = said.get("parameters")
    scale = str(parameters.get("scale")) if isinstance(parameters, Mapping) else ""
    if not scale.isdecimal() or int(scale) > _PRECISION_MAX or (column.type == "uint64" and int(scale)):
        raise UnrepresentableValue(f"{column.name} was written as a decimal with the scale {scale or 'none'}")
    if column.type == "uint64" or int(scale) == forms_of(column.type).arrow.scale:
        return column
    return replace(column, type=f"decimal({_PRECISION_MAX},{int(scale)})")


def _shown(kind: Any, name: Any) -> str:
    return f"{kind} ({name})" if name else str(kind)


def _fields(struct: Any) -> dict[str, Mapping[str, Any]]:
    fields = struct.get("fields") if isinstance(struct, Mapping) else None
    return {str(each.get("field")): each for each in fields or () if isinstance(each, Mapping)}


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
