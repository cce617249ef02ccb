"""What the scanner gives out, in log order: runs of rows events, statements that may be DDL, changes of file, signs of
life.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._gtid import GtidSet, GtidState, join_intervals
from databus.sources.mysql.binlog._position import LogPosition
from databus.sources.mysql.binlog._query_event import Query

TXID_DIGITS: Final = 64
"""More bytes than the numbers of any transaction's id take."""
_FEW: Final = 32  # elements; an array's operations cost more than a loop over them


@dataclass(frozen=True, slots=True)
class Executed:
    """The executed transactions at one moment, copied out of the scanner's arrays: what a run starts from."""

    flavor: int
    is_known: bool
    """False while the log has not yet said which transactions are executed, or where it has no GTIDs."""
    names: tuple[str, ...]
    """MySQL's `uuid` or `uuid:tag`, by index."""
    intervals: NDArray[np.int64]
    counts: NDArray[np.int64]
    domains: NDArray[np.int64]
    """MariaDB's, by index (see `_kernel_state`)."""

    def after(self, transactions: NDArray[np.int64]) -> str | None:
        """The text of the set once these transactions (rows of TX) are executed too."""
        if not self.is_known:
            return None
        if len(transactions) == 1:
            row = transactions[0].tolist()
            return self._after_one(row[s.T_A], row[s.T_B], row[s.T_C])
        named = transactions[transactions[:, s.T_A] >= 0]
        if self.flavor == s.MARIADB:
            return str(self._state(named))
        return str(self._set(named))

    def _after_one(self, index: int, number: int, server: int) -> str:
        """The same for one transaction, without arrays."""
        if self.flavor == s.MARIADB:
            last = {int(row[s.D_ID]): (int(row[s.D_SERVER]), int(row[s.D_SEQ])) for row in self.domains.tolist()}
            if index >= 0:
                last[int(self.domains[index, s.D_ID])] = (server, number)
            return str(GtidState({domain: last[domain] for domain in sorted(last) if last[domain][1] > 0}))
        parts = {
            name: tuple(map(tuple, intervals[:count]))
            for name, intervals, count in zip(self.names, self.intervals.tolist(), self.counts.tolist(), strict=False)
            if count
        }
        if index >= 0:
            name = self.names[index]
            before = parts.get(name, ())
            if before and before[-1][1] + 1 == number:
                parts[name] = (*before[:-1], (before[-1][0], number))
            else:
                parts[name] = join_intervals((*before, (number, number)))
        return str(GtidSet({name: parts[name] for name in sorted(parts)}))

    def _state(self, named: NDArray[np.int64]) -> GtidState:
        last = {int(row[s.D_ID]): (int(row[s.D_SERVER]), int(row[s.D_SEQ])) for row in self.domains}
        index, at = np.unique(named[::-1, s.T_A], return_index=True)
        for domain, row in zip(index.tolist(), (len(named) - 1 - at).tolist(), strict=True):
            last[int(self.domains[domain, s.D_ID])] = (int(named[row, s.T_C]), int(named[row, s.T_B]))
        return GtidState({domain: last[domain] for domain in sorted(last) if last[domain][1] > 0})

    def _set(self, named: NDArray[np.int64]) -> GtidSet:
        parts: dict[str, tuple[tuple[int, int], ...]] = {}
        for sid, name in enumerate(self.names):
            count = self.counts[sid] if sid < len(self.counts) else 0
            if count:
                parts[name] = tuple(map(tuple, self.intervals[sid, :count].tolist()))
        for sid in np.unique(named[:, s.T_A]).tolist():
            numbers = np.unique(named[named[:, s.T_A] == sid, s.T_B])
            ends = np.flatnonzero(np.diff(numbers) != 1)
            firsts = numbers[np.concatenate(([0], ends + 1))].tolist()
            lasts = numbers[np.concatenate((ends, [len(numbers) - 1]))].tolist()
            name = self.names[sid]
            parts[name] = join_intervals((*parts.get(name, ()), *zip(firsts, lasts, strict=True)))
        return GtidSet({name: parts[name] for name in sorted(parts)})


