"""Controls that deal keys anew: after them a key may belong to another partition, or be written otherwise."""

from collections.abc import Callable

from databus.client._window import ControlEvent
from databus.core import ControlKind, DatabusError
from databus.schema import TableSchema, frame_schema, key_form


def deals_keys_anew(control: ControlEvent, table_of: Callable[[int], TableSchema]) -> bool:
    """Whether behind the control rows of its table may be of other partitions. table_of: a table by its fingerprint."""
    previous = control.body.get("previous")
    if control.kind is not ControlKind.SCHEMA or previous is None:
        return False
    try:
        before = table_of(int(previous, 16) if isinstance(previous, str) else int(previous))
    except DatabusError:
        return True  # it cannot be told: the others are waited for once too often
    renamed = dict(control.body.get("renamed") or {})
    key = tuple(renamed.get(name, name) for name in before.key)
    return key != tuple(control.table.key) or _forms(before) != _forms(control.table)


def _forms(table: TableSchema) -> list[str]:
    schema = frame_schema(table)
    return [key_form(schema.field(name).type) for name in table.key]
