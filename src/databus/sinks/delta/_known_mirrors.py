"""Mirrors that have changed lately, as the next tasks are told of them: see `KnownTable`."""

from typing import Final

from databus.flow import KnownTable

_TABLES_MAX: Final = 16
_FILES_MAX: Final = 2_000  # of all of them, some 200 KB


class KnownMirrors:
    """By full name, those that changed last at the end."""

    def __init__(self) -> None:
        self._tables: dict[str, KnownTable] = {}

    def said(self) -> dict[str, KnownTable]:
        """What tasks are told, in so many bytes that Spark keeps them in memory. Other threads may call it."""
        said: dict[str, KnownTable] = {}
        files = 0
        for name, table in reversed(dict(self._tables).items()):
            files += len(table.files)
            if files > _FILES_MAX:
                break
            said[name] = table
        return said

    def add(self, name: str, table: KnownTable) -> None:
        """Have the next tasks told of a mirror; not of one of very many files."""
        self.forget(name)
        if len(table.files) <= _FILES_MAX:
            self._tables[name] = table
        if len(self._tables) > _TABLES_MAX:
            self.forget(next(iter(self._tables)))

    def forget(self, name: str) -> None:
        """Have tasks told nothing of it."""
        self._tables.pop(name, None)

    def clear(self) -> None:
        """Forget all."""
        self._tables.clear()
