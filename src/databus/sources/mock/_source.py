"""The mock source: made-up or scripted transactions behind the contract of a source."""

import json
import math
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from databus.core import (
    TXID,
    ChangeType,
    Clock,
    ConfigError,
    ControlKind,
    Identity,
    SourceChanged,
    SystemClock,
    UnknownSource,
    UnsupportedFeature,
    make_scn,
    next_bus_seq,
    ordinal_of,
)
from databus.log import Resume
from databus.schema import TableSchema
from databus.sources._bus_frames import begin_body, bus_columns, end_body
from databus.sources._contract import SourceLag
from databus.sources.mock._config import MockConfig
from databus.sources.mock._generate import Int, Shares, TableMaker
from databus.sources.mock._script import Script
from databus.wire import Commit, Control, Group, OpenSnapshot, Rows

_NAMESPACE: Final = uuid.UUID("5b1f5b0e-6f0c-4f0e-9a53-1d9f4f3c2b11")

_BLOCK_TRANSACTIONS: Final = 256
_NOT_IDENTITY: Final = {
    "transactions_per_s",
    "transactions_total",
    "chunk_rows",
    "group_bytes_max",
    "group_transactions_max",
}


@dataclass(frozen=True)
class _Block:
    """Transactions made ahead, from `first` on."""

    first: int
    rows: tuple[Rows, ...]
    ends: Int
    """The last `_seq` of each transaction."""


def _transactions(rows: Rows, start: int, end: int) -> Rows:
    """Those of a block, by their numbers in it; with a dictionary of transaction ids of their own."""
    batch = rows.batch
    txids = batch.column(TXID)
    if start == 0 and end == len(txids.dictionary):
        return rows
    numbers = txids.indices.to_numpy()
    low, high = np.searchsorted(numbers, [start, end])
    cut = batch.slice(low, high - low)
    own = pa.DictionaryArray.from_arrays(
        pa.array(numbers[low:high] - np.int32(start)), txids.dictionary.slice(start, end - start)
    )
    columns = [own if name == TXID else column for name, column in zip(batch.schema.names, cut.columns, strict=True)]
    return Rows(rows.table, pa.RecordBatch.from_arrays(columns, schema=batch.schema))


