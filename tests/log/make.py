"""Small groups by hand, and what a cursor gives back of them."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from databus.core import ChangeType, ControlKind, Identity, Pair, ordinal_of
from databus.log._config import LogConfig
from databus.log._cursor import Cursor, Span
from databus.log._log import Log
from databus.schema import Column, TableSchema, frame_schema
from databus.wire import Commit, Control, FrameGroup, FrameParser, Group, OpenSnapshot, Rows

ORDERS = TableSchema("main.orders", (Column("id", "int64", nullable=False), Column("note", "string")), ("id",))
STOCK = TableSchema("main.stock", (Column("id", "int64", nullable=False), Column("left", "int32")), ("id",))
ORDERS_2 = TableSchema("main.orders", (*ORDERS.columns, Column("weight", "float64")), ("id",))
IDENTITY = Identity("db-1", "cut", "a database made by hand")

SMALL = LogConfig(segment_bytes_max=16 << 10, index_bytes_every=512, free_bytes_min=0, fsync_interval_ms=5)
"""Segments that a handful of groups fills."""


def open_log(folder: Path, config: LogConfig = SMALL, **more: Any) -> Log:
    return Log.open(folder, **{"physical": "shop", "identity": IDENTITY, "config": config, **more})


def us_of(scn: int) -> int:
    """The commit time that a transaction of this SCN gets unless told otherwise."""
    return 1_700_000_000_000_000 + ordinal_of(scn) * 1_000_000


def rows(
    table: TableSchema,
    pairs: Sequence[Pair],
    *,
    note: str = "x",
    commit_us: int | None = None,
    txid: str | None = None,
    snapshot: bool = False,
) -> Rows:
    """One insert a pair; ids are the pairs' `_seq`."""
    scns = [scn for scn, _ in pairs]
    user: dict[str, list[Any]] = {
        "id": [seq for _, seq in pairs],
        "note": [f"{note}-{scn}-{seq}" for scn, seq in pairs],
        "left": [seq % 100 for _, seq in pairs],
        "weight": [None] * len(pairs),
    }
    bus = [
        [ChangeType.INSERT.value] * len(pairs),
        scns,
        [seq for _, seq in pairs],
        [us_of(scn) if commit_us is None else commit_us for scn in scns],
        [f"tx-{scn}" if txid is None else txid for scn in scns],
        [snapshot] * len(pairs),
    ]
    schema = frame_schema(table)
    columns = [user[name] for name in table.names] + bus
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return Rows(table, pa.RecordBatch.from_arrays(arrays, schema=schema))


def group(
    scn: int,
    *,
    count: int = 1,
    first_seq: int = 1,
    tables: Iterable[TableSchema] = (ORDERS,),
    note: str = "x",
    continues: bool = False,
    snapshot: bool = False,
    commit_us: int | None = None,
    txid: str | None = None,
    snapshots: dict[str, OpenSnapshot] | None = None,
    control: Control | None = None,
) -> Group:
    """A transaction, or one part of one: `count` rows of each table, `_seq` counting on over the tables."""
    parts = []
    seq = first_seq - 1
    for table in tables if count else ():
        parts.append(
            rows(
                table,
                [(scn, seq + i + 1) for i in range(count)],
                note=note,
                commit_us=commit_us,
                txid=txid,
                snapshot=snapshot,
            )
        )
        seq += count
    last = seq if control is None else max(seq, control.seq)
    return Group(
        Commit(
            scn,
            max(last, 0),
            f"tx-{scn}" if txid is None else txid,
            {"cut": scn},
            us_of(scn) if commit_us is None else commit_us,
            snapshots or {},
            continues=continues,
        ),
        tuple(parts),
        control,
        snapshot,
    )


def control(kind: ControlKind, table: TableSchema, scn: int, seq: int, **body: Any) -> Control:
    return Control(kind, table, scn, seq, {"kind": kind.value, "source": table.source, **body})


def bytes_of(spans: Iterable[Span]) -> bytes:
    return b"".join(os.pread(span.fd, span.length, span.offset) for span in spans)


def parse(content: bytes) -> list[FrameGroup]:
    parser = FrameParser("test")
    groups = []
    view = memoryview(content)
    while view:
        space = parser.space()
        count = min(len(space), len(view))
        space[:count] = view[:count]
        groups += parser.received(count)
        view = view[count:]
    parser.finish()
    return groups


def read(cursor: Cursor, bytes_max: int = 1 << 20, **more: Any) -> list[FrameGroup]:
    """All that the cursor gives up to the published end, or the `to` among `more`."""
    content = b""
    while spans := cursor.read(bytes_max, **more):
        content += bytes_of(spans)
    return parse(content)


def pairs_of(groups: Iterable[FrameGroup]) -> list[tuple[str, int, int, str | None]]:
    """(source, SCN, `_seq`, note) of every row, in the order of the groups."""
    found = []
    for each in groups:
        for frame in each.rows:
            source = frame.batch.schema.metadata[b"databus.source"].decode()
            found += [(source, row["_commit_version"], row["_seq"], row.get("note")) for row in frame.batch.to_pylist()]
    return found


def scns_of(groups: Iterable[FrameGroup]) -> list[int]:
    """The SCNs of the rows, each once, in order."""
    return list(dict.fromkeys(scn for _, scn, _, _ in pairs_of(groups)))