class LogRun:
    """A stretch of the log that needs no Python per event. Its arrays are parallel; nothing in it changes any more.

    Of each captured rows event, in log order: event_transaction (index into the transactions), event_slot (index into
    `Scanner.tables`), event_kind (1 write, 2 update, 3 delete, 4 update with partial JSON), event_start and event_end
    (its row images in `buffer`). Of each transaction: scn (its ordinal), commit_us, end_file_offset (-1: unfinished).

    continues: the first transaction is the one that the run before left unfinished. is_complete: the last one is
    finished. file: the log file that all of it is in. Transactions without captured rows are there too.
    """

    def __init__(
        self,
        *,
        buffer: NDArray[np.uint8],
        file: str,
        began_s: int,
        events: NDArray[np.int64],
        transactions: NDArray[np.int64],
        executed: Executed,
        server_uuid: str | None,
        continues: bool,
        is_inner: bool,
    ) -> None:
        self.buffer = buffer
        self.file = file
        self._began_s = began_s
        self.event_transaction: NDArray[np.int32] = events[:, s.EV_TX].astype(np.int32)
        self.event_slot: NDArray[np.int32] = events[:, s.EV_SLOT].astype(np.int32)
        self.event_kind: NDArray[np.int8] = events[:, s.EV_KIND].astype(np.int8)
        self.event_start: NDArray[np.int64] = np.ascontiguousarray(events[:, s.EV_START])
        self.event_end: NDArray[np.int64] = np.ascontiguousarray(events[:, s.EV_END])
        self.event_number: NDArray[np.int64] = np.ascontiguousarray(events[:, s.EV_NUMBER])
        self.event_file_offset: NDArray[np.int64] = np.ascontiguousarray(events[:, s.EV_OFFSET])
        self.scn: NDArray[np.int64] = np.ascontiguousarray(transactions[:, s.T_ORDINAL])
        self.commit_us: NDArray[np.int64] = np.ascontiguousarray(transactions[:, s.T_COMMIT_US])
        self.end_file_offset: NDArray[np.int64] = np.ascontiguousarray(transactions[:, s.T_END])
        self.continues = continues
        self.is_complete = bool(transactions[-1, s.T_END] >= 0)
        self._event_begin = np.ascontiguousarray(events[:, s.EV_BEGIN])
        self._events = events
        self._transactions = transactions
        self._executed = executed
        self._server_uuid = server_uuid
        self._is_inner = is_inner

    def __len__(self) -> int:
        return len(self.scn)

    def txid(self, transaction: int) -> str:
        """The id of a transaction: its GTID, or `file:offset` where it has none."""
        row = self._transactions[transaction].tolist()
        index = row[s.T_A]
        if index < 0:
            return f"{self.file}:{row[s.T_START]}"
        if self._executed.flavor == s.MARIADB:
            return f"{int(self._executed.domains[index, s.D_ID])}-{row[s.T_C]}-{row[s.T_B]}"
        return f"{self._executed.names[index]}:{row[s.T_B]}"

    def origin(self, transaction: int) -> "TransactionOrigin":
        """Where a transaction began."""
        start = int(self._transactions[transaction, s.T_START])
        return TransactionOrigin(self._server_uuid, self.file, start, int(self.scn[transaction]))

    def only(self, events: NDArray[np.bool_]) -> "LogRun":
        """The same transactions with these events only."""
        return LogRun(
            buffer=self.buffer,
            file=self.file,
            began_s=self._began_s,
            events=self._events[events],
            transactions=self._transactions,
            executed=self._executed,
            server_uuid=self._server_uuid,
            continues=self.continues,
            is_inner=self._is_inner,
        )

    def txids(self, low: int, high: int) -> pa.StringArray:
        """The ids of transactions low..high-1, as `txid` gives them."""
        if high - low == 1:
            only = self.txid(low).encode()
            offsets = np.array([0, len(only)], np.int32)
            return pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(only))
        from databus.sources.mysql.binlog import _transaction_kernels as kernels

        rows = self._transactions[low:high]
        prefixes, ends = self._prefixes
        offsets = np.empty(len(rows) + 1, np.int32)
        longest = int(np.diff(ends, prepend=0).max())
        text = np.empty(len(rows) * (longest + TXID_DIGITS), np.uint8)
        used = kernels.write_txids(
            np.ascontiguousarray(rows), prefixes, ends, self._executed.flavor, self._executed.domains, offsets, text
        )
        return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(text[:used]))

    @cached_property
    def _prefixes(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        texts = [f"{self.file}:".encode(), *(f"{name}:".encode() for name in self._executed.names)]
        joined = np.frombuffer(b"".join(texts), np.uint8)
        return joined, np.cumsum([len(text) for text in texts]).astype(np.int64)

    def slots(self, first: int) -> list[tuple[int, int]]:
        """The slots of events from transaction `first` on, each with the transaction that has it first, in order."""
        if len(self.event_slot) <= _FEW:
            events = zip(self.event_slot.tolist(), self.event_transaction.tolist(), strict=True)
            seen: dict[int, int] = {}
            for slot, transaction in events:
                if transaction >= first:
                    seen.setdefault(slot, transaction)
            return list(seen.items())
        at = int(np.searchsorted(self.event_transaction, first))
        slots, places = np.unique(self.event_slot[at:], return_index=True)
        order = np.argsort(places)
        return list(zip(slots[order].tolist(), self.event_transaction[at:][places[order]].tolist(), strict=True))

    def place_of(self, slot: int, first: int) -> str:
        """Where the first event of a slot is, from transaction `first` on, for errors."""
        event = int(np.flatnonzero((self.event_slot == slot) & (self.event_transaction >= first))[0])
        return self.place(int(self.event_start[event]))

    def position(self, transaction: int) -> dict[str, Any]:
        """Where the log stands right after a finished transaction, as JSON."""
        end = int(self.end_file_offset[transaction])
        if end < 0:
            raise ValueError(f"transaction {transaction} of this run is not finished: there is no position after it")
        gtids = self._executed.after(self._transactions[: transaction + 1])
        return LogPosition(self.file, end, gtids, self._server_uuid, self._began_s).to_json()

    def place(self, offset: int) -> str:
        """Where the byte at `offset` of the buffer comes from, for errors."""
        event = int(np.searchsorted(self.event_start, offset, side="right")) - 1
        if event < 0:
            return self.file
        begin = int(self.event_file_offset[event])
        if self._is_inner:
            return f"{self.file}, inside the compressed or prepared transaction at {begin}"
        return f"{self.file} at {begin + offset - int(self._event_begin[event])} (event at {begin})"


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """A statement that may change what a table is."""

    query: Query
    scn: int
    txid: str
    commit_us: int
    position: Mapping[str, Any] | None
    """Right after its transaction; None while rows of the same transaction follow (then the next run continues it)."""
    place: str

    @property
    def text(self) -> str:
        """The statement."""
        return self.query.text

    @property
    def database(self) -> str:
        """The default database it ran in, or an empty name."""
        return self.query.database

    @property
    def is_complete(self) -> bool:
        """Whether it ends its transaction."""
        return self.position is not None


@dataclass(frozen=True, slots=True)
class Rotated:
    """What follows is in another file."""

    file: str
    server_version: str
    """Of the server that wrote the new file."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The server is alive and has nothing more: it has sent everything up to here."""

    position: Mapping[str, Any]
    """A reader can resume from it."""


@dataclass(frozen=True, slots=True)
class TransactionOrigin:
    """Which transaction: where it begins in a server's log, and its ordinal."""

    server_uuid: str | None
    file: str
    start: int
    """The offset of its first event in `file`."""
    ordinal: int


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Rows events of the unfinished transaction were rolled back, wholly or to a savepoint, after the scanner had given
    out a part of the transaction.
    """

    origin: TransactionOrigin
    first: int
    """The number of the first rows event that was rolled back."""
    end: int
    """The number after the last one."""
    place: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The transaction that the last run left unfinished never ends: the server that wrote it crashed, and rolled it
    back.
    """

    origin: TransactionOrigin
    place: str


LogItem = LogRun | LoggedStatement | Rotated | Heartbeat | TakenBack | Abandoned
