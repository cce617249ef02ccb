"""What numbers in Avro stand for, and whether a reader of another schema takes them for something else.

Avro's libraries compare types alone: bytes are bytes, whatever the scale of the decimal in them, and a long is a long,
be it milliseconds or microseconds. Avro's reader in Java then takes 1.23 for 0.0123.

Source: Avro specification 1.12, "Logical Types": decimals match if their scales do; of their precisions a larger one
harms no value.
"""

from collections.abc import Iterator
from typing import Any, Final

_NUMBERS: Final = ("int", "long", "bytes", "fixed")
_DECIMAL: Final = "decimal"


def other_meanings(reader: Any, writer: Any) -> list[str]:
    """Where a reader's schema takes a writer's numbers for others. Both as `avro.schema.parse` gives them."""
    return list(_compared(reader, writer, "", set()))


def _compared(reader: Any, writer: Any, place: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    reader, writer = _value_of(reader), _value_of(writer)
    if reader is None or writer is None or (id(reader), id(writer)) in seen:
        return
    seen.add((id(reader), id(writer)))
    kinds = reader.type, writer.type
    if kinds == ("record", "record"):
        written = {field.name: field.type for field in writer.fields}
        for field in reader.fields:
            if field.name in written:
                yield from _compared(field.type, written[field.name], f"{place}/{field.name}", seen)
    elif kinds == ("array", "array"):
        yield from _compared(reader.items, writer.items, f"{place}/[]", seen)
    elif kinds == ("map", "map"):
        yield from _compared(reader.values, writer.values, f"{place}/{{}}", seen)
    elif writer.type in _NUMBERS:
        ours, theirs = _meaning(reader), _meaning(writer)
        is_decimal = (_DECIMAL,) in (ours[:1], theirs[:1])
        if ours != theirs and (is_decimal or (ours and theirs)):
            yield f"{place or '/'}: {_told(theirs, writer)} would be read as {_told(ours, reader)}"


def _value_of(schema: Any) -> Any:
    """The schema, or the one that a union has beside null; None for other unions."""
    if schema.type not in ("union", "error_union"):
        return schema
    others = [each for each in schema.schemas if each.type != "null"]
    return others[0] if len(others) == 1 else None


def _meaning(schema: Any) -> tuple[Any, ...]:
    """What its numbers stand for, by Avro's word or else by Connect's; empty for themselves."""
    said = schema.other_props
    logical = said.get("logicalType")
    if logical == _DECIMAL:
        return _DECIMAL, said.get("scale", 0)
    name = said.get("connect.name") or logical
    return (name,) if name else ()


def _told(meaning: tuple[Any, ...], schema: Any) -> str:
    if meaning[:1] == (_DECIMAL,):
        return f"a decimal of scale {meaning[1]}"
    return str(meaning[0]) if meaning else str(schema.type)
