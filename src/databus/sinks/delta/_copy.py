"""A Delta table that is made once, in a folder of its own: rows that are there, and a mirror carried on by changes.

What pipelines do batch by batch is done here by hand, by the same jobs.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from databus.core import Pair
from databus.disk import Location
from databus.flow import (
    Here,
    KeyChoice,
    Stored,
    TableControl,
    TableRows,
    fitted_rows,
    staged_rows,
    write_data_pieces,
    write_passing_file,
)
from databus.schema import TableSchema
from databus.sinks.delta._mirror import Mirror, mirror_schema
from databus.sinks.delta._rewrite_job import Work, run_all
from databus.sinks.delta._table import DeltaTarget, Upkeep

_CRASH_POINTS: Final = ("delta.copy.before_commit", "delta.copy.after_commit")
_PIECE_BYTES: Final = 16 << 20
_FILE_BYTES: Final = 64 << 20  # of rows in memory, which are about as much as a file of a mirror


class DeltaCopy:
    """name: whose rows they are, as the table says of itself."""

    def __init__(self, folder: Location, name: str) -> None:
        self.folder = folder
        self._name = name
        self._target = DeltaTarget(folder, name, f"databus/copy/{name}", Upkeep(), _CRASH_POINTS)
        self._mirror = Mirror(
            self._target,
            key=KeyChoice(),
            on_gap="continue",
            rows_max=1_000_000,
            how_to_reset="Copy it again, into another folder.",
        )

    @property
    def reached(self) -> Pair | None:
        """The last change that is in a copy which was begun before; None if there is none."""
        stored = self._target.stored() if self._target.exists else None
        return None if stored is None else stored.pair

    def begin(self, schema: pa.Schema, rows: Iterable[pa.Table], pair: Pair = (0, 0)) -> int:
        """Make the table of rows, in bounded memory; all up to `pair` are there. Returns how many these are."""
        files = [write_data_pieces(self.folder, schema, pieces) for pieces in _as_files(rows, schema)]
        self._target.create(schema)
        self._target.replace(files, (), Stored(pair))
        return sum(file.rows for file in files)

    def begin_mirror(self, table: TableSchema, rows: Iterable[pa.Table], pair: Pair) -> int:
        """The same of the rows of a mirror."""
        return self.begin(mirror_schema(table), rows, pair)

    def write(self, items: Sequence[TableRows | TableControl]) -> None:
        """Carry the mirror on; items are in order, above all that it has."""
        run_all([self._work(items)], Here())

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(file.rows for file in self._target.live(()))

    def _work(self, items: Sequence[TableRows | TableControl]) -> Work[None]:
        for item in items:
            if isinstance(item, TableControl):
                yield from self._mirror.control(item, Stored(item.pair))
            elif item.rows.num_rows:
                files = (write_passing_file(self.folder, item.rows),)
                staged = staged_rows(item.table, item.rows, files)
                try:
                    yield from self._mirror.commit(staged, item.table.key, Stored(staged.last))
                finally:
                    for file in files:
                        (self.folder / file.name).remove()


def _as_files(rows: Iterable[pa.Table], schema: pa.Schema) -> Iterable[list[pa.Table]]:
    """Rows as the row groups of files; there is at least one file, which may be empty."""
    held: list[pa.Table] = []
    pieces: list[pa.Table] = []
    for row in rows:
        held.append(fitted_rows(row, schema))
        if sum(part.nbytes for part in held) < _PIECE_BYTES:
            continue
        pieces.append(pa.concat_tables(held))
        held = []
        if sum(piece.nbytes for piece in pieces) >= _FILE_BYTES:
            yield pieces
            pieces = []
    if held or not pieces:
        pieces.append(pa.concat_tables(held) if held else schema.empty_table())
    yield pieces
