"""Controls: what consumers get when a statement of the log changes a captured table. Pure, but for `CapturedTables`."""

from collections.abc import Iterator
from typing import Any

from databus.core import ControlKind, UnsupportedFeature, source_name
from databus.formats import to_json_value
from databus.schema import TableSchema
from databus.sources.mysql._captured_tables import CapturedTables, TableSelection
from databus.sources.mysql._charsets import shown
from databus.sources.mysql.tables import Altered, Created, Dropped, TableEvent, Truncated, Unknown


def is_captured(event: TableEvent, selection: TableSelection) -> bool:
    """Whether that is about a table whose rows are captured."""
    match event:
        case Created(after) | Altered(_, after):
            return selection.selects(after.database, after.name)
        case Dropped(before) | Truncated(before):
            return selection.selects(before.database, before.name)
        case Unknown(_, _, tables, _):
            return any(selection.selects(*name) for name in tables)


def controls_of(
    event: TableEvent, tables: CapturedTables, physical: str
) -> Iterator[tuple[ControlKind, TableSchema, dict[str, Any]]]:
    """The controls for an event of a captured table: kind, table and body of each."""
    match event:
        case Dropped(before, _):
            known = tables.in_force.pop(before.source, None)
            if known is not None:
                yield ControlKind.DROP, known, {"kind": ControlKind.DROP, "source": before.source}
        case Truncated(definition, _):
            known = tables.in_force.get(definition.source)
            if known is not None:
                yield ControlKind.TRUNCATE, known, {"kind": ControlKind.TRUNCATE, "source": definition.source}
        case Created(after, ddl, is_empty):
            known, table = tables.redefine(after)
            if known is not None or not is_empty:
                yield ControlKind.SCHEMA, table, schema_body(table, known, ddl, 1 if is_empty else 3)
        case Altered():
            selection = tables.selection
            event = event.without(selection.excluded(event.after))
            event = event.as_text(selection.texts(event.before), selection.texts(event.after))
            known, table = tables.redefine(event.after)
            if (known is not None and known.fingerprint == table.fingerprint and event.number == 1) or known is None:
                return  # an index or a comment; or no consumer knows the table yet
            body = schema_body(table, known, event.ddl, event.number)
            body["renamed"] = dict(event.renamed)
            body["fill"] = {name: to_json_value(value) for name, value in event.fill.items() if name in table.names}
            yield ControlKind.SCHEMA, table, body
        case Unknown(ddl, why, named_tables, is_all):
            named = ", ".join(source_name(*name) for name in named_tables)
            raise UnsupportedFeature(
                f"{physical}: a statement may have changed {named} and is not understood ({why}): "
                f"{shown(ddl[:500])!r}. {_mend(is_all=is_all)}"
            )


def schema_body(table: TableSchema, known: TableSchema | None, ddl: str, level: int) -> dict[str, Any]:
    return {
        "kind": ControlKind.SCHEMA,
        "source": table.source,
        "ddl": shown(ddl),
        "class": level,
        "table": table.to_json(),
        "previous": None if known is None else f"{known.fingerprint:016x}",
        "renamed": {},
        "fill": {},
    }


def _mend(*, is_all: bool) -> str:
    skip = "`databus skip` it and have the tables read again"
    if is_all:
        return f"Report it; to go on, {skip}, or set `unknown_ddl: reread` and `on_class3: resnapshot`"
    return f"Report it; to go on, {skip}"
