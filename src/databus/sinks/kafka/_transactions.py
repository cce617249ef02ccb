"""Debezium's transaction metadata: which place each change has in its transaction, and where transactions end.

Every task of a batch has all of its rows before it chooses those of its bucket, so each counts all of them: what this
output writes, behind its filters. What was counted of a transaction that goes on in the next batch is kept in the
bucket's position, which is committed with its rows; so a repeat, or other boundaries of batches, count on exactly.

A transaction that began before the count did is not counted: its changes have no place, and it has no begin or end.
Snapshots' rows are not counted, as in Debezium. Start with `PlacedChanges.counted`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from databus.core import COMMIT_TIMESTAMP, SNAPSHOT, TXID, Pair
from databus.flow import ChangeBatch, Int, RowMask, TableControl, TableRows, pairs_of
from databus.formats import COLLECTION_ORDER, TOTAL_ORDER, TransactionMarks
from databus.wire import is_inside_transaction

PLACE: Final = "\0place"
"""Column with the place of each row among all rows of a batch. No database has a column with such a name."""

_US_A_MS: Final = 1_000


@dataclass(frozen=True)
class OpenTransaction:
    """What was counted of a transaction that goes on: its changes, by `db.table`."""

    scn: int
    txid: str
    ts_ms: int
    """Of its commit."""
    counts: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """As a position holds it."""
        return {"scn": self.scn, "id": self.txid, "ts_ms": self.ts_ms, "data_collections": dict(self.counts)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "OpenTransaction":
        """Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
        counts = {str(name): int(count) for name, count in value["data_collections"].items()}
        return cls(int(value["scn"]), str(value["id"]), int(value["ts_ms"]), counts)


@dataclass(frozen=True)
class TransactionCounts:
    """What is known of the transaction in which a bucket stands."""

    open: OpenTransaction | None = None
    """None if nothing of it was counted yet."""
    is_whole: bool = True
    """Whether all of it was counted that was written; else it has no counts."""


@dataclass(frozen=True)
class CountedChanges:
    """What counting from a place on gives."""

    total: Int
    """For each row of the batch, the place of its change in its transaction; 0 for none."""
    own: Int
    """The same among the changes of its table there."""
    marks: TransactionMarks | None
    after: TransactionCounts
    """What is known at the batch's end."""

    def placed(self, batch: ChangeBatch) -> ChangeBatch:
        """Some rows of the batch, with the places of their changes for the messages' makers."""
        items: list[TableRows | TableControl] = []
        for item in batch.items:
            if isinstance(item, TableControl):
                items.append(item)
                continue
            at = item.rows.column(PLACE).to_numpy()
            rows = item.rows.drop_columns([PLACE]).append_column(TOTAL_ORDER, pa.array(self.total[at]))
            items.append(replace(item, rows=rows.append_column(COLLECTION_ORDER, pa.array(self.own[at]))))
        return replace(batch, items=tuple(items))


@dataclass(frozen=True)
class _Groups:
    """Transactions, in order: those of the changes, and before them the open one."""

    of: Int
    """For each change, the number of its transaction."""
    scns: Int
    """Of each transaction, as are `ids` and `ts_ms`."""
    ids: pa.StringArray
    ts_ms: Int


