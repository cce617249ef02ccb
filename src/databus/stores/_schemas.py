"""The definitions of all tables of a store, with the numbers by which the relay's frames name them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from databus.core import CorruptData
from databus.log import SchemaStore, SchemaVersion
from databus.schema import TableSchema


class KnownSchemas(SchemaStore):
    """Those that were noted; no others get a number here, since the relay alone gives them."""

    def __init__(self, physical: str, versions: Sequence[SchemaVersion]) -> None:
        super().__init__(Path(), physical, {}, versions)

    def register(self, tables: Iterable[TableSchema]) -> None:
        """Raises `CorruptData`: a frame cannot name a definition that the relay has given no number."""
        names = ", ".join(sorted(table.source for table in tables))
        raise CorruptData(f"{self.physical}: the notes of the store lack a definition of {names}")
