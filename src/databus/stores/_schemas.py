"""The definitions of all tables of a store, with the numbers by which the relay's frames name them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from databus.core import ControlKind, CorruptData, Pair
from databus.log import SchemaStore, SchemaVersion
from databus.schema import TableSchema
from databus.stores._log_store import LoggedControl


class KnownSchemas(SchemaStore):
    """Those that were noted; no others get a number here, since the relay alone gives them."""

    def __init__(self, physical: str, versions: Sequence[SchemaVersion]) -> None:
        super().__init__(Path(), physical, {}, versions)

    def register(self, tables: Iterable[TableSchema]) -> None:
        """Raises `CorruptData`: a frame cannot name a definition that the relay has given no number."""
        names = ", ".join(sorted(table.source for table in tables))
        raise CorruptData(f"{self.physical}: the notes of the store lack a definition of {names}")


def definition_at(
    source: str, pair: Pair, controls: Sequence[LoggedControl], schemas: SchemaStore
) -> TableSchema | None:
    """The definition in force at a pair: what the last control before it names, or the first one after it. Where there
    is none, it has not changed since. A table that is made again after a `drop` may have another one, of which no
    control tells. controls: all of the source's, in order.
    """
    before = [control for control in controls if control.pair <= pair]
    if before and before[-1].kind is not ControlKind.DROP:
        return before[-1].table
    first = next(iter(controls[len(before) :]), None)
    if first is not None and first.kind is not ControlKind.SCHEMA:
        return first.table
    previous = None if first is None else first.body.get("previous")
    return schemas.definition(int(previous, 16)) if previous else schemas.definition_now(source)
