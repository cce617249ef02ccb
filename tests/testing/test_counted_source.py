"""The conformance suite on a source that counts its SCNs, and whose snapshots begin again after a restart.

Its database's clock exceeds 55 bits. Its tables cannot be read on from a key, as with a SCAN of a key-value store.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from databus.core import (
    COUNTED,
    ORDINAL_MAX,
    ChangeType,
    ControlKind,
    Identity,
    LimitExceeded,
    SourceChanged,
    UnknownSource,
    make_scn,
    next_bus_seq,
    ordinal_of,
)
from databus.log import Resume
from databus.schema import Column, TableSchema, frame_schema
from databus.sources import ScnCounter, SourceConfig, SourceLag
from databus.testing import SourceSuite
from databus.wire import Commit, Control, Group, OpenSnapshot, Rows

TABLE = TableSchema("db.keys", (Column("id", "int64"), Column("v", "string")), ("id",))
Image = tuple[ChangeType, int, str]


def in_fives(items: list[Any]) -> list[list[Any]]:
    return [items[at : at + 5] for at in range(0, len(items), 5)]


@dataclass
class Store:
    """Transactions by the store's clock, each of changes of one or two images."""

    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    log: dict[int, list[list[Image]]] = field(default_factory=dict)

    def commit(self, changes: list[list[Image]]) -> None:
        self.log[(1 << 60) + (len(self.log) << 58)] = changes

    def rows_at(self, clock: int) -> list[tuple[int, str]]:
        held: dict[int, str] = {}
        for images in (change for at, changes in self.log.items() if at <= clock for change in changes):
            kind, key, value = images[-1]
            if kind is ChangeType.DELETE:
                held.pop(key, None)
            else:
                held[key] = value
        return list(held.items())


class StoreSource:
    config_model: ClassVar = SourceConfig

    def __init__(self, store: Store) -> None:
        self.physical = "store"
        self._store = store

    def identify(self) -> Identity:
        return Identity(self._store.uuid, COUNTED, "a store")

    def tables(self) -> Sequence[TableSchema]:
        return [TABLE]

    def start(self, resume: Resume) -> None:
        position = resume.position or {"store": self._store.uuid, "clock": 0}
        if position.get("store") != self._store.uuid or position["clock"] not in {0, *self._store.log}:
            raise SourceChanged(f"{self.physical}: the log is of another store")
        self._counter = ScnCounter(resume)
        self._clock = int(position["clock"])
        self._txid, self._seq = resume.txid, resume.seq
        self._parts: list[Group] = []
        self._open = dict(resume.snapshots)
        self._chunks: list[list[tuple[int, str]]] | None = None
        self._is_asked = bool(self._open)  # nobody can read on where it was: it begins again

    def poll(self, wait_ms: int) -> Group | None:
        del wait_ms
        if not self._parts:
            if self._chunks is not None:
                return self._chunk()
            if self._is_asked:
                return self._begin()
            self._read()
        return self._parts.pop(0) if self._parts else None

    def _read(self) -> None:
        clock = next((each for each in self._store.log if each > self._clock), None)
        if clock is None:
            return
        scn, self._clock, self._txid, self._seq = self._counter.next(), clock, f"at {clock}", 0
        parts = in_fives(self._store.log[clock])
        for number, changes in enumerate(parts, 1):
            rows = self._rows(scn, [image for change in changes for image in change])
            self._parts.append(Group(self._commit(continues=number < len(parts)), (rows,)))

    def _rows(self, scn: int, images: Sequence[Image], *, snapshot: bool = False) -> Rows:
        found = []
        for kind, key, value in images:
            self._seq = next_bus_seq(self._seq, time.time_ns()) if snapshot else self._seq + 1
            bus = (int(kind), scn, self._seq, 0, self._txid, snapshot)
            found.append(dict(zip(frame_schema(TABLE).names, (key, value, *bus), strict=True)))
        return Rows(TABLE, pa.RecordBatch.from_pylist(found, schema=frame_schema(TABLE)))

    def _commit(self, *, continues: bool = False) -> Commit:
        position = {"store": self._store.uuid, "clock": self._clock}
        return Commit(self._counter.scn, self._seq, self._txid, position, 0, dict(self._open), continues=continues)

    def _begin(self) -> Group:
        self._chunks, self._is_asked = in_fives(self._store.rows_at(self._clock)), False
        self._seq = next_bus_seq(self._seq, time.time_ns())
        self._open = {TABLE.source: OpenSnapshot(self._seq, None, (self._counter.scn, self._seq))}
        return self._control(ControlKind.SNAPSHOT_BEGIN, {"generation": self._seq})

    def _chunk(self) -> Group:
        assert self._chunks is not None
        if self._chunks:
            images = [(ChangeType.INSERT, *row) for row in self._chunks.pop(0)]
            rows = self._rows(self._counter.scn, images, snapshot=True)
            return Group(self._commit(), (rows,), snapshot=True)
        self._chunks = None
        ended = self._open.pop(TABLE.source)
        self._seq = next_bus_seq(self._seq, time.time_ns())
        told = {"generation": ended.generation, "begin": list(ended.begin), "complete": True}
        return self._control(ControlKind.SNAPSHOT_END, told)

    def _control(self, kind: ControlKind, told: Mapping[str, Any]) -> Group:
        body = {"kind": kind, "source": TABLE.source, **told}
        return Group(self._commit(), (), Control(kind, TABLE, self._counter.scn, self._seq, body), snapshot=True)

    def durable(self, position: Mapping[str, Any]) -> None:
        del position

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        del where
        if set(sources) != {TABLE.source}:
            raise UnknownSource(f"{self.physical}: there is {TABLE.source}")
        self._is_asked = True

    def lag(self) -> SourceLag:
        return SourceLag()

    def close(self) -> None:
        """Nothing is held."""


