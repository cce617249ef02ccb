"""Mirrors that the task rewrites which reads their rows, where one task gets all of a batch and few files change.

Before a stage begins the driver says how tables stand that have changed lately (`KnownTable`). Their rows need neither
a file that passes nor a second round of tasks. What a task has made holds for that version of the table alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from databus.core import CorruptData, Pair
from databus.flow._batch import AtOnce, TableRows
from databus.flow._data_file import DataFile, write_marked_file
from databus.flow._folders import Folders, PassingWriter
from databus.flow._layout import Layout, LiveFile
from databus.flow._pairs import first_pair
from databus.flow._rewrite import bytes_to_read, last_images, rewrite

READ_BYTES_MAX: Final = 64 << 20
"""Of files that a task rewrites at once, of all tables; more are worth a round of tasks of their own."""


@dataclass(frozen=True)
class KnownTable:
    """A mirror as the driver knows it. pair: up to which it has everything. fingerprint: of the rows that it takes."""

    version: int
    pair: Pair
    fingerprint: int
    files: tuple[LiveFile, ...]
    layout: Layout


@dataclass
class MirrorWriter:
    """Writes a mirror's rows for the tasks that merge them, or merges them itself; see `TableWriter`.

    rows_max: of a merge. known: tables by full name.
    """

    folders: Folders
    rows_max: int
    known: Mapping[str, KnownTable]
    _read_bytes: int = 0  # by the one task that it has travelled to

    def write(self, name: str, rows: TableRows) -> list[DataFile]:
        """See `PartWriter.write`."""
        return PassingWriter(self.folders, self.rows_max).write(name, rows)

    def write_at_once(self, name: str, rows: TableRows) -> AtOnce | None:
        """See `TableWriter.write_at_once`."""
        table = self.known.get(name)
        if table is None or table.fingerprint != rows.table.fingerprint or rows.rows.num_rows > self.rows_max:
            return None
        if first_pair(rows.rows) <= table.pair:
            return None
        images = last_images(rows.rows, table.layout)
        size = bytes_to_read(table.files, images, table.layout)
        if self._read_bytes + size > READ_BYTES_MAX:
            return None
        self._read_bytes += size
        physical, _, source = name.partition("/")
        folder = self.folders.of(physical, source)
        try:
            write = partial(write_marked_file, folder, group_rows_max=table.layout.group_rows_max)
            done = rewrite(table.files, images, table.layout, folder, write)
        except CorruptData:  # others have arranged the table's files since, and removed these; the driver sees which
            return None
        return AtOnce(table.version, tuple(done.added), tuple(done.removed))
