"""Made-up changes: pure functions from (options, seed, transaction numbers) to rows, without a Python object a row.

The changes of a table run in cycles of `inserts + updates + deletes`. A cycle inserts keys of its own, then updates
some of them round robin, then deletes the first ones; so each change is a function of its number in the table, and
so is what a copy holds after any transaction. Changes of a transaction go to the tables in turn.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import ChangeType
from databus.schema import Column, TableSchema, forms_of, frame_schema

Int = npt.NDArray[np.int64]

_POOL: Final = 1024
_NULL_EVERY: Final = 17
_NAME_CHARS: Final = 16
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer: well-spread bits from counters (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _bits(seed: int, column: int, keys: Int, versions: Int) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        start = np.uint64((seed * 0x9E3779B97F4A7C15 + column * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF)
        counter = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + versions.astype(np.uint64)
        return _mix(counter + start)


def _pool(seed: int, chars: int) -> pa.StringArray:
    raw = _mix(np.arange(_POOL * chars, dtype=np.uint64) + np.uint64(seed)) % np.uint64(16)
    text = _HEX[raw.astype(np.intp)].tobytes().decode()
    return pa.array([text[i * chars : (i + 1) * chars] for i in range(_POOL)], pa.string())


@dataclass(frozen=True)
class Shares:
    """How a cycle of changes is made up."""

    inserts: int
    updates: int
    deletes: int

    @property
    def length(self) -> int:
        """Changes in a cycle."""
        return self.inserts + self.updates + self.deletes


class TableMaker:
    """Makes the rows of one table."""

    def __init__(self, table: TableSchema, shares: Shares, seed: int, row_bytes: int, *, nulls: bool) -> None:
        self.table = table
        self.schema = frame_schema(table)
        self._shares = shares
        self._seed = seed
        self._nulls = nulls
        self._names = _pool(seed, _NAME_CHARS)
        texts = [c for c in table.columns[1:] if c.type in ("string", "binary")]
        fixed = 8 * (len(table.columns) - len(texts)) + _NAME_CHARS * max(len(texts) - 1, 0)
        self._padded = texts[-1].name if texts else ""
        self._padding = _pool(seed + 1, max(row_bytes - fixed, 1))

    def change(self, index: Int) -> tuple[Int, Int, Int]:
        """(kind, key, version after it) of the changes with these numbers; kind 1 insert, 3 update, 4 delete."""
        shares = self._shares
        cycle, at = np.divmod(index, shares.length)
        is_insert = at < shares.inserts
        is_delete = at >= shares.inserts + shares.updates
        update = at - shares.inserts
        slot = np.where(
            is_insert, at, np.where(is_delete, update - shares.updates, update % np.int64(max(shares.inserts, 1)))
        )
        done = np.where(is_insert, 0, self._updates_of(slot))
        version = np.where(is_insert | is_delete, done, update // max(shares.inserts, 1) + 1)
        kind = np.where(
            is_insert, ChangeType.INSERT, np.where(is_delete, ChangeType.DELETE, ChangeType.UPDATE_POSTIMAGE)
        )
        return kind.astype(np.int64), cycle * shares.inserts + slot, version

    def _updates_of(self, slot: Int) -> Int:
        """How many updates a whole cycle makes of its key in this slot."""
        return (self._shares.updates - slot + self._shares.inserts - 1) // self._shares.inserts

    def columns(self, keys: Int, versions: Int) -> list[pa.Array]:
        """The table's columns for rows with these keys in these versions."""
        made: list[pa.Array] = [pa.array(keys, pa.int64()).cast(forms_of(self.table.columns[0].type).arrow)]
        for number, column in enumerate(self.table.columns[1:], 1):
            bits = _bits(self._seed, number, keys, versions)
            made.append(self._values(column, bits))
        return made

    def _values(self, column: Column, bits: npt.NDArray[np.uint64]) -> pa.Array:
        arrow = forms_of(column.type).arrow
        mask = (bits >> np.uint64(32)) % np.uint64(_NULL_EVERY) == 0 if self._nulls and column.nullable else None
        if column.type in ("string", "binary"):
            pool = self._padding if column.name == self._padded else self._names
            taken = pool.take(pa.array((bits % np.uint64(_POOL)).astype(np.int32), mask=mask))
            return taken.cast(arrow)
        return pa.array(_numbers(column.type, bits), mask=mask).cast(arrow)

    def live_after(self, changes: int) -> tuple[Int, Int]:
        """(keys, versions) of the rows that a copy holds after this many changes, by key."""
        shares = self._shares
        cycles, rest = divmod(changes, shares.length)
        whole = np.arange(cycles * shares.inserts, dtype=np.int64)
        slot = whole % shares.inserts
        keep = slot >= shares.deletes
        index = np.arange(cycles * shares.length, cycles * shares.length + rest, dtype=np.int64)
        kind, key, version = self.change(index)
        tail: dict[int, int] = {}
        for last_kind, last_key, last_version in zip(kind.tolist(), key.tolist(), version.tolist(), strict=True):
            if last_kind == ChangeType.DELETE:
                tail.pop(last_key, None)
            else:
                tail[last_key] = last_version
        keys = np.concatenate([whole[keep], np.array(sorted(tail), np.int64)])
        versions = np.concatenate(
            [self._updates_of(slot)[keep], np.array([tail[key] for key in sorted(tail)], np.int64)]
        )
        return keys, versions


def _numbers(type_name: str, bits: npt.NDArray[np.uint64]) -> Any:
    """Numbers of a type, spread over its range where that is finite."""
    if type_name == "bool":
        return (bits & np.uint64(1)).astype(bool)
    if type_name.startswith(("int", "uint")):
        return bits.astype(np.dtype(type_name))
    if type_name.startswith("float"):
        return ((bits >> np.uint64(16)).astype(np.float64) / 4096.0).astype(np.dtype(type_name))
    if type_name.startswith("decimal"):
        arrow = forms_of(type_name).arrow
        whole = min(arrow.precision - arrow.scale, 18)
        units = pa.array((bits % np.uint64(10**whole)).astype(np.int64))
        return units.cast(pa.decimal128(38, arrow.scale) if arrow.scale < 19 else pa.decimal128(38, 19))
    if type_name == "date":
        return (bits % np.uint64(40_000)).astype(np.int32)
    return (bits % np.uint64(4_000_000_000_000_000)).astype(np.int64)  # microseconds: until 2096