class StoreHarness:
    is_snapshottable = True
    knows_its_history = True

    def __init__(self) -> None:
        self._stores = Store(), Store()

    def make(self) -> StoreSource:
        return StoreSource(self._stores[0])

    def another(self) -> StoreSource:
        return StoreSource(self._stores[1])

    def transact(self, number: int) -> None:
        count = 17 if number % 3 == 0 else 3
        changes = [[(ChangeType.INSERT, number * 100 + key, "new")] for key in range(count)]
        first = number * 100
        changes.append([(ChangeType.UPDATE_PREIMAGE, first, "new"), (ChangeType.UPDATE_POSTIMAGE, first, "later")])
        changes.append([(ChangeType.DELETE, first + 1, "new")])
        for store in self._stores:
            store.commit(changes)


class TestCountedSource(SourceSuite):
    @pytest.fixture
    def harness(self) -> StoreHarness:
        return StoreHarness()

    def test_scns_are_counted_without_holes_whatever_the_clock(self, harness):
        tape = self._run(harness)
        scns = sorted({group.commit.scn for group in tape.groups})
        assert scns == [make_scn(0, number) for number in range(1, self.TRANSACTIONS + 1)]
        assert min(group.commit.position["clock"] for group in tape.groups) > ORDINAL_MAX


def test_a_counter_stays_in_its_timeline_and_says_when_that_is_full():
    assert ScnCounter(Resume(timeline=3)).next() == make_scn(3, 1)
    assert ordinal_of(ScnCounter(Resume(scn=make_scn(3, 9), timeline=3)).next()) == 10
    with pytest.raises(LimitExceeded, match="no more"):
        ScnCounter(Resume(scn=make_scn(3, ORDINAL_MAX), timeline=3)).next()


def test_counted_scns_are_not_peerable_and_others_are():
    assert not Identity("u", COUNTED, "a store").is_peerable
    assert Identity("u", "gtid", "a server").is_peerable
