"""The executors' half: read a range of groups from the relay and yield it as batches of the query's schema."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from databus.core import Pair, SchemaChanged, SourceCheckpoint, StreamCut, TransientError
from databus.link import FrameStream, RelayClient
from databus.spark._options import DatabusOptions, parse_options
from databus.spark._patience import patiently
from databus.spark._plan import RangePartition
from databus.spark._runs import Run, RunCutter
from databus.spark._target import Target, connect
from databus.spark._typed import Bounds, TypedDecoder
from databus.wire import Commit, FrameGroup, Header, done_by, position_after

_PAUSE_S: Final = 0.05
T = TypeVar("T")
Pieces = Callable[[FrameStream], Iterator[tuple[T, Header]]]
"""Cuts a response into pieces, each with the commit frame's header that ends it."""


@lru_cache(maxsize=16)
def _client_for(options: DatabusOptions) -> RelayClient:
    return connect(options)  # one for each worker process, which serves many batches


@dataclass(frozen=True)
class RangeReader:
    """Reads partitions; travels to the executors as it is. schema: what Spark takes each batch in."""

    options: DatabusOptions
    target: Target
    schema: pa.Schema

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """The partition's batches, in order. A response that is cut off is asked for again from where it stood."""
        if self.target.table is not None:
            return self._typed(partition)
        return self._frames(partition) if self.options.shape == "frames" else iter((self._range(partition),))

    def groups(self, partition: RangePartition) -> Iterator[tuple[list[FrameGroup], FrameStream]]:
        """The partition's groups, in order, whole: the first may hold rows before it and the last rows behind it."""
        return self._pieces(partition, _groups_of)

    def _range(self, partition: RangePartition) -> pa.RecordBatch:
        values = [self.target.physical, json.dumps(partition.start.to_json()), *partition.after, *partition.until]
        return pa.RecordBatch.from_arrays(
            [pa.array([value], field.type) for value, field in zip(values, self.schema, strict=True)],
            schema=self.schema,
        )

    def _typed(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        options = self.options
        decoder = TypedDecoder(
            self.schema,
            self.target.name,
            Bounds(partition.after, partition.until),
            controls_as_rows=options.meta_full,
            controls_ignored=options.controls == "ignore",
            changes=partition.changes,
            leaves_out=options.inexact == "leave_out",
        )
        if partition.begins and partition.changes and options.schema_changes == "ahead":
            yield decoder.ahead()
        for groups, _ in self._pieces(partition, _groups_of):
            for group in groups:
                self._check_schemas(group)
                yield from decoder.feed(group)
        yield from decoder.finish()

    def _check_schemas(self, group: FrameGroup) -> None:
        table = self.target.table
        for frame in group.rows:
            if table is not None and frame.header.fingerprint not in table.known:
                raise SchemaChanged(
                    f"{self.target.name}: {frame.place}: rows in schema {frame.header.fingerprint:016x}, which came "
                    "after this query was loaded; start it again, with the same checkpoint"
                )

    def _frames(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        for run, stream in self._pieces(partition, _runs_of):
            yield self._row_of(run, stream.log, partition)

    def _row_of(self, run: Run, log: str, partition: RangePartition) -> pa.RecordBatch:
        offsets = pa.py_buffer(np.array([0, len(run.frames)], np.int32))
        frames = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(run.frames)])
        values = {
            "physical": self.target.physical,
            "scn": run.commit.last_scn,
            "seq": run.commit.last_seq,
            "log": log,
            "after_scn": partition.after[0],
            "after_seq": partition.after[1],
            "until_scn": partition.until[0],
            "until_seq": partition.until[1],
        }
        return pa.RecordBatch.from_arrays(
            [frames if f.name == "frames" else pa.array([values[f.name]], f.type) for f in self.schema],
            schema=self.schema,
        )

    def _pieces(self, partition: RangePartition, pieces_of: "Pieces[T]") -> Iterator[tuple[T, FrameStream]]:
        position, until = partition.start, partition.until
        deadline: float | None = None
        while True:
            stream = self._open(position, until)
            last: Header | None = None
            try:
                with stream:
                    for piece, last in pieces_of(stream):
                        yield piece, stream
                        if done_by(last) >= until:
                            return
                raise StreamCut(f"{self.target.name}: the response ended before {until}")
            except TransientError:
                now = time.monotonic()
                if last is not None:
                    position, deadline = self._position_after(last, position, stream), None
                elif deadline is not None and now > deadline:
                    raise
                if deadline is None:
                    deadline = now + self.options.retry_ms / 1e3
                time.sleep(_PAUSE_S)  # nothing tells when a relay is back

    def _position_after(self, last: Header, before: SourceCheckpoint, stream: FrameStream) -> SourceCheckpoint:
        return position_after(
            Commit.from_header(last), before, uuid=stream.uuid, log=stream.log, is_given=self.target.may_hold
        )

    def _open(self, position: SourceCheckpoint, until: Pair) -> FrameStream:
        client, target, options = _client_for(self.options), self.target, self.options
        return patiently(
            lambda: client.stream(target.physical, position, sources=target.sources, to=until, wait_ms=options.wait_ms),
            options.retry_ms,
        )


class RangeFetcher:
    """Reads, in the caller's process, the ranges that the rows of `shape=ranges` stand for.

    options: those that the stream was loaded with, `physical` among them.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        parsed = parse_options(options)
        target = Target(parsed.physical or "", parsed.names or None, parsed.physical or "", (0, 0))
        self._reader = RangeReader(parsed, target, pa.schema([]))

    def groups(self, start: SourceCheckpoint, until: Pair) -> Iterator[tuple[list[FrameGroup], str]]:
        """Whole groups, in order, and the uuid of the log that they come from; a cut response is asked for again."""
        for groups, stream in self._reader.groups(RangePartition(start, start.pair, until)):
            yield groups, stream.log


def _groups_of(stream: FrameStream) -> Iterator[tuple[list[FrameGroup], Header]]:
    for groups in stream:
        yield groups, groups[-1].commit


def _runs_of(stream: FrameStream) -> Iterator[tuple[Run, Header]]:
    cutter = RunCutter(stream.where)
    while count := stream.read_into(cutter.space()):
        for run in cutter.received(count):
            yield run, run.commit
    rest = cutter.finish()
    if rest is not None:
        yield rest, rest.commit
