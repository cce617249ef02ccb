"""The rows of a state: the files that it names, in its order, which is the same for whoever asks."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from databus.core import CorruptData, Pair
from databus.disk import Location
from databus.stores._notes import StateTable
from databus.stores._parquet import file_of
from databus.stores._tables import table_folder

BATCH_ROWS: Final = 20_000


class StateRows:
    """Reads the tables of states of one physical source. root: of the state store."""

    def __init__(self, root: Location, physical: str) -> None:
        self._root = root
        self._physical = physical

    def batches(
        self, source: str, table: StateTable, skip: int = 0, above: Pair | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of a table but the first `skip`, each time with the number of the first. above: what surely has no
        row above this pair may be left out. Raises `CorruptData` for a file that is not as it was noted.
        """
        folder, start = table_folder(self._root, self._physical, source), 0
        for name, rows in table.files:
            at, start = start, start + rows
            if start <= skip:
                continue
            file = file_of(folder / name)
            if file.rows != rows:
                raise CorruptData(f"{folder / name}: has {file.rows} rows, and the state was noted with {rows}")
            for number, batch in file.batches(max(skip - at, 0), BATCH_ROWS, above):
                yield at + number, batch
