"""The rows of a state: the files that it names, in its order, which is the same for whoever asks."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from databus.core import CorruptData, Pair
from databus.disk import Location
from databus.stores._notes import StateTable
from databus.stores._parquet import StoredFile, StoredGroup, file_of
from databus.stores._skipping import RowsWanted
from databus.stores._tables import table_folder

BATCH_ROWS: Final = 20_000


class StateRows:
    """Reads the tables of states of one physical source. root: of the state store."""

    def __init__(self, root: Location, physical: str) -> None:
        self._root = root
        self._physical = physical

    def batches(
        self,
        source: str,
        table: StateTable,
        skip: int = 0,
        above: Pair | None = None,
        wanted: RowsWanted | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of a table but the first `skip`, each time with the number of the first. above, wanted: what surely
        has no row above this pair may be left out, and what surely has none that is wanted.

        Raises `CorruptData` for a file that is not as it was noted.
        """
        for at, file in self._files(source, table, skip):
            for number, batch in file.batches(max(skip - at, 0), BATCH_ROWS, above, wanted):
                yield at + number, batch

    def groups(
        self,
        source: str,
        table: StateTable,
        skip: int = 0,
        above: Pair | None = None,
        wanted: RowsWanted | None = None,
    ) -> Iterator[tuple[int, StoredGroup]]:
        """The row groups that `batches` would read, each with the number of its first row."""
        for at, file in self._files(source, table, skip):
            start, held = at, file.held(wanted) if wanted is not None else [True] * len(file.groups)
            for group, is_held in zip(file.groups, held, strict=True):
                if is_held and start + group.rows > skip and (above is None or group.last > above):
                    yield start, group
                start += group.rows

    def _files(self, source: str, table: StateTable, skip: int) -> Iterator[tuple[int, StoredFile]]:
        """The files that have rows behind the first `skip`, each with the number of its first."""
        folder, start = table_folder(self._root, self._physical, source), 0
        for name, rows in table.files:
            at, start = start, start + rows
            if start > skip:
                file = file_of(folder / name, table.digests.get(name, ""))
                if file.rows != rows:
                    raise CorruptData(f"{folder / name}: has {file.rows} rows, and the state was noted with {rows}")
                yield at, file
