"""Column types: the short names that a TableSchema is written in, and what each is elsewhere.

| type            | Arrow                | Avro                          | Spark          |
|-----------------|----------------------|-------------------------------|----------------|
| bool            | bool                 | boolean                       | boolean        |
| int8, int16     | int8, int16          | int                           | byte, short    |
| int32           | int32                | int                           | integer        |
| int64           | int64                | long                          | long           |
| uint8           | uint8                | int                           | short          |
| uint16          | uint16               | int                           | integer        |
| uint32          | uint32               | long                          | long           |
| uint64          | uint64               | bytes, decimal(20,0)          | decimal(20,0)  |
| float32         | float32              | float                         | float          |
| float64         | float64              | double                        | double         |
| decimal(p,s)    | decimal128(p, s)     | bytes, decimal                | decimal(p,s)   |
| string          | string               | string                        | string         |
| binary          | binary               | bytes                         | binary         |
| date            | date32               | int, date                     | date           |
| timestamp       | timestamp(us)        | long, local-timestamp-micros  | timestamp_ntz  |
| timestamptz     | timestamp(us, UTC)   | long, timestamp-micros        | timestamp      |

Every derivation holds each value of the type exactly.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from databus.core import ConfigError

_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
DECIMAL_PRECISION_MAX: Final = 38


@dataclass(frozen=True, slots=True)
class TypeForms:
    """One column type in the words of the three systems: Arrow (`sink` is the Arrow form of the Spark type)."""

    arrow: pa.DataType
    avro: Any
    spark: str
    sink: pa.DataType


def _avro(kind: str, logical: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


_UTC: Final = pa.timestamp("us", tz="UTC")

_FORMS: Final[dict[str, TypeForms]] = {
    "bool": TypeForms(pa.bool_(), "boolean", "boolean", pa.bool_()),
    "int8": TypeForms(pa.int8(), "int", "byte", pa.int8()),
    "int16": TypeForms(pa.int16(), "int", "short", pa.int16()),
    "int32": TypeForms(pa.int32(), "int", "integer", pa.int32()),
    "int64": TypeForms(pa.int64(), "long", "long", pa.int64()),
    "uint8": TypeForms(pa.uint8(), "int", "short", pa.int16()),
    "uint16": TypeForms(pa.uint16(), "int", "integer", pa.int32()),
    "uint32": TypeForms(pa.uint32(), "long", "long", pa.int64()),
    "uint64": TypeForms(
        pa.uint64(), _avro("bytes", "decimal", precision=20, scale=0), "decimal(20,0)", pa.decimal128(20, 0)
    ),
    "float32": TypeForms(pa.float32(), "float", "float", pa.float32()),
    "float64": TypeForms(pa.float64(), "double", "double", pa.float64()),
    "string": TypeForms(pa.string(), "string", "string", pa.string()),
    "binary": TypeForms(pa.binary(), "bytes", "binary", pa.binary()),
    "date": TypeForms(pa.date32(), _avro("int", "date"), "date", pa.date32()),
    "timestamp": TypeForms(
        pa.timestamp("us"), _avro("long", "local-timestamp-micros"), "timestamp_ntz", pa.timestamp("us")
    ),
    "timestamptz": TypeForms(_UTC, _avro("long", "timestamp-micros"), "timestamp", _UTC),
}

TYPE_NAMES: Final = (*_FORMS, "decimal(p,s)")


def forms_of(type_name: str) -> TypeForms:
    """The forms of a column type. Raises `ConfigError` for an unknown name.

    >>> forms_of("decimal(12,2)").spark
    'decimal(12,2)'
    """
    forms = _FORMS.get(type_name)
    if forms is not None:
        return forms
    match = _DECIMAL.fullmatch(type_name)
    if match is None:
        raise ConfigError(f"{type_name!r} is not a column type; there are {', '.join(TYPE_NAMES)}")
    precision, scale = int(match[1]), int(match[2])
    if not 1 <= precision <= DECIMAL_PRECISION_MAX or scale > precision:
        raise ConfigError(f"{type_name}: precision is 1..{DECIMAL_PRECISION_MAX} and scale 0..precision")
    arrow = pa.decimal128(precision, scale)
    return TypeForms(arrow, _avro("bytes", "decimal", precision=precision, scale=scale), type_name, arrow)


_WIDER: Final[dict[str, frozenset[str]]] = {
    "int8": frozenset({"int16", "int32", "int64"}),
    "int16": frozenset({"int32", "int64"}),
    "int32": frozenset({"int64"}),
    "uint8": frozenset({"uint16", "uint32", "uint64", "int16", "int32", "int64"}),
    "uint16": frozenset({"uint32", "uint64", "int32", "int64"}),
    "uint32": frozenset({"uint64", "int64"}),
    "float32": frozenset({"float64"}),
}


def widens(old: str, new: str) -> bool:
    """Whether each value of `old` is a value of `new`, so that a column may change in place.

    >>> widens("int32", "int64"), widens("decimal(10,2)", "decimal(12,2)"), widens("int64", "float64")
    (True, True, False)
    """
    if old == new:
        return True
    a, b = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if a is not None and b is not None:
        return int(b[2]) >= int(a[2]) and int(b[1]) - int(b[2]) >= int(a[1]) - int(a[2])
    return new in _WIDER.get(old, frozenset())