@dataclass(frozen=True)
class PlacedChanges:
    """The rows of all tables of a batch, one table's behind the other's."""

    scns: Int
    seqs: Int
    tables: Int
    """Numbers in `names`."""
    is_first: RowMask
    """Whether a row is the first of a change."""
    is_logged: RowMask
    """Whether its change belongs to a transaction."""
    names: tuple[str, ...]
    txids: pa.ChunkedArray = field(repr=False)
    times: pa.ChunkedArray = field(repr=False)

    @classmethod
    def of(cls, batch: ChangeBatch, is_first: Callable[[TableRows], RowMask]) -> tuple["PlacedChanges", ChangeBatch]:
        """Those of a batch, and the batch with each row's place. is_first: which rows begin a change."""
        parts = [item for item in batch.items if isinstance(item, TableRows)]
        names = tuple(sorted({item.table.source for item in parts}))
        pairs = [pairs_of(item.rows) for item in parts]
        txids = pa.chunked_array([chunk for item in parts for chunk in item.rows.column(TXID).chunks], pa.string())
        times = [chunk for item in parts for chunk in item.rows.column(COMMIT_TIMESTAMP).chunks]
        read = [item.rows.column(SNAPSHOT).to_numpy() for item in parts]
        made = cls(
            _joined([scns for scns, _ in pairs], np.int64),
            _joined([seqs for _, seqs in pairs], np.int64),
            _joined([np.full(item.rows.num_rows, names.index(item.table.source)) for item in parts], np.int64),
            _joined([is_first(item) for item in parts], np.bool_),
            ~_joined(read, np.bool_) & txids.is_valid().to_numpy(),
            names,
            txids,
            pa.chunked_array(times, pa.timestamp("us", "UTC")),
        )
        return made, made._with_places(batch)

    def _with_places(self, batch: ChangeBatch) -> ChangeBatch:
        items: list[TableRows | TableControl] = []
        begin = 0
        for item in batch.items:
            if not isinstance(item, TableRows):
                items.append(item)
                continue
            places = np.arange(begin, begin := begin + item.rows.num_rows)
            items.append(replace(item, rows=item.rows.append_column(PLACE, pa.array(places))))
        return replace(batch, items=tuple(items))

    def counted(self, after: Pair, known: TransactionCounts, end: Pair) -> CountedChanges:
        """Count what is above `after`, where `known` holds, up to the batch's end."""
        is_above = (self.scns > after[0]) | ((self.scns == after[0]) & (self.seqs > after[1]))
        is_counted = is_above & self.is_first & self.is_logged
        if not known.is_whole:
            is_counted &= self.scns != after[0]
        changes = np.flatnonzero(is_counted)
        changes = changes[np.lexsort((self.seqs[changes], self.scns[changes]))]
        groups = self._groups(changes, known.open)
        names = tuple(sorted({*self.names, *(known.open.counts if known.open else ())}))
        tables = np.array([names.index(name) for name in self.names], np.int64)[self.tables[changes]]
        keys, counts, own = _ranked(groups.of * len(names) + tables, _before(known.open, names))
        totals = np.zeros(len(groups.scns), np.int64)
        np.add.at(totals, keys // max(len(names), 1), counts)
        starts = np.searchsorted(groups.of, np.arange(len(groups.scns)))
        had = sum(known.open.counts.values()) if known.open else 0
        total = np.arange(len(changes)) - starts[groups.of] + 1 + had * (groups.of == 0)
        is_open = bool(len(groups.scns)) and groups.scns[-1] == end[0] and is_inside_transaction(end)
        per_table = _PerTable(keys // max(len(names), 1), keys % max(len(names), 1), counts, names)
        marks = _marks(groups, totals, per_table, begins_open=known.open is not None, ends_open=is_open)
        left_out = not known.is_whole and end[0] == after[0] and is_inside_transaction(end)
        open_ = _open(groups, per_table) if is_open else None
        return CountedChanges(
            self._for_rows(changes, total),
            self._for_rows(changes, own),
            marks,
            TransactionCounts(open_, is_whole=not left_out),
        )

    def _groups(self, changes: Int, known: OpenTransaction | None) -> _Groups:
        scns = self.scns[changes]
        is_start = np.append(True, scns[1:] != scns[:-1])[: len(scns)]
        starts = pa.array(changes[is_start])
        ids, of = self.txids.take(starts).combine_chunks(), np.cumsum(is_start) - 1
        ts_ms = self.times.take(starts).cast(pa.int64()).to_numpy() // _US_A_MS
        scns = scns[is_start]
        if known is None:
            return _Groups(of, scns, ids, ts_ms)
        if len(scns) and scns[0] == known.scn:
            return _Groups(of, scns, ids, ts_ms)
        ids = pa.concat_arrays([pa.array([known.txid], pa.string()), ids])
        return _Groups(of + 1, np.append(known.scn, scns), ids, np.append(known.ts_ms, ts_ms))

    def _for_rows(self, changes: Int, places: Int) -> Int:
        """The places of changes as those of their rows; the second row of a change has its first row's."""
        numbers = np.zeros(len(self.scns), np.int64)
        numbers[changes] = places
        seconds = np.flatnonzero(~self.is_first)
        numbers[seconds] = numbers[seconds - 1]
        return numbers


@dataclass(frozen=True)
class _PerTable:
    """How many changes each transaction has in each table; sorted by both."""

    of: Int
    """Numbers of transactions."""
    tables: Int
    """Numbers in `names`."""
    counts: Int
    names: tuple[str, ...]


def _joined(arrays: list[Any], kind: Any) -> Any:
    return np.concatenate([np.array([], kind), *arrays])


def _before(known: OpenTransaction | None, names: tuple[str, ...]) -> Mapping[int, int]:
    """What was counted before, by the key of `_ranked`: the open transaction is the first one."""
    return {names.index(name): count for name, count in known.counts.items()} if known else {}


def _ranked(keys: Int, before: Mapping[int, int]) -> tuple[Int, Int, Int]:
    """Distinct keys in order, how often each came, and the place of each among those of its key, from 1 on. before: how
    often some came already.
    """
    had = np.array(sorted(before), np.int64)
    distinct, numbers = np.unique(np.concatenate([had, keys]), return_inverse=True)
    counts = np.zeros(len(distinct), np.int64)
    counts[numbers[: len(had)]] = [before[key] for key in had.tolist()]
    of = numbers[len(had) :]
    order = np.argsort(of, kind="stable")
    sizes = np.bincount(of, minlength=len(distinct))
    places = np.empty(len(keys), np.int64)
    places[order] = np.arange(len(keys)) - (np.cumsum(sizes) - sizes)[of[order]] + 1
    return distinct, counts + sizes, places + counts[of]


def _marks(
    groups: _Groups, totals: Int, per_table: _PerTable, *, begins_open: bool, ends_open: bool
) -> TransactionMarks | None:
    """A begin and an end for each transaction; the first had its begin already, the last goes on."""
    count = len(groups.scns)
    of = np.repeat(np.arange(count), 2)
    is_end = np.tile([False, True], count)
    kept = np.arange(int(begins_open), 2 * count - int(ends_open))
    if len(kept) == 0:
        return None
    of, is_end = of[kept], is_end[kept]
    sizes = np.bincount(per_table.of, minlength=count)
    lengths = np.where(is_end, sizes[of], 0)
    starts = np.append(0, np.cumsum(lengths))
    firsts = (np.cumsum(sizes) - sizes)[of]
    chosen = np.repeat(firsts - starts[:-1], lengths) + np.arange(starts[-1])
    names = pa.array(per_table.names, pa.string()).take(pa.array(per_table.tables[chosen]))
    taken = pa.array(of)
    ids, ts_ms = groups.ids.take(taken), groups.ts_ms[of]
    return TransactionMarks(ids, ts_ms, is_end, totals[of], starts, names, per_table.counts[chosen])


def _open(groups: _Groups, per_table: _PerTable) -> OpenTransaction:
    last = len(groups.scns) - 1
    mine = per_table.of == last
    counts = zip(per_table.tables[mine].tolist(), per_table.counts[mine].tolist(), strict=True)
    by_table = {per_table.names[table]: count for table, count in counts}
    return OpenTransaction(int(groups.scns[last]), groups.ids[last].as_py(), int(groups.ts_ms[last]), by_table)
