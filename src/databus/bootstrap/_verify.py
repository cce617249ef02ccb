"""Whether each state is what the log makes of the state before it: by counts and hashes per bucket of keys.

Of a row only hashes are kept, in files beside, so memory is that of a bucket. Start with `verified`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.bootstrap._net_changes import ColumnStep, step_of, through
from databus.bootstrap._shares import RowShares
from databus.bootstrap._table_past import TablePast
from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, ControlKind, CorruptData, Pair
from databus.flow import TableControl, TableRows, fitted_rows, user_rows_schema
from databus.schema import NEEDS_SNAPSHOT, TableSchema, key_bytes, key_hashes, sink_schema
from databus.stores import StateNote, user_rows

_BUCKETS: Final = 16
_BUCKET_ROWS: Final = 1_000_000
_PUTS: Final = (ChangeType.INSERT.label, ChangeType.UPDATE_POSTIMAGE.label)
_REMOVED: Final = np.uint64(0)

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class VerifiedState:
    """What came of one state of a table."""

    name: str
    """The table's full name."""
    scn: int
    rows: int
    is_equal: bool | None
    """None where there is nothing to compare it with."""
    reason: str = ""
    """What differs, or why it was not compared."""


def verified(past: TablePast) -> Iterator[VerifiedState]:
    """Compare each state of a table, the oldest first, with the fold of the log over the one before."""
    before: StateNote | None = None
    for state in past.look.kept.states:
        table = state.tables.get(past.source)
        if table is None or past.source in state.incomplete:
            before = None  # the next state begins with a snapshot
            continue
        scn = state.position.scn
        try:
            verified_state = _compared(past, before, state)
        except CorruptData as error:
            verified_state = VerifiedState(past.name, scn, table.rows, is_equal=False, reason=str(error))
        yield verified_state
        before = state