class MockSource:
    """Transactions 1, 2, 3... made from a seed or a script. Re-capture yields the same again, commit times included."""

    config_model: ClassVar = MockConfig

    def __init__(self, physical: str, config: MockConfig, clock: Clock | None = None) -> None:
        self.physical = physical
        self._config = config
        self._clock = clock or SystemClock()
        self._script = None if config.script is None else Script(_script_lines(config.script), config.selects)
        self._resume = Resume()
        self._next = 1  # ordinal of the next transaction
        self._part = 0  # changes of it that earlier parts have carried
        self._t0_us = 0
        self._last_seq = 0  # highest `_seq` yielded at the SCN before `_next`
        self._block: _Block | None = None
        self._snapshots: dict[str, OpenSnapshot] = {}
        self._asked: deque[str] = deque()
        shares = Shares(config.inserts, config.updates, config.deletes)
        self._makers = [
            TableMaker(table.schema_of(name), shares, config.seed, config.row_bytes, nulls=table.nulls)
            for name, table in sorted(config.schemas.items())
            if config.selects(name)
        ]
        if not self._makers and self._script is None:
            raise ConfigError(f"sources.{physical}.tables: {config.tables} selects none of {sorted(config.schemas)}")

    def identify(self) -> Identity:
        """See `Source.identify`: options of the same meaning are the same source."""
        options = self._config.model_dump_json(exclude=_NOT_IDENTITY)
        return Identity(
            str(uuid.uuid5(_NAMESPACE, f"{self.physical}/{options}")), "count", f"mock seed {self._config.seed}"
        )

    def tables(self) -> Sequence[TableSchema]:
        """See `Source.tables`."""
        return self._script.tables if self._script else [maker.table for maker in self._makers]

    def start(self, resume: Resume) -> None:
        """See `Source.start`."""
        self._resume = resume
        self._part = 0
        self._next = ordinal_of(resume.scn) + 1
        self._last_seq = resume.seq
        self._snapshots = dict(resume.snapshots)
        self._block = None
        self._t0_us = self._clock.now_ns() // 1000
        if resume.position is not None:
            if resume.position.get("n") != self._next - 1:
                raise SourceChanged(
                    f"{self.physical}: the log ends at {dict(resume.position)}, not one of a mock source"
                )
            self._t0_us = resume.position["t0_us"]
        if self._script is not None:
            self._script.start(self._next)

    def poll(self, wait_ms: int) -> Group | None:
        """See `Source.poll`."""
        if self._part == 0:
            while self._asked:
                name = self._asked.popleft()
                if name not in self._snapshots:
                    return self._begin_snapshot(name)
            if self._snapshots:
                return self._chunk(next(iter(self._snapshots)))
        count = self._wait_for_due(wait_ms)
        if count == 0:
            return None
        if self._script is not None:
            return self._scripted(count)
        return self._made(count)

    def durable(self, position: Mapping[str, Any]) -> None:
        """See `Source.durable`: nothing to trim."""

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        """See `Source.request_snapshot`: rows as a copy would hold them. Scripted rows have none."""
        if where is not None:
            raise UnsupportedFeature(f"{self.physical}: a table of this source is read as a whole; leave `where` out")
        known = {table.source for table in self.tables()} if self._script is None else set()
        for name in sources:
            if name not in known:
                raise UnknownSource(f"{self.physical}: no table {name!r} to snapshot; there are {sorted(known)}")
        self._asked.extend(sources)

    def lag(self) -> SourceLag:
        """See `Source.lag`."""
        waiting = max(self._due() - self._next + 1, 0) if math.isfinite(self._due()) else None
        if waiting is None:
            return SourceLag()
        return SourceLag(max(self._clock.now_ns() / 1e6 - self.commit_us(self._next) / 1e3, 0.0), int(waiting))

    def close(self) -> None:
        """See `Source.close`."""

    def commit_us(self, ordinal: int) -> int:
        """When transaction `ordinal` was committed."""
        rate = self._config.transactions_per_s
        return self._t0_us + (ordinal if rate is None else int(ordinal * 1e6 / rate))

    def _total(self) -> float:
        if self._script is not None:
            return len(self._script)
        return math.inf if self._config.transactions_total is None else self._config.transactions_total

    def _due(self) -> float:
        """The last transaction that has been committed by now."""
        rate = self._config.transactions_per_s
        due = math.inf if rate is None else (self._clock.now_ns() / 1e3 - self._t0_us) * rate / 1e6 // 1
        return min(due, self._total())

    def _wait_for_due(self, wait_ms: int) -> int:
        """How many transactions wait; sleeps up to `wait_ms` for the first of them."""
        due = self._due()
        if due < self._next:
            wait_s = wait_ms / 1e3
            if self._next <= self._total():
                wait_s = min(wait_s, max(self.commit_us(self._next) / 1e6 - self._clock.now_ns() / 1e9, 0.0))
            time.sleep(wait_s)
            due = self._due()
        return int(min(max(due - self._next + 1, 0), self._config.group_transactions_max))

    @staticmethod
    def contains(scheme: str, position: Mapping[str, Any], txid: str) -> bool | None:
        """Whether the transaction is before the position."""
        del scheme
        ordinal = txid.rpartition("-")[2]
        return int(ordinal) <= int(position.get("n", 0)) if ordinal.isdecimal() else None

    def _position(self, ordinal: int) -> dict[str, Any]:
        return {"n": ordinal, "t0_us": self._t0_us}

    def _txid(self, ordinal: int) -> str:
        return f"{self._config.seed:x}-{ordinal}"

    def _scn(self, ordinal: int) -> int:
        return make_scn(self._resume.timeline, ordinal)

    def _made(self, count: int) -> Group:
        """One group: some transactions, or a part of one that alone exceeds the limit."""
        changes = self._config.rows_per_transaction
        fit = max(self._config.group_bytes_max // self._config.row_bytes, 2)
        if changes > fit or self._part:
            end = min(self._part + fit // 2, changes)
            rows, ends = self._block_of(self._next, 1, self._part, end)
            group = self._group(self._next, rows, int(ends[0]), continues=end < changes)
        else:
            end = changes
            group = self._whole(max(min(count, fit // changes), 1), max(fit // changes, 1))
        self._part = 0 if end == changes else end
        if self._part == 0:
            self._next = ordinal_of(group.commit.scn) + 1
        self._last_seq = group.commit.seq
        return group

    def _whole(self, count: int, fit: int) -> Group:
        """Whole transactions, from a block made ahead: making one costs as much as making hundreds."""
        block = self._block
        if block is None or not block.first <= self._next < block.first + len(block.ends):
            left = self._total() - self._next + 1
            size = int(min(max(count, _BLOCK_TRANSACTIONS), fit, left))
            rows, ends = self._block_of(self._next, size, 0, self._config.rows_per_transaction)
            block = self._block = _Block(self._next, rows, ends)
        start = self._next - block.first
        end = min(start + count, len(block.ends))
        last = block.first + end - 1
        rows = tuple(_transactions(block_rows, start, end) for block_rows in block.rows)
        return self._group(
            last, tuple(table_rows for table_rows in rows if len(table_rows.batch)), int(block.ends[end - 1])
        )

    def _group(self, last: int, rows: tuple[Rows, ...], seq: int, *, continues: bool = False) -> Group:
        """These rows, and the commit of transaction `last` behind them."""
        commit = Commit(
            self._scn(last),
            seq,
            self._txid(last),
            self._position(last),
            self.commit_us(last),
            dict(self._snapshots),
            continues=continues,
        )
        return Group(commit, rows)

    def _block_of(self, first: int, count: int, start: int, end: int) -> tuple[tuple[Rows, ...], Int]:
        """Changes `start..end` of the `count` transactions from `first` on, and the last `_seq` of each transaction."""
        changes = self._config.rows_per_transaction
        tables = len(self._makers)
        of_one = np.arange(start, end, dtype=np.int64)
        weights = np.ones((count, end - start), np.int64)
        parts: list[tuple[TableMaker, Any, Any]] = []
        for number, maker in enumerate(self._makers):
            places = np.flatnonzero(of_one % tables == number)
            if len(places) == 0:
                continue
            of_table = (changes - number + tables - 1) // tables
            index = (np.arange(first - 1, first - 1 + count)[:, None] * of_table + of_one[places] // tables).astype(
                np.int64
            )
            kind, key, version = maker.change(index)
            weights[:, places] += kind == ChangeType.UPDATE_POSTIMAGE
            parts.append((maker, places, (kind, key, version)))
        before = self._last_seq if start else 0
        ends = np.cumsum(weights, axis=1) + before
        rows = [self._rows(maker, places, change, ends, first) for maker, places, change in parts]
        return tuple(rows), ends[:, -1]

    def _rows(self, maker: TableMaker, places: Any, change: Any, ends: Int, first: int) -> Rows:
        kind, key, version = (values.ravel() for values in change)
        count = len(change[0])
        is_update = kind == ChangeType.UPDATE_POSTIMAGE
        twice = np.repeat(np.arange(len(kind)), 1 + is_update)
        is_pre = np.zeros(len(twice), bool)
        is_pre[np.flatnonzero(is_update[twice])[::2]] = True
        seqs = ends[:, places].ravel()[twice] - is_pre
        of_transaction = np.repeat(np.arange(count), len(places))[twice]
        ordinals = first + of_transaction
        txids = pa.DictionaryArray.from_arrays(
            pa.array(of_transaction.astype(np.int32)),
            pa.array([self._txid(first + i) for i in range(count)], pa.string()),
        )
        commit_us = np.array([self.commit_us(first + i) for i in range(count)], np.int64)[of_transaction]
        kinds = np.where(is_pre, ChangeType.UPDATE_PREIMAGE, kind[twice]).astype(np.int8)
        columns = maker.columns(key[twice], version[twice] - is_pre)
        columns += bus_columns(kinds, ordinals + self._scn(0), seqs, commit_us, txids)
        return Rows(maker.table, pa.RecordBatch.from_arrays(columns, schema=maker.schema))

    def _scripted(self, count: int) -> Group:
        assert self._script is not None  # noqa: S101 - asked only with a script
        group = self._script.group(count, self._scn, self._txid, self._position, self.commit_us)
        self._next = ordinal_of(group.commit.scn) + (0 if group.commit.continues else 1)
        self._part = int(group.commit.continues)
        self._last_seq = group.commit.seq
        return group

    def _bus_seq(self) -> int:
        self._last_seq = next_bus_seq(self._last_seq, self._clock.now_ns())
        return self._last_seq

    def _bus_commit(self) -> Commit:
        last = self._next - 1
        snapshots = dict(self._snapshots)
        at_us = self.commit_us(last)
        return Commit(self._scn(last), self._last_seq, self._txid(last), self._position(last), at_us, snapshots)

    def _begin_snapshot(self, name: str) -> Group:
        seq = self._bus_seq()
        table = next(maker.table for maker in self._makers if maker.table.source == name)
        begin = (self._scn(self._next - 1), seq)
        self._snapshots[name] = OpenSnapshot(seq, None, begin)
        body = begin_body(name, seq)
        return Group(self._bus_commit(), (), Control(ControlKind.SNAPSHOT_BEGIN, table, *begin, body), snapshot=True)

    def _chunk(self, name: str) -> Group:
        """The next rows of an open snapshot, as they are after the last transaction; or its end."""
        number = next(i for i, maker in enumerate(self._makers) if maker.table.source == name)
        maker, opened, last = self._makers[number], self._snapshots[name], self._next - 1
        keys, versions = maker.live_after(last * self._changes_of(number))
        if opened.last_key is not None:
            keys, versions = keys[keys > opened.last_key[0]], versions[keys > opened.last_key[0]]
        keys, versions = keys[: self._config.chunk_rows], versions[: self._config.chunk_rows]
        if len(keys) == 0:
            return self._end_snapshot(name, maker.table, opened)
        first_seq = next_bus_seq(self._last_seq, self._clock.now_ns())
        seqs = np.arange(first_seq, first_seq + len(keys), dtype=np.int64)
        self._last_seq = int(seqs[-1])
        self._snapshots[name] = OpenSnapshot(opened.generation, (int(keys[-1]),), opened.begin)
        at_us = self.commit_us(last)
        columns = maker.columns(keys, versions)
        columns += bus_columns(ChangeType.INSERT, self._scn(last), seqs, at_us, self._txid(last), is_snapshot=True)
        rows = Rows(maker.table, pa.RecordBatch.from_arrays(columns, schema=maker.schema))
        return Group(self._bus_commit(), (rows,), snapshot=True)

    def _end_snapshot(self, name: str, table: TableSchema, opened: OpenSnapshot) -> Group:
        seq = self._bus_seq()
        del self._snapshots[name]
        body = end_body(name, opened, is_complete=True)
        control = Control(ControlKind.SNAPSHOT_END, table, self._scn(self._next - 1), seq, body)
        return Group(self._bus_commit(), (), control, snapshot=True)

    def _changes_of(self, number: int) -> int:
        """Changes of table `number` in each transaction."""
        return (self._config.rows_per_transaction - number + len(self._makers) - 1) // len(self._makers)

    def expected(self, source: str, transactions: int) -> pa.Table:
        """The rows, by key, that a copy of `source` holds after this many transactions."""
        number = next(i for i, maker in enumerate(self._makers) if maker.table.source == source)
        maker = self._makers[number]
        keys, versions = maker.live_after(transactions * self._changes_of(number))
        return pa.Table.from_arrays(maker.columns(keys, versions), names=list(maker.table.names))

    def expected_rows(self, source: str, transactions: int) -> int:
        """How many logged rows of `source` the first `transactions` transactions have; an update counts two."""
        number = next(i for i, maker in enumerate(self._makers) if maker.table.source == source)
        kind, _, _ = self._makers[number].change(np.arange(transactions * self._changes_of(number), dtype=np.int64))
        return len(kind) + int(np.count_nonzero(kind == ChangeType.UPDATE_POSTIMAGE))


def _script_lines(script: list[dict[str, Any]] | str) -> list[dict[str, Any]]:
    if isinstance(script, list):
        return script
    try:
        lines = Path(script).read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"script: {script}: {error.strerror}") from error
    try:
        return [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise ConfigError(f"script: {script}: not one JSON object a line: {error}") from error
