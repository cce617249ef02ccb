"""Filters on the relay: what is left of groups of 4 MiB, beside PyArrow's own filter and IPC write of the same batches.

One thread each; times are the thread's processor time, so that what runs beside says little. PyArrow is given its mask:
for `where` it compares, as we do; of a partition it is told which rows are in it, and does not hash. Then a crowd of a
hundred followers of a relay, with one filter or with ten distinct ones: the relay's processor time. Last, two of twenty
columns: bytes, and the rows a second of a consumer that reads them.
"""

import io
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from benchmarks._changes import TABLE, encoded, frame_rows, group_of
from benchmarks.crowd import _run
from benchmarks.figures import Figure
from databus.filters import FrameFilter, StreamFilter, StreamPartition, row_hashes
from databus.schema import Column, TableSchema, frame_schema
from databus.wire import Commit, FrameParser, Group, Rows, encode_group, frames_in

GROUPS = 16
GROUP_ROWS = (4 << 20) // 254
ROUNDS = 7
FOLLOWERS, RATE, SECONDS = 100, 50, 12.0
WIDE = TableSchema(
    "main.wide",
    (Column("id", "int64", nullable=False), *(Column(f"c{i}", "int64" if i % 2 else "string") for i in range(19))),
    ("id",),
)


class _Known:
    def __init__(self, table: TableSchema) -> None:
        self.table = table

    def definition(self, fingerprint: int) -> TableSchema | None:
        return self.table if fingerprint == self.table.fingerprint else None

    def definitions(self, source: str) -> list[TableSchema]:
        return [self.table] if source == self.table.source else []

    def definition_now(self, source: str) -> TableSchema | None:
        return self.table if source == self.table.source else None

    def number_of(self, table: TableSchema) -> tuple[int, int]:  # noqa: ARG002 - there is one
        return 1, 1


def _seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best


def _changes() -> list[Rows]:
    rng = np.random.default_rng(7)
    found = []
    for scn in range(1, GROUPS + 1):
        keys = rng.integers(0, 1_000_000, GROUP_ROWS)
        found.append(frame_rows(keys, rng.integers(0, 1000, GROUP_ROWS), np.ones(GROUP_ROWS, np.int8), scn))
    return found


def _pyarrow(batches: list[pa.RecordBatch], mask_of: Callable[[int, pa.RecordBatch], pa.Array]) -> None:
    for number, batch in enumerate(batches):
        left = batch.filter(mask_of(number, batch))
        sink = io.BytesIO()
        with ipc.new_stream(sink, left.schema) as writer:
            writer.write_batch(left)
        sink.getvalue()


def _ours(contents: list[bytes], frames: FrameFilter) -> None:
    for content in contents:
        frames.filtered(content)


def _beside(name: str, wanted: StreamFilter, contents: list[bytes], mask: Callable[..., pa.Array]) -> Iterator[Figure]:
    rows = GROUPS * GROUP_ROWS
    batches = [next(frame for _, frame in frames_in(content, "x")).batch for content in contents]
    ours = _seconds(lambda: _ours(contents, FrameFilter(wanted, "shop", _Known(TABLE))))
    theirs = _seconds(lambda: _pyarrow(batches, mask))
    yield Figure(f"{name}, PyArrow's filter and IPC write", rows / theirs, "rows/s")
    yield Figure(f"{name}, ours", rows / ours, "rows/s", "PyArrow", rows / theirs)


def _all_partitions(contents: list[bytes]) -> Iterator[Figure]:
    """Ten readers, as a relay's tail serves them: a chunk is cut, opened and hashed once for all."""
    filters = [
        FrameFilter(StreamFilter.parse(partition=StreamPartition(i, 10)), "shop", _Known(TABLE)) for i in range(10)
    ]
    batches = [next(frame for _, frame in frames_in(content, "x")).batch for content in contents]
    masks = []
    for batch in batches:
        numbers = row_hashes(TABLE, batch) % 10
        masks.append([pa.array(numbers == i) for i in range(10)])

    def ours() -> None:
        for content in contents:
            cut = list(frames_in(content, "shop"))
            for each in filters:
                each.filtered(content, cut)

    def theirs() -> None:
        for i in range(10):
            _pyarrow(batches, lambda number, _: masks[number][i])  # noqa: B023 - called at once

    rows = 10 * GROUPS * GROUP_ROWS
    arrow, mine = _seconds(theirs), _seconds(ours)
    yield Figure("10 of 10 partitions, PyArrow's filter and IPC write", rows / arrow, "rows/s")
    yield Figure("10 of 10 partitions, ours", rows / mine, "rows/s", "PyArrow", rows / arrow)