def _compared(past: TablePast, before: StateNote | None, state: StateNote) -> VerifiedState:
    table = state.tables[past.source]
    after = (0, -1) if before is None else before.position.pair
    said = past.name, state.position.scn, table.rows
    if before is None and not past.goes_back_to_begin:
        return VerifiedState(*said, is_equal=None, reason="is the first, and the log store begins later than the table")
    if before is not None and after < past.look.kept.head.low and after != state.position.pair:
        return VerifiedState(*said, is_equal=None, reason="the log store no longer has all since the state before")
    fold = _Fold(past, after, state.position.pair, table.table)
    older = 0 if before is None else before.tables[past.source].rows
    count = max(-(-(older + past.rows_between(after, state.position.pair)) // _BUCKET_ROWS), _BUCKETS)
    wanted = fold.sums(count, _rows(past, before))
    there = _sums(_rows(past, state), table.table, count)
    bad = np.flatnonzero((wanted != there).any(axis=0)).tolist()
    if not bad:
        return VerifiedState(*said, is_equal=True)
    counts = "; ".join(
        f"bucket {at} of {count}: {wanted[0, at]} rows by the log, {there[0, at]} here" for at in bad[:5]
    )
    return VerifiedState(*said, is_equal=False, reason=f"is not what the log makes of the state before. {counts}")


def _rows(past: TablePast, state: StateNote | None) -> Iterator[pa.Table]:
    """The rows of a state as users see them, inserts all; none of none."""
    if state is not None:
        table = state.tables[past.source]
        schema = user_rows_schema(table.table)
        at = schema.get_field_index(CHANGE_TYPE)
        for _, batch in past.look.stores.batches(past.source, table, 0, None, None):
            rows = user_rows(table.table, pa.Table.from_batches([batch]))
            yield rows.set_column(at, schema.field(at), pa.repeat(ChangeType.INSERT.label, rows.num_rows))


def _sums(parts: Iterable[pa.Table], table: TableSchema, count: int) -> Hashes:
    """By bucket, how many rows there are, and the sum of their hashes."""
    sums = np.zeros((2, count), np.uint64)
    for rows in parts:
        buckets = (_key_hashes(rows, table) % np.uint64(count)).astype(np.int64)
        sums[0] += np.bincount(buckets, minlength=count).astype(np.uint64)
        np.add.at(sums[1], buckets, _row_hashes(rows, table))
    return sums


class _Fold:
    """A range of a table's log over a state. table: the definition behind it."""

    def __init__(self, past: TablePast, after: Pair, until: Pair, table: TableSchema) -> None:
        self._past, self._after, self._until, self._table = past, after, until, table
        self._steps: list[ColumnStep | None] = []  # None: no row from before stays
        self._floor: Pair = (0, -1)  # what is below, and not put since, is gone
        before = past.definition_at(after)  # what the older state's rows are in
        logged = [control for control in past.look.kept.controls(past.source) if after < control.pair <= until]
        for entry in logged:
            control = TableControl(entry.table, entry.kind, entry.pair, entry.body)
            if control.kind is ControlKind.SCHEMA:
                is_read_again = int(control.body.get("class", 1)) >= NEEDS_SNAPSHOT
                self._floor = control.pair if is_read_again else self._floor
                self._steps.append(None if is_read_again else step_of(control, before))
            elif control.kind in (ControlKind.TRUNCATE, ControlKind.DROP):
                self._floor = control.pair
                if control.kind is ControlKind.DROP:  # it may be made again with other columns
                    self._steps.append(None)
            elif control.kind is ControlKind.SNAPSHOT_END and control.body.get("complete", False):
                scn, seq = control.body["begin"]
                self._floor = max(self._floor, (int(scn), int(seq)))
            before = past.definition_at(control.pair)

    def sums(self, count: int, older: Iterable[pa.Table]) -> Hashes:
        """What `_sums` is to say of what comes of it. older: the rows of the state before."""
        sums = np.zeros((2, count), np.uint64)
        with RowShares() as shares:
            for rows in older:
                self._add(shares, count, self._made(rows, 0))
            passed = 0
            for item in self._past.items(self._after, self._until):
                if isinstance(item, TableRows):
                    self._add(shares, count, self._made(item.rows, passed))
                else:
                    passed += item.kind in (ControlKind.SCHEMA, ControlKind.DROP)
            for number, images in shares.each():
                last = _last(images)
                hashes = images.column("row").to_numpy()[last]
                sums[0, number] = np.count_nonzero(hashes != _REMOVED)
                sums[1, number] = hashes.sum(dtype=np.uint64)
        return sums

    def _made(self, rows: pa.Table, passed: int) -> pa.Table:
        """Rows in the last definition; what is gone by then lacks nothing but its values."""
        steps = self._steps[passed:]
        is_put = self._puts(rows)
        if None in steps:  # their columns need not fit any more
            rows, is_put = _keys_alone(rows, self._table), np.zeros(rows.num_rows, bool)
        else:
            rows = through(rows, [step for step in steps if step is not None])
        return rows.append_column("is_put", pa.array(is_put))

    def _puts(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        scns, seqs = rows.column(COMMIT_VERSION).to_numpy(), rows.column(SEQ).to_numpy()
        stays: npt.NDArray[np.bool_] = (scns > self._floor[0]) | ((scns == self._floor[0]) & (seqs >= self._floor[1]))
        is_put: npt.NDArray[np.bool_] = np.asarray(pc.is_in(rows.column(CHANGE_TYPE), pa.array(_PUTS)))
        return stays & is_put

    def _add(self, shares: RowShares, count: int, rows: pa.Table) -> None:
        is_put = rows.column("is_put").to_numpy()
        keys = _key_hashes(rows, self._table)
        hashes = np.where(is_put, _row_hashes(rows, self._table), _REMOVED)
        pairs = {"scn": rows.column(COMMIT_VERSION), "seq": rows.column(SEQ)}
        images = pa.table({"key": pa.array(keys), "row": pa.array(hashes), **pairs})
        shares.add((keys % np.uint64(count)).astype(np.int64), images)


def _last(images: pa.Table) -> npt.NDArray[np.int64]:
    """Where the last image of each key stands."""
    keys = images.column("key").to_numpy()
    order = np.lexsort((images.column("seq").to_numpy(), images.column("scn").to_numpy(), keys))
    is_last = np.append(keys[order][1:] != keys[order][:-1], True) if len(keys) else np.zeros(0, bool)
    last: npt.NDArray[np.int64] = order[is_last]
    return last


def _keys_alone(rows: pa.Table, table: TableSchema) -> pa.Table:
    """Rows in a definition, without all values but those of its key, where they have them."""
    bus = [rows.schema.field(name) for name in (COMMIT_VERSION, SEQ)]
    kept = rows.select([*(name for name in table.key if name in rows.column_names), COMMIT_VERSION, SEQ])
    return fitted_rows(kept, pa.schema([*sink_schema(table), *bus]))


def _key_hashes(rows: pa.Table, table: TableSchema) -> Hashes:
    return _hashes([rows.column(name) for name in table.key])


def _row_hashes(rows: pa.Table, table: TableSchema) -> Hashes:
    """Hashes of rows with their pairs; none is the one that stands for no row."""
    columns = fitted_rows(
        rows.select([*(name for name in table.names if name in rows.column_names)]), sink_schema(table)
    )
    pairs = [rows.column(name) for name in (COMMIT_VERSION, SEQ)]
    return np.maximum(_hashes([*columns.columns, *pairs]), np.uint64(1))


def _hashes(columns: Iterable[pa.ChunkedArray]) -> Hashes:
    """64 bits of each row."""
    octets = key_bytes([*columns])
    more = pc.binary_join_element_wise(octets, pa.scalar(b"\x01", pa.large_binary()), pa.scalar(b"", pa.large_binary()))
    high, low = key_hashes(octets).astype(np.uint64), key_hashes(more).astype(np.uint64)
    return (high << np.uint64(32)) | low
