"""The executed transactions, in the arrays that the scan kernel keeps up to date."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from databus.core import LimitExceeded
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._gtid import GtidSet, GtidState, uuid_text
from databus.sources.mysql.binlog._scanned import Executed

_INTERVALS_MAX: Final = 1 << 20
_NAMES_MAX: Final = 1 << 14


class ExecutedArrays:
    """Servers' uuids (with tags) and their intervals; MariaDB's domains. The start's own are kept apart."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.sids = np.zeros((8, 3), np.int64)
        self.intervals = np.zeros((8, 8, 2), np.int64)
        self.counts = np.zeros(8, np.int64)
        self.start_intervals = np.zeros((8, 8, 2), np.int64)
        self.start_counts = np.zeros(8, np.int64)
        self.domains = np.zeros((8, s.DOM_COLUMNS), np.int64)
        self._index: dict[str, int] = {}
        self._domain_rows: dict[int, int] = {}
        self._tags: list[str] = [""]

    def begin_with(self, gtids: GtidSet | GtidState, state: NDArray[np.int64], *, is_start: bool) -> None:
        """Take these for executed. is_start: transactions among them are skipped when the log shows them again."""
        if gtids.size >= s.ORDINAL_LIMIT:
            raise LimitExceeded(f"GTIDs {str(gtids)[:200]}: an SCN made from them would not be below {s.ORDINAL_LIMIT}")
        if isinstance(gtids, GtidState):
            for domain, (server, number) in gtids.domains.items():
                row = self.add_domain(domain, state)
                self.domains[row, s.D_SERVER : s.D_SEQ + 1] = server, number
                if is_start:
                    self.domains[row, s.D_START_SERVER : s.D_START_SEQ + 1] = server, number
        else:
            longest = max((len(intervals) for intervals in gtids.parts.values()), default=0)
            while self.intervals.shape[1] < longest + 2:
                self.grow()
            for name, intervals in gtids.parts.items():
                sid = self.add_name(name, state)
                self.intervals[sid, : len(intervals)] = intervals
                self.counts[sid] = len(intervals)
            if is_start:
                self.start_intervals = self.intervals.copy()
                self.start_counts = self.counts.copy()
        state[s.SET_SIZE] = gtids.size
        state[s.SET_KNOWN] = 1

    def add_sid(self, raw: bytes, state: NDArray[np.int64]) -> int:
        """A server's uuid, by its sixteen bytes."""
        return self.add_name(uuid_text(raw), state)

    def add_name(self, name: str, state: NDArray[np.int64]) -> int:
        """The index of `uuid` or `uuid:tag`, new or not."""
        known = self._index.get(name)
        if known is not None:
            return known
        sid = len(self.names)
        if sid == len(self.sids):
            if sid >= _NAMES_MAX:
                raise LimitExceeded(f"{name}: the log names more than {_NAMES_MAX} servers and tags in its GTIDs")
            self._double_names()
        uuid, _, tag = name.partition(":")
        if tag not in self._tags:
            self._tags.append(tag)
        words = np.frombuffer(bytes.fromhex(uuid.replace("-", "")), np.int64)
        self.sids[sid] = (*words, self._tags.index(tag))
        self.counts[sid] = self.start_counts[sid] = 0
        self.names = (*self.names, name)
        self._index[name] = sid
        state[s.N_SIDS] = sid + 1
        return sid

    def add_domain(self, domain: int, state: NDArray[np.int64]) -> int:
        """The row of a domain, new or not."""
        known = self._domain_rows.get(domain)
        if known is not None:
            return known
        count = int(state[s.N_DOMAINS])
        if count == len(self.domains):
            if count >= _NAMES_MAX:
                raise LimitExceeded(f"domain {domain}: the log names more than {_NAMES_MAX} replication domains")
            self.domains = np.concatenate([self.domains, np.zeros_like(self.domains)])
        self.domains[count] = (domain, 0, 0, 0, -1)
        self._domain_rows[domain] = count
        state[s.N_DOMAINS] = count + 1
        return count

    def grow(self) -> None:
        """Room for twice as many intervals of each server."""
        if self.intervals.shape[1] >= _INTERVALS_MAX:
            raise LimitExceeded(f"the executed GTID set has more than {_INTERVALS_MAX} intervals of one server")
        self.intervals = np.concatenate([self.intervals, np.zeros_like(self.intervals)], axis=1)
        self.start_intervals = np.concatenate([self.start_intervals, np.zeros_like(self.start_intervals)], axis=1)

    def snapshot(self, state: NDArray[np.int64]) -> Executed:
        """A copy of what is executed now, by values."""
        count = len(self.names)
        widest = max(self.counts[:count].tolist(), default=0)
        return Executed(
            flavor=int(state[s.FLAVOR]),
            is_known=bool(state[s.SET_KNOWN]),
            names=self.names,
            intervals=self.intervals[:count, :widest].copy(),
            counts=self.counts[:count].copy(),
            domains=self.domains[: int(state[s.N_DOMAINS])].copy(),
        )

    def _double_names(self) -> None:
        self.sids = np.concatenate([self.sids, np.zeros_like(self.sids)])
        self.intervals = np.concatenate([self.intervals, np.zeros_like(self.intervals)])
        self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
        self.start_intervals = np.concatenate([self.start_intervals, np.zeros_like(self.start_intervals)])
        self.start_counts = np.concatenate([self.start_counts, np.zeros_like(self.start_counts)])