def _wide() -> Iterator[Figure]:
    known = _Known(WIDE)
    count = 20_000
    ids = np.arange(count)
    bus = [
        pa.array(np.ones(count, np.int8)),
        pa.array(np.full(count, 1, np.int64)),
        pa.array(np.arange(1, count + 1)),
        pa.array(np.full(count, 1, np.int64)).cast(pa.timestamp("us", tz="UTC")),
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["tx-1"])),
        pa.array(np.zeros(count, bool)),
    ]
    texts = pa.array([f"{i:032x}" for i in range(1024)])
    own = [texts.take(pa.array((ids * 7 + i) % 1024)) if i % 2 == 0 else pa.array(ids * i) for i in range(19)]
    batch = pa.RecordBatch.from_arrays([pa.array(ids), *own, *bus], schema=frame_schema(WIDE))
    group = Group(Commit(1, count, "tx-1", {}, 1), (Rows(WIDE, batch),))
    content = b"".join(bytes(each) for each in encode_group(group, known, 1).buffers)
    left = FrameFilter(StreamFilter.parse(columns="id,c1"), "shop", known).filtered(content).content
    yield Figure("2 of 20 columns, bytes of all", len(left) / len(content), "", "at most", 0.15)
    whole, narrow = _seconds(lambda: _consumed(content)), _seconds(lambda: _consumed(left))
    yield Figure("a consumer of all 20 columns", count / whole, "rows/s")
    yield Figure("a consumer of 2", count / narrow, "rows/s", "all 20", count / whole)


def _consumed(content: bytes) -> int:
    """What a consumer does: check, decode, and look at each row's values."""
    parser, view, rows = FrameParser("consumer"), memoryview(content), 0
    while view:
        space = parser.space()
        size = min(len(space), len(view))
        space[:size] = view[:size]
        view = view[size:]
        for group in parser.received(size):
            for frame in group.rows:
                batch = frame.batch
                columns = [batch.column(i).to_pylist() for i in range(batch.num_columns - 6)]
                rows += sum(1 for _ in zip(*columns, strict=True))
    return rows


def figures(scale: float = 1.0) -> Iterator[Figure]:
    contents = [encoded(group_of(rows, scn)) for scn, rows in enumerate(_changes(), 1)]
    half = pa.scalar(500, pa.int64())
    yield from _beside(
        "where, half of the rows",
        StreamFilter.parse(where="source >= 500"),
        contents,
        lambda _, batch: pc.greater_equal(batch.column("source"), half),
    )
    part = FrameFilter(StreamFilter.parse(partition=StreamPartition(3, 10)), "shop", _Known(TABLE))
    masks = []
    for content in contents:
        frame = next(frame for _, frame in frames_in(content, "x"))
        mine, _ = part.cut_of(TABLE).passing(frame.batch, part._hashes(frame, part.cut_of(TABLE)))
        masks.append(pa.array(mine))
    yield from _beside("1 of 10 partitions", part.wanted, contents, lambda number, _: masks[number])
    yield from _all_partitions(contents)
    yield from _wide()
    seconds = max(4.0, SECONDS * scale)
    ask = "output=frames&where=" + quote("id >= 0 AND id <> ")
    one = _run(RATE, seconds, [f"{ask}1"] * FOLLOWERS)
    ten = _run(RATE, seconds, [f"{ask}{i % 10}" for i in range(FOLLOWERS)])
    what = f"relay CPU a transaction, {FOLLOWERS} followers, {RATE}/s"
    yield Figure(f"{what}: one filter", one.cpu_us_a_transaction, "us")
    yield Figure(f"{what}: ten distinct", ten.cpu_us_a_transaction, "us", "one", one.cpu_us_a_transaction)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
