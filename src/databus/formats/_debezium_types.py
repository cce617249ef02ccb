"""Column types in Debezium's words: Kafka Connect's types with Debezium's names for what they mean.

Debezium's documentation, "Data type mappings" of the MySQL connector, has them: `decimal.handling.mode` and
`bigint.unsigned.handling.mode` are `DebeziumForm`'s; `time.precision.mode` is `adaptive_time_microseconds`,
`binary.handling.mode` is `bytes`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import UnrepresentableValue
from databus.formats._base64 import base64_texts
from databus.formats._column_text import decimal_texts, quoted, texts_of
from databus.formats._mysql_words import digits_of, is_clock, iso_texts, kind_of
from databus.formats._twos_complement import twos_complement
from databus.schema import Column, TableSchema, forms_of

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_TEXT: Final = pa.large_string
_US_A_MS: Final = 1_000
_MS_DIGITS: Final = 3
_INT64_MAX: Final = (1 << 63) - 1
UINT64_DIGITS: Final = 20


class DecimalForm(StrEnum):
    """How exact numbers are written: `precise` as bytes of the unscaled value, `string` as text."""

    PRECISE = "precise"
    STRING = "string"


class UnsignedForm(StrEnum):
    """How integers without a sign of 64 bits are written: `long` as a number of 63 bits, `precise` as a decimal."""

    LONG = "long"
    PRECISE = "precise"


@dataclass(frozen=True, slots=True)
class DebeziumForm:
    """The choices of Debezium's envelope."""

    decimals: DecimalForm = DecimalForm.PRECISE
    """Debezium's `decimal.handling.mode`; its `double` loses digits and is not offered."""
    unsigned: UnsignedForm = UnsignedForm.LONG
    """`bigint.unsigned.handling.mode`."""
    with_schema: bool = False
    """Each message and key says its schema, as with `schemas.enable`."""
    tombstones: bool = True
    """`tombstones.on.delete`."""


@dataclass(frozen=True, slots=True)
class ConnectType:
    """A type of Kafka Connect; `name` says what its values mean."""

    type: str
    name: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()

    def to_json(self, *, optional: bool, field: str) -> dict[str, Any]:
        """As the field of a struct in a message of Connect's JSON converter."""
        value: dict[str, Any] = {"type": self.type, "optional": optional}
        if self.name is not None:
            value |= {"name": self.name, "version": 1}
        if self.parameters:
            value["parameters"] = dict(self.parameters)
        return {**value, "field": field}


_PLAIN: Final = {
    "bool": ConnectType("boolean"),
    "int8": ConnectType("int16"),
    "int16": ConnectType("int16"),
    "int32": ConnectType("int32"),
    "int64": ConnectType("int64"),
    "uint8": ConnectType("int16"),
    "uint16": ConnectType("int32"),
    "uint32": ConnectType("int64"),
    "float32": ConnectType("float"),
    "float64": ConnectType("double"),
    "binary": ConnectType("bytes"),
    "date": ConnectType("int32", "io.debezium.time.Date"),
    "timestamptz": ConnectType("string", "io.debezium.time.ZonedTimestamp"),
}
_STRINGS: Final = {"enum": "io.debezium.data.Enum", "set": "io.debezium.data.EnumSet", "json": "io.debezium.data.Json"}


def connect_type(column: Column, form: DebeziumForm) -> ConnectType:  # noqa: PLR0911 - one for each kind
    """The type that Debezium gives a column."""
    kind = kind_of(column)
    if is_clock(column):
        return ConnectType("int64", "io.debezium.time.MicroTime")
    if kind == "year" and column.type != "string":
        return ConnectType("int32", "io.debezium.time.Year")
    if column.type == "timestamp":
        return ConnectType("int64", f"io.debezium.time.{'Timestamp' if is_milliseconds(column) else 'MicroTimestamp'}")
    if column.type == "string":
        members = re.findall(r"'((?:[^']|'')*)'", column.db_type) if kind in ("enum", "set") else []
        allowed = ",".join(members).replace("''", "'")
        return ConnectType("string", _STRINGS.get(kind), (("allowed", allowed),) if members else ())
    if column.type == "uint64":
        return ConnectType("int64") if form.unsigned is UnsignedForm.LONG else _decimal(UINT64_DIGITS, 0)
    if column.type in _PLAIN:
        return _PLAIN[column.type]
    if form.decimals is DecimalForm.STRING:
        return ConnectType("string")
    arrow = forms_of(column.type).arrow
    return _decimal(arrow.precision, arrow.scale)


def is_milliseconds(column: Column) -> bool:
    """Whether Debezium has a column of points in time in milliseconds; else they are microseconds."""
    return digits_of(column) <= _MS_DIGITS


def debezium_texts(table: TableSchema, column: Column, values: pa.Array, form: DebeziumForm) -> pa.LargeStringArray:
    """A column's values as Connect's JSON converter writes Debezium's; none of them is null."""
    name = f"{table.source}.{column.name}"
    null = pa.scalar("null", _TEXT())
    kind = values.type
    if pa.types.is_decimal(kind) and form.decimals is DecimalForm.PRECISE:
        return pc.coalesce(quoted(base64_texts(twos_complement(values))), null)
    if pa.types.is_uint64(kind):
        if form.unsigned is UnsignedForm.PRECISE:
            unscaled = twos_complement(values.cast(pa.decimal128(UINT64_DIGITS, 0)))
            return pc.coalesce(quoted(base64_texts(unscaled)), null)
        _check_long(name, values)
    if pa.types.is_date(kind):
        return texts_of(name, values.cast(pa.int32()), big_in_string=False)
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return pc.coalesce(quoted(iso_texts(name, column, values)), null)
        return texts_of(name, moments(name, column, values), big_in_string=False)
    return texts_of(name, values, big_in_string=False)


def debezium_values(table: TableSchema, column: Column, values: pa.Array, form: DebeziumForm) -> pa.Array:
    """A column's values as Connect holds Debezium's, in Arrow; decimals as decimals."""
    name = f"{table.source}.{column.name}"
    kind = values.type
    if pa.types.is_decimal(kind) and form.decimals is DecimalForm.STRING:
        return decimal_texts(values)
    if pa.types.is_uint64(kind) and form.unsigned is UnsignedForm.LONG:
        _check_long(name, values)
        return values.cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return moments(name, column, values) if kind.tz is None else iso_texts(name, column, values)
    return values


def moments(name: str, column: Column, values: pa.Array) -> pa.Int64Array:
    """Points in time without a zone as Debezium counts them: milliseconds, or microseconds, since 1970."""
    counts = values.cast(pa.int64())
    if not is_milliseconds(column):
        return counts
    numbers = counts.fill_null(0).to_numpy(zero_copy_only=False)
    if np.any(numbers % _US_A_MS):
        raise UnrepresentableValue(
            f"{name}: holds microseconds, but {column.db_type} is milliseconds in Debezium's envelope"
        )
    return pa.array(numbers // _US_A_MS, mask=values.is_null().to_numpy(zero_copy_only=False))


def _check_long(name: str, values: pa.UInt64Array) -> None:
    highest = pc.max(values).as_py()
    if highest is not None and highest > _INT64_MAX:
        raise UnrepresentableValue(
            f"{name}: holds {highest}, which is no number of 63 bits; choose the form `precise` for unsigned integers"
        )


def _decimal(precision: int, scale: int) -> ConnectType:
    parameters = (("scale", str(scale)), ("connect.decimal.precision", str(precision)))
    return ConnectType("bytes", DECIMAL, parameters)
