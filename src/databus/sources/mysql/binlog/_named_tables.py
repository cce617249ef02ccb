"""The tables that the log has named, in the arrays by which the scan kernel recognises a table map."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from databus.core import LimitExceeded
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._table_map import TableMap, parse_table_map

_ENTRIES: Final = 1024
_POOL_BYTES: Final = 1 << 20
_NOT_WANTED: Final = -1


class KnownTables:
    """Table ids and the bytes of their maps.

    A server gives a table a new id whenever it opens it again, so ids are a cache that is emptied when it is full,
    while a slot belongs to the bytes of a map: the same bytes under another id are the same slot.
    """

    def __init__(self, wants: Callable[[TableMap], bool], table_maps_max: int, *, is_mariadb: bool = False) -> None:
        self.tables: list[TableMap] = []
        self.entries: NDArray[np.int64]
        self.hashed: NDArray[np.int64]
        self.pool: NDArray[np.uint8]
        self._wants = wants
        self._is_mariadb = is_mariadb
        self._table_maps_max = table_maps_max
        self._slots: dict[bytes, tuple[int, int]] = {}  # bytes of a map -> slot (or not wanted), columns
        self._slot_of_wanted: dict[bytes, int] = {}
        self._contents: list[bytes] = []  # of each entry
        self._entry_of: dict[int, int] = {}
        self._pool_used = 0
        self._empty(_ENTRIES, _POOL_BYTES)

    def learn(self, table_id: int, content: bytes, state: NDArray[np.int64]) -> None:
        """Let this table id stand for a map with these bytes. Raises `ValueError` if they are malformed."""
        slot, columns = self._slots.get(content) or self._judge(content)
        if len(self._contents) == len(self.entries) or self._pool_used + len(content) > len(self.pool):
            self._make_room(len(content), int(state[s.TX_NUMBER]))
        self._note(table_id, content, slot, columns, stamp=-1)
        state[s.LAST_TABLE] = -1

    def slot_of(self, content: bytes) -> int:
        """The slot of a map with these bytes; below 0 if the table is not captured. Raises `ValueError`."""
        return (self._slots.get(content) or self._judge(content))[0]

    def _judge(self, content: bytes) -> tuple[int, int]:
        table = parse_table_map(content, is_mariadb=self._is_mariadb)
        slot = _NOT_WANTED
        if self._wants(table):
            slot = self._slot_of_wanted.setdefault(content, len(self.tables))
            if slot == len(self.tables):
                self.tables.append(table)
        if len(self._slots) >= self._table_maps_max and content not in self._slots:
            self._slots = {known: at for known, at in self._slots.items() if at[0] >= 0 or known in self._contents}
            if len(self._slots) >= self._table_maps_max:
                raise LimitExceeded(
                    f"{table.source}: more than table_maps_max ({self._table_maps_max}) different definitions of "
                    f"captured tables were "
                    f"met since capture started; start it again, or raise the limit"
                )
        self._slots[content] = slot, len(table.types)
        return self._slots[content]

    def _note(self, table_id: int, content: bytes, slot: int, columns: int, stamp: int) -> None:
        entry = self._entry_of.get(table_id)
        if entry is None:
            entry = self._entry_of[table_id] = len(self._contents)
            self._contents.append(content)
            mask = len(self.hashed) - 1
            at = (table_id * 0x9E3779B1 >> 7) & mask
            while self.hashed[at]:
                at = (at + 1) & mask
            self.hashed[at] = entry + 1
        self._contents[entry] = content
        at = self._pool_used
        self.pool[at : at + len(content)] = np.frombuffer(content, np.uint8)
        self._pool_used = at + len(content)
        self.entries[entry] = (table_id, slot, stamp, at, len(content), columns)

    def _make_room(self, length: int, stamp: int) -> None:
        """Forget the ids that the open transaction does not use; make the arrays larger if that was no help."""
        kept = [
            (int(self.entries[entry, s.TT_ID]), content)
            for entry, content in enumerate(self._contents)
            if self.entries[entry, s.TT_STAMP] == stamp
        ]
        needed = sum(len(content) for _, content in kept) + length
        self._empty(
            len(self.entries) * (2 if len(kept) * 2 > len(self.entries) else 1),
            max(len(self.pool), 2 * needed),
        )
        for table_id, content in kept:
            self._note(table_id, content, *self._slots[content], stamp=stamp)

    def _empty(self, entries: int, pool_bytes: int) -> None:
        self.entries = np.zeros((entries, s.TT_COLUMNS), np.int64)
        self.hashed = np.zeros(4 * entries, np.int64)
        self.pool = np.empty(pool_bytes, np.uint8)
        self._contents = []
        self._entry_of = {}
        self._pool_used = 0
