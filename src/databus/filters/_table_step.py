"""What one filter makes of one table: of its definition, its rows, and the changes of its schema. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from databus.formats import from_json_value, to_json_value
from databus.schema import ColumnOrigin, SchemaChange, TableSchema, forms_of, origins, sink_schema, widens

_INTEGERS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class TableStep:
    """A filter over one table."""

    before: TableSchema
    """The table's definition."""
    after: TableSchema
    """The definition of what comes out."""
    apply: Callable[[pa.Table], pa.Table]
    """Makes rows from rows, both in sink types and with the bus's columns."""
    made_of: Mapping[str, str]
    """For each column of `after`, the column of `before` that it is made of."""
    made_by: Mapping[str, Any] = field(default_factory=dict)
    """How a column of `after` is made, where it is not the column of `before` itself."""
    reads: frozenset[str] = frozenset()
    """The columns that decide whether a row passes."""
    selects: bool = False
    """Whether it drops rows."""
    judged_by: Any = None
    """What else decides whether a row passes."""
    rests_in_snapshots: bool = False
    """Whether rows pass as they are while a snapshot of the table is open."""
    marks: frozenset[str] = frozenset()
    """Columns that say what happened to a row; rows may not be chosen by them."""

    @classmethod
    def unchanged(cls, table: TableSchema) -> "TableStep":
        """Of a filter that does nothing to this table."""
        return cls(table, table, lambda rows: rows, {name: name for name in table.names})


def changed_by(old: TableStep | None, new: TableStep, change: SchemaChange) -> tuple[SchemaChange, bool]:
    """A change of the schema as it is seen behind a filter, and whether that says all.

    old, new: the filter over the definitions before and after; `old` is None where that definition is unknown. Where
    the change does not say all, a copy has rows that the filter chose, or made, by another meaning of a column: the
    table has to be read again.
    """
    if old is None:
        return replace(change, before=None, after=new.after, renamed={}, fill={}), False
    by_column = origins({column.name: column.type for column in old.before.columns}, [change])
    renamed: dict[str, str] = {}
    fill: dict[str, Any] = {}
    is_exact = old.judged_by == new.judged_by
    is_exact &= all(_is_judged_alike(name, by_column, old) for name in old.reads | new.reads)
    for name, column in new.made_of.items():
        origin = by_column[column]
        if origin.column is None:
            is_exact &= origin.is_known
            if origin.value is not None:
                fill[name] = _filled(new, name, column, origin.value)
            continue
        held = [made for made, source in old.made_of.items() if source == origin.column]
        if not held:
            is_exact = False
            continue
        old_name = name if name in held else held[0]
        if old_name != name:
            renamed[old_name] = name
        is_exact &= _is_made_alike(old.made_by.get(old_name), new.made_by.get(name), origin)
    return replace(change, before=old.after, after=new.after, renamed=renamed, fill=fill), is_exact


def schema_body(body: Mapping[str, Any], change: SchemaChange, *, hides: bool) -> dict[str, Any]:
    """The body of a `schema` control as the change is seen behind filters. hides: do not show the DDL, which may name
    what they hide.
    """
    return {
        **body,
        "table": change.after.to_json(),
        "previous": None if change.before is None else f"{change.before.fingerprint:016x}",
        "renamed": dict(change.renamed),
        "fill": dict(change.fill),
        "ddl": None if hides else body.get("ddl"),
    }


def previous_of(body: Mapping[str, Any]) -> int | None:
    """The fingerprint of the definition before a `schema` control; None where the table was unknown."""
    previous = body.get("previous")
    return None if previous is None else int(str(previous), 16)


def _is_judged_alike(name: str, by_column: Mapping[str, ColumnOrigin], old: TableStep) -> bool:
    """Whether rows from before a change were judged by the value that the column has in them now."""
    origin = by_column.get(name)
    if origin is None:  # lost, unless it was judged as missing and is missing still
        return name in old.reads and name not in old.before.names
    if origin.column is None:  # it was judged as missing, which is NULL, unless the filter let it be
        return origin.is_known and origin.value is None and name in old.reads and name not in old.before.names
    return origin.is_still(name) and _is_widened(origin)


def _is_made_alike(old: Any, new: Any, origin: ColumnOrigin) -> bool:
    """Whether values made before a change of their column are what would be made of them now."""
    return bool(old == new) and (new is None or len(origin.types) == 1 or set(origin.types) <= set(_INTEGERS))


def _is_widened(origin: ColumnOrigin) -> bool:
    return all(widens(one, other) for one, other in zip(origin.types[:-1], origin.types[1:], strict=True))


def _filled(step: TableStep, name: str, column: str, value: Any) -> Any:
    """What a column of what comes out holds where the table's column holds a value, both in JSON form."""
    if name not in step.made_by:
        return value
    schema = sink_schema(step.before)
    kind = step.before.column(column).type
    row = {field_name: pa.nulls(1, schema.field(field_name).type) for field_name in schema.names}
    row[column] = pa.array([from_json_value(value, kind)], forms_of(kind).arrow).cast(schema.field(column).type)
    return to_json_value(step.apply(pa.table(row)).column(name)[0].as_py())
