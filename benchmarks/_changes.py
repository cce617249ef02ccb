"""Changes of a table of a million rows, as frames: what the benchmarks of sinks are fed with."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from databus.core import ChangeType
from databus.schema import Column, TableSchema, frame_schema
from databus.wire import Commit, Group, Rows, encode_group

TABLE = TableSchema(
    "main.events",
    (
        Column("id", "int64", nullable=False),
        Column("source", "int64"),
        Column("at", "timestamptz"),
        Column("key", "string"),
        Column("payload", "string"),
    ),
    ("id",),
)
ROW_BYTES = 254
_TEXTS = pa.array([f"{i:016x}" * 13 for i in range(1024)])
_NAMES = pa.array([f"{i * 2654435761 % 2**64:016x}" for i in range(1024)])


class _OneTable:
    def number_of(self, table: TableSchema) -> tuple[int, int]:  # noqa: ARG002
        return 1, 1


def frame_rows(keys: np.ndarray, versions: np.ndarray, kinds: np.ndarray, scn: int, first_seq: int = 1) -> Rows:
    """Rows of one transaction, 254 bytes each."""
    count = len(keys)
    bits = (keys * 2654435761 + versions * 40503) % 1024
    columns = [
        pa.array(keys),
        pa.array(versions),
        pa.array(keys * 1000).cast(pa.timestamp("us", tz="UTC")),
        _NAMES.take(pa.array(bits)),
        _TEXTS.take(pa.array((bits + versions) % 1024)),
        pa.array(kinds.astype(np.int8)),
        pa.array(np.full(count, scn, np.int64)),
        pa.array(np.arange(first_seq, first_seq + count)),
        pa.array(np.full(count, scn, np.int64)).cast(pa.timestamp("us", tz="UTC")),
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([f"tx-{scn}"])),
        pa.array(np.zeros(count, bool)),
    ]
    return Rows(TABLE, pa.RecordBatch.from_arrays(columns, schema=frame_schema(TABLE)))


def group_of(rows: Rows, scn: int) -> Group:
    """One group with these rows, at a position of the mock source."""
    return Group(Commit(scn, rows.batch.num_rows, f"tx-{scn}", {"n": scn, "t0_us": 0}, scn), (rows,))


def encoded(group: Group) -> bytes:
    """A group as it stands in a log."""
    return b"".join(bytes(each) for each in encode_group(group, _OneTable(), 1).buffers)


def insert_groups(first: int, count: int, scn: int, rows_a_frame: int = 10_000) -> Iterator[Group]:
    """Inserts of the keys from `first` on, a transaction for each frame."""
    for number, start in enumerate(range(first, first + count, rows_a_frame)):
        keys = np.arange(start, min(start + rows_a_frame, first + count))
        kinds = np.full(len(keys), ChangeType.INSERT)
        yield group_of(frame_rows(keys, np.zeros_like(keys), kinds, scn + number), scn + number)


def mixed_groups(rng: np.random.Generator, live: np.ndarray, count: int, scn: int, version: int) -> Iterator[Group]:
    """`count` changes spread over the keys `live`: 80 % updates, 10 % deletes, 10 % inserts, 1,000 a transaction.

    Deleted keys are those that are inserted again, so that the table keeps its size.
    """
    chosen = rng.choice(live, count - count // 10, replace=False)
    gone = chosen[: count // 10]
    changes = np.concatenate([chosen, gone])
    kinds = np.full(count, ChangeType.UPDATE_POSTIMAGE)
    kinds[: len(gone)] = ChangeType.DELETE
    kinds[len(chosen) :] = ChangeType.INSERT
    order = np.concatenate([rng.permutation(len(chosen)), np.arange(len(chosen), count)])
    for number, start in enumerate(range(0, count, 1000)):
        part = order[start : start + 1000]
        keys, kind = changes[part], kinds[part]
        is_update = kind == ChangeType.UPDATE_POSTIMAGE
        twice = np.repeat(np.arange(len(keys)), 1 + is_update)
        images = kind[twice]
        pre = np.flatnonzero(is_update[twice])[::2]
        images[pre] = ChangeType.UPDATE_PREIMAGE
        versions = np.where(images == ChangeType.UPDATE_POSTIMAGE, version, version - 1)
        yield group_of(frame_rows(keys[twice], versions, images, scn + number), scn + number)
