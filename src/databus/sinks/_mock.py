"""Outputs that keep nothing: they count, check, or fail on purpose. For tests, dry runs and benchmarks."""

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from databus.core import BUS_SEQ_MIN, SEQ_DONE, CorruptData, Pair, TransientError
from databus.disk import replace_file
from databus.flow import ChangeBatch, Int, TableControl, TableRows, pairs_of
from databus.plugins import Delivery, Output, OutputConfig, OutputContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class MockOutputConfig(OutputConfig):
    """Rows that are counted and checked in the driver, and kept nowhere; for tests."""

    type: Literal["mock"] = "mock"
    check: Literal["none", "order", "complete"] = Field(
        "order",
        description="`order`: pairs rise, within a table. `complete`: over all tables no pair is missing either, "
        "which holds for all tables of a `mock` source without a filter.",
    )
    fail_at_row: int | None = Field(
        None, ge=1, description="Fail on purpose once, at this row, counted from the start of the process."
    )
    report: str | None = Field(None, description="A file that holds the counts as JSON, replaced at each batch.")


@dataclass
class MockCounts:
    """What came."""

    batches: int = 0
    rows: int = 0
    repeats: int = 0
    """Rows at or below a pair of their physical source that was there before."""
    controls: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    last: dict[str, Pair] = field(default_factory=dict)


class MockOutput(Output):
    """Counts and checks rows in the driver."""

    config_model: ClassVar[type[OutputConfig]] = MockOutputConfig
    delivery: ClassVar[Delivery] = Delivery.AT_LEAST_ONCE
    config: MockOutputConfig

    def __init__(self, config: MockOutputConfig, context: OutputContext) -> None:
        super().__init__(config, context)
        self.counts = MockCounts()
        self._fails = config.fail_at_row is not None

    def write(self, batch: ChangeBatch) -> None:
        """See `Output.write`.

        Raises `CorruptData` for an order or a gap that must not be, `TransientError` on purpose.
        """
        rows = [item for item in batch.items if isinstance(item, TableRows)]
        arriving = sum(item.rows.num_rows for item in rows)
        self._fail_on_purpose(arriving)
        if self.config.check != "none":
            _check_order(batch)
        last = self.counts.last.get(batch.physical, (0, SEQ_DONE))
        if self.config.check == "complete":
            _check_complete(batch, last)
        self._count(batch, rows, last)
        if self.config.report is not None:
            path = self.context.folder / self.config.report
            replace_file(path, [json.dumps(asdict(self.counts)).encode()], durable=False)

    def _fail_on_purpose(self, arriving: int) -> None:
        at = self.config.fail_at_row
        if self._fails and at is not None and self.counts.rows + arriving >= at:
            self._fails = False
            raise TransientError(f"outputs.{self.context.output}: fails at row {at}, as `fail_at_row` wants")

    def _count(self, batch: ChangeBatch, rows: list[TableRows], last: Pair) -> None:
        counts = self.counts
        counts.batches += 1
        counts.controls += len(batch.items) - len(rows)
        for item in rows:
            scns, seqs = pairs_of(item.rows)
            repeats = int(np.count_nonzero((scns < last[0]) | ((scns == last[0]) & (seqs <= last[1]))))
            counts.repeats += repeats
            counts.rows += item.rows.num_rows
            name = f"{batch.physical}/{item.table.source}"
            counts.tables[name] = counts.tables.get(name, 0) + item.rows.num_rows - repeats
        counts.last[batch.physical] = max(last, batch.end.pair)


def _check_order(batch: ChangeBatch) -> None:
    last: dict[str, Pair] = {}
    for item in batch.items:
        source = item.table.source
        scns, seqs = _pairs(item)
        before = last.get(source, batch.start.pair)
        scns, seqs = np.concatenate([[before[0]], scns]), np.concatenate([[before[1]], seqs])
        falls = np.flatnonzero(~((scns[1:] > scns[:-1]) | ((scns[1:] == scns[:-1]) & (seqs[1:] > seqs[:-1]))))
        if len(falls):
            at = int(falls[0])
            raise CorruptData(
                f"{batch.physical}/{source}: {(int(scns[at + 1]), int(seqs[at + 1]))} came after "
                f"{(int(scns[at]), int(seqs[at]))}"
            )
        last[source] = (int(scns[-1]), int(seqs[-1]))
        if last[source] > batch.end.pair:
            raise CorruptData(f"{batch.physical}/{source}: {last[source]} is beyond the batch's end {batch.end.pair}")


def _pairs(item: TableRows | TableControl) -> tuple[Int, Int]:
    if isinstance(item, TableControl):
        return np.array([item.pair[0]], np.int64), np.array([item.pair[1]], np.int64)
    return pairs_of(item.rows)


def _check_complete(batch: ChangeBatch, last: Pair) -> None:
    """Whether the logged pairs above `last` have no gap: transactions 1, 2, 3..., and in each rows 1, 2, 3..."""
    if batch.start.pair > last:
        raise CorruptData(f"{batch.physical}: a batch begins after {batch.start.pair}, the one before ended at {last}")
    if not batch.items:
        return
    parts = [_pairs(item) for item in batch.items]
    scns, seqs = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    new = ((scns > last[0]) | ((scns == last[0]) & (seqs > last[1]))) & (seqs < BUS_SEQ_MIN)
    scns, seqs = scns[new], seqs[new]
    order = np.lexsort((seqs, scns))
    scns, seqs = np.concatenate([[last[0]], scns[order]]), np.concatenate([[last[1]], seqs[order]])
    steps = np.diff(scns)
    follows = ((steps == 0) & (np.diff(seqs) == 1)) | ((steps == 1) & (seqs[1:] == 1))
    if not follows.all():
        at = int(np.flatnonzero(~follows)[0])
        raise CorruptData(
            f"{batch.physical}: after {(int(scns[at]), int(seqs[at]))} came {(int(scns[at + 1]), int(seqs[at + 1]))}, "
            "and something between them is missing or came twice"
        )


class CountOutputConfig(OutputConfig):
    """Rows that are counted inside Spark, and kept nowhere; for tests and benchmarks."""

    type: Literal["count"] = "count"


class CountOutput(Output):
    """Counts rows inside Spark: they reach the end of the plan there, and only their number comes to Python."""

    config_model: ClassVar[type[OutputConfig]] = CountOutputConfig
    delivery: ClassVar[Delivery] = Delivery.AT_LEAST_ONCE
    config: CountOutputConfig

    def write_frame(self, rows: "DataFrame", batch_id: int) -> int:  # noqa: ARG002 - a repeat is counted again
        """See `TakesFrames.write_frame`."""
        return int(rows.count())
