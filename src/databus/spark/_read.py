"""The executors' half: read a range of groups from the relay and yield it as batches of the query's schema."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from databus.core import SchemaChanged
from databus.link import FrameStream, RangeReader, RelayClient
from databus.spark._options import DatabusOptions
from databus.spark._plan import RangePartition
from databus.spark._runs import FrameRun, RunCutter
from databus.spark._target import Target, connect
from databus.spark._typed import PieceBounds, TypedDecoder
from databus.wire import FrameGroup, Header

_PAUSE_S: Final = 0.05
T = TypeVar("T")
Pieces = Callable[[FrameStream], Iterator[tuple[T, Header]]]
"""Cuts a response into pieces, each with the commit frame's header that ends it."""


@lru_cache(maxsize=16)
def _client_for(options: DatabusOptions) -> RelayClient:
    return connect(options)  # one for each worker process, which serves many batches


@dataclass(frozen=True)
class PartitionReader:
    """Reads partitions; travels to the executors as it is."""

    options: DatabusOptions
    target: Target
    schema: pa.Schema
    """What Spark takes each batch in."""

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """The partition's batches, in order. A response that is cut off is asked for again from where it stood."""
        if self.target.table is not None:
            return self._typed(partition)
        return self._frames(partition) if self.options.shape == "frames" else iter((self._range(partition),))

    def _range(self, partition: RangePartition) -> pa.RecordBatch:
        values = [self.target.physical, json.dumps(partition.start.to_json()), *partition.after, *partition.until]
        values += [partition.ranges, partition.log]
        return pa.RecordBatch.from_arrays(
            [pa.array([value], field.type) for value, field in zip(values, self.schema, strict=True)],
            schema=self.schema,
        )

    def _typed(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        options = self.options
        decoder = TypedDecoder(
            self.schema,
            self.target.name,
            PieceBounds(partition.after, partition.until),
            controls_as_rows=options.meta_full,
            controls_ignored=options.controls == "ignore",
            changes=partition.changes,
            leaves_out=options.inexact == "leave_out",
        )
        if partition.begins and partition.changes and options.schema_changes == "ahead":
            yield decoder.ahead()
        for groups, _ in self._reader(partition).groups(partition.start, partition.until):
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
        for run, stream in self._reader(partition).pieces(partition.start, partition.until, _runs_of):
            yield self._row_of(run, stream.log, partition)

    def _row_of(self, run: FrameRun, log: str, partition: RangePartition) -> pa.RecordBatch:
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

    def _reader(self, partition: RangePartition) -> RangeReader:
        options, target = self.options, self.target
        return RangeReader(
            _client_for(options),
            target.physical,
            target.sources,
            target.may_hold,
            options.wait_ms,
            options.retry_ms,
            partition.log,
        )


def _runs_of(stream: FrameStream) -> Iterator[tuple[FrameRun, Header]]:
    cutter = RunCutter(stream.where)
    while count := stream.read_into(cutter.space()):
        for run in cutter.received(count):
            yield run, run.commit
    rest = cutter.finish()
    if rest is not None:
        yield rest, rest.commit
