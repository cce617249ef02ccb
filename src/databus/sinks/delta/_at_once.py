"""Mirrors that the task rewrites which reads their rows, where one task gets all of a batch and few files change.

Before a stage begins the driver says how tables stand that have changed lately (`KnownTable`). Their rows need neither
a file that passes nor a second round of tasks. What a task has made holds for that version of the table alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from databus.core import COMMIT_TIMESTAMP, SNAPSHOT, TXID, CorruptData, Pair
from databus.disk import Location
from databus.flow import (
    AtOnce,
    DataFile,
    Folders,
    TableRows,
    first_pair,
    parted,
    write_marked_file,
    write_passing_file,
)
from databus.sinks.delta._layout import Layout, LiveFile
from databus.sinks.delta._rewrite import bytes_to_read, last_images, rewrite

_UNUSED: Final = frozenset({COMMIT_TIMESTAMP, TXID, SNAPSHOT})  # by a mirror
_TABLES_MAX: Final = 16
_FILES_MAX: Final = 2_000  # of all of them, some 200 KB
READ_BYTES_MAX: Final = 64 << 20
"""Of files that a task rewrites at once, of all tables; more are worth a round of tasks of their own."""


@dataclass(frozen=True)
class KnownTable:
    """A mirror as the driver knows it."""

    version: int
    pair: Pair
    """Up to which it has everything."""
    fingerprint: int
    """Of the rows that it takes."""
    files: tuple[LiveFile, ...]
    layout: Layout


class KnownMirrors:
    """Those that have changed lately, which the next tasks hear of: by full name, the last at the end."""

    def __init__(self) -> None:
        self._tables: dict[str, KnownTable] = {}

    def said(self) -> dict[str, KnownTable]:
        """What tasks are given, in so many bytes that Spark keeps them in memory. Other threads may call it."""
        known: dict[str, KnownTable] = {}
        files = 0
        for name, table in reversed(dict(self._tables).items()):
            files += len(table.files)
            if files > _FILES_MAX:
                break
            known[name] = table
        return known

    def add(self, name: str, table: KnownTable) -> None:
        """Have the next tasks hear of a mirror; not of one of very many files."""
        self.forget(name)
        if len(table.files) <= _FILES_MAX:
            self._tables[name] = table
        if len(self._tables) > _TABLES_MAX:
            self.forget(next(iter(self._tables)))

    def forget(self, name: str) -> None:
        """Have tasks hear nothing of it."""
        self._tables.pop(name, None)

    def clear(self) -> None:
        """Forget all."""
        self._tables.clear()


@dataclass
class MirrorWriter:
    """Writes a mirror's rows for the tasks that merge them, or merges them itself; see `TableWriter`."""

    folders: Folders
    rows_max: int
    """Of a merge."""
    known: Mapping[str, KnownTable]
    """Tables by full name."""
    _read_bytes: int = 0  # by the one task that it has travelled to

    def write(self, name: str, rows: TableRows) -> list[DataFile]:
        """See `PartWriter.write`."""
        needed = rows.rows.select([column for column in rows.rows.column_names if column not in _UNUSED])
        folder = self._folder_of(name)
        return [write_passing_file(folder, part) for part in parted(needed, self.rows_max)]

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
        folder = self._folder_of(name)
        try:
            write = partial(write_marked_file, folder, group_rows_max=table.layout.group_rows_max)
            done = rewrite(table.files, images, table.layout, folder, write)
        except CorruptData:  # others have arranged the table's files since, and removed these; the driver sees which
            return None
        return AtOnce(table.version, tuple(done.added), tuple(done.removed))

    def _folder_of(self, name: str) -> Location:
        physical, _, source = name.partition("/")
        return self.folders.of(physical, source)
