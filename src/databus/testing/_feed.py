"""Windows made by hand: what a consumer is given, without a database and without a relay.

feed = Feed(TableSchema("main.orders", (Column("id", "int64"), Column("note", "string")), ("id",)))
feed.snapshot("main.orders", [{"id": 1, "note": "first"}])
feed.update("main.orders", {"id": 1, "note": "first"}, {"id": 1, "note": "paid"}).commit()
checkpoint = feed.play(MyConsumer())
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import pyarrow as pa

from databus.client import Call, CallKind, Consumer, ConsumerFailed, Dispatcher, Result, Splitter, Window, callbacks_of
from databus.core import BUS_COLUMNS, BUS_SEQ_MIN, ChangeType, Checkpoint, ControlKind, InputError, SourceCheckpoint
from databus.schema import TableSchema, frame_schema
from databus.wire import Commit, Control, FrameGroup, FrameParser, Group, OpenSnapshot, Rows, encode_group

Row = Mapping[str, Any]
_LOG: Final = "feed"


class Feed:
    """What happened in one physical source, change by change, in Python values. physical: its name."""

    def __init__(self, *tables: TableSchema, physical: str = "shop") -> None:
        self.physical = physical
        self._tables = {table.source: table for table in tables}
        self._by_fingerprint = {table.fingerprint: table for table in tables}
        self._groups: list[Group] = []
        self._open: list[tuple[TableSchema, ChangeType, Row]] = []
        self._scn = 0
        self._bus = 0
        self._snapshots: dict[str, OpenSnapshot] = {}

    def insert(self, table: str, row: Row) -> Self:
        """Add an insert to the open transaction."""
        return self._add(table, (ChangeType.INSERT, row))

    def update(self, table: str, before: Row, after: Row) -> Self:
        """Add an update."""
        return self._add(table, (ChangeType.UPDATE_PREIMAGE, before), (ChangeType.UPDATE_POSTIMAGE, after))

    def delete(self, table: str, row: Row) -> Self:
        """Add a delete."""
        return self._add(table, (ChangeType.DELETE, row))

    def commit(self) -> Self:
        """End the transaction: it is one window."""
        self._scn += 1
        images = [(image, number) for number, image in enumerate(self._open, 1)]
        self._groups.append(Group(self._commit(len(images)), tuple(self._rows(images, is_snapshot=False))))
        self._open = []
        return self

    def snapshot(self, table: str, rows: Sequence[Row]) -> Self:
        """Have a table read: `snapshot_begin`, a window with its rows, `snapshot_end`."""
        generation = self._bus + 1
        begin = self._scn, BUS_SEQ_MIN + generation
        self._snapshots[table] = OpenSnapshot(generation, None, begin)
        self.control(ControlKind.SNAPSHOT_BEGIN, table, generation=generation)
        images = [((self._table(table), ChangeType.INSERT, row), self._bus_seq()) for row in rows]
        if images:
            self._groups.append(
                Group(self._commit(images[-1][1]), tuple(self._rows(images, is_snapshot=True)), snapshot=True)
            )
        del self._snapshots[table]
        return self.control(ControlKind.SNAPSHOT_END, table, generation=generation, begin=begin, complete=True)

    def control(self, kind: ControlKind, table: str, **body: Any) -> Self:
        """Add a control of the bus's own, such as `ControlKind.GAP`, behind the last transaction."""
        seq = self._bus_seq()
        control = Control(kind, self._table(table), self._scn, seq, {"kind": kind.value, "source": table, **body})
        self._groups.append(Group(self._commit(seq), (), control, snapshot=True))
        return self

    def windows(self) -> Iterator[Window]:
        """All of it as windows, as `databus.client.windows` gives them out."""
        splitter = Splitter(self.physical, SourceCheckpoint(log=_LOG), self._by_fingerprint.__getitem__)
        splitter.connected(_LOG, _LOG)
        for group in self._parsed():
            yield from splitter.split(group)

    def play(self, consumer: Consumer) -> Checkpoint:
        """Make the calls that a client makes, each window with a checkpoint, and return the last one.

        What a callback raises is raised here; `ConsumerFailed` where it returns an error.
        """
        dispatcher, calls = Dispatcher(Checkpoint(), retries_max=0), callbacks_of(consumer)

        def perform() -> None:
            while (call := dispatcher.next()) is not None:
                dispatcher.done(call, _done(call, calls))

        dispatcher.start()
        perform()
        dispatcher.started(self.physical, SourceCheckpoint(log=_LOG))
        for window in self.windows():
            dispatcher.feed(window, is_due=True)
            perform()
        dispatcher.stop()
        perform()
        return dispatcher.checkpoint

    def _add(self, table: str, *images: tuple[ChangeType, Row]) -> Self:
        self._open += [(self._table(table), kind, row) for kind, row in images]
        return self

    def _table(self, name: str) -> TableSchema:
        if name not in self._tables:
            raise InputError(f"this feed has no table {name!r}; it has {', '.join(self._tables) or 'none'}")
        return self._tables[name]

    def _bus_seq(self) -> int:
        self._bus += 1
        return BUS_SEQ_MIN + self._bus

    def _commit(self, seq: int) -> Commit:
        return Commit(self._scn, seq, f"t{self._scn}", {}, time.time_ns() // 1000, dict(self._snapshots))

    def _rows(
        self, images: Sequence[tuple[tuple[TableSchema, ChangeType, Row], int]], *, is_snapshot: bool
    ) -> Iterator[Rows]:
        tables = dict.fromkeys(table.source for (table, _, _), _ in images)
        stamp = {"_commit_version": self._scn, "_commit_timestamp": time.time_ns() // 1000, "_txid": f"t{self._scn}"}
        for name in tables:
            table = self._tables[name]
            rows = [
                {**row, **stamp, "_change_type": int(kind), "_seq": seq, "_snapshot": is_snapshot}
                for (owner, kind, row), seq in images
                if owner is table
            ]
            yield Rows(table, _batch(table, rows))

    def _parsed(self) -> Iterator[FrameGroup]:
        """The groups as a relay would send them."""
        parser = FrameParser("a feed")
        for group in self._groups:
            sent = memoryview(b"".join(bytes(buffer) for buffer in encode_group(group, self, 1).buffers))
            while sent:
                space = parser.space()
                count = min(len(space), len(sent))
                space[:count], sent = sent[:count], sent[count:]
                yield from parser.received(count)

    def number_of(self, table: TableSchema) -> tuple[int, int]:
        """See `Registry`."""
        return [*self._tables].index(table.source) + 1, 1


def _done(call: Call, calls: Mapping[CallKind, Any]) -> Result:
    result = calls[call.kind](call) if call.kind in calls else None
    if result is not None and result >= Result.ERROR:
        raise ConsumerFailed(f"on_{call.kind.name.lower()} returned {Result(result).name}")
    return Result.SUCCESS if result is None else result


def _batch(table: TableSchema, rows: Sequence[Row]) -> pa.RecordBatch:
    schema = frame_schema(table)
    known = {*table.names, *BUS_COLUMNS}
    if unknown := next((name for row in rows for name in row if name not in known), None):
        raise InputError(f"{table.source} has no column {unknown!r}")
    arrays = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        is_text = pa.types.is_dictionary(field.type)
        arrays.append(pa.array(values, pa.string()).dictionary_encode() if is_text else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
