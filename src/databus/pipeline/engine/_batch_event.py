"""The events of a batch: counts, controls and positions of what was written."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, SourceCheckpoint
from databus.flow import Batch, Counts, RowCounts, StagedRows, TableControl, TableRows
from databus.pipeline.engine._handle import BatchSpan, OutputHandle
from databus.pipeline.engine._plan import OutputFeed
from databus.pipeline.graph import Graph
from databus.places import choice_to_json, chosen_by, identity
from databus.plugins import Written
from databus.wire import is_answer


@dataclass
class Totals:
    """Counts of one output, of the batch that is being written."""

    rows: Counter[str] = field(default_factory=Counter)
    """By source, as counted by the output."""
    counts: Counts | None = field(default_factory=Counts)
    """None if rows are not counted: the output takes them as a DataFrame."""

    def take(self, batch: Batch | None, written: Written, rows: int | None, commit_us: int) -> None:
        """Count a part that was written. rows: their number, without a batch."""
        self.rows.update(written.rows or {"": rows or 0})
        if batch is None or self.counts is None:
            self.counts = None
            return
        had = {source: RowCounts(already=count) for source, count in written.already.items() if count}
        self.counts = self.counts.plus(batch.counts).plus(Counts(had, 0, {"commit": commit_us}))

    def read_for(self, source: str, steps: str, came: int, spent_us: int, made: int) -> None:
        """Count the rows read of a table behind typed filters. came: how many. made: how many came out."""
        if self.counts is not None:
            rows = RowCounts(came - made, {steps: came - made} if came != made else {})
            self.counts = self.counts.plus(Counts({source: rows}, 0, {"fetch": spent_us}))

    def came(self, source: str) -> int:
        """Rows of a table, counted so far."""
        return 0 if self.counts is None else self.counts.rows.get(source, RowCounts()).came

    def to_json(self) -> dict[str, Any]:
        """For the journal of batches: `counts` only of tables whose rows were not all written as they came."""
        rows = {table: count for table, count in self.rows.items() if count}
        if self.counts is None:
            return {"rows": rows, "counts": None}
        counts = {
            table: _counts_to_json(counts)
            for table, counts in self.counts.rows.items()
            if counts.came != self.rows[table] or counts.dropped or counts.letters or counts.already
        }
        spent_ms = {stage: round(us / 1e3, 1) for stage, us in self.counts.spent_us.items()}
        return {"rows": rows, "counts": counts, "bytes": self.counts.bytes, "spent_ms": spent_ms}


def _counts_to_json(counts: RowCounts) -> dict[str, Any]:
    rest = {"dropped": dict(counts.dropped), "letters": counts.letters, "already": counts.already}
    return {"in": counts.came, **{name: count for name, count in rest.items() if count}}


def control_json(control: TableControl) -> dict[str, Any]:
    """A control, in an event."""
    details = {name: control.body[name] for name in ("ddl", "reason") if control.body.get(name)}
    return {"table": control.table.source, "kind": control.kind.value, "pair": control.pair, **details}


def choice_of(graph: Graph, feed: OutputFeed, handle: OutputHandle, physical: str) -> dict[str, Any]:
    """What an output takes of a physical source, by which the journal knows which rows of the log it has to have."""
    inputs = inputs_hash(graph, [way.input for way in feed.ways])
    return {"tables": choice_to_json(handle.choice(physical)), "inputs": inputs}


def inputs_hash(graph: Graph, inputs: Iterable[str]) -> str:
    """A hash of the filters of inputs, by their paths."""
    return identity(json.dumps(sorted({repr(graph.inputs[path].filter) for path in inputs})))


def advanced(
    handle: OutputHandle, physical: str, end: SourceCheckpoint, span: BatchSpan, written: Totals
) -> dict[str, Any]:
    """An output's advance: its range, its counts, and the target's marks of the tables that were written."""
    marks = handle.position(physical).marks if written.rows else {}
    after = handle.after(physical, end, span)
    at = end.pair if after.at is None else after.at.pair
    behind = {
        name: list(place.pair)
        for name, place in after.places.items()
        if place.pair < at and chosen_by(after.tables, name)
    }
    return {
        "physical": physical,
        "start": list(span.start),
        "end": list(end.pair),
        "only": sorted(span.only or ()),
        **({"behind": behind} if behind else {}),
        **({"is_answer": True} if is_answer(end.log) else {}),
        **written.to_json(),
        "marks": {name: noted.mark for table in written.rows if (noted := marks.get(name := f"{physical}/{table}"))},
        **({"offsets": offsets} if (offsets := handle.offsets()) else {}),
        "epoch": None if handle.ledger is None else handle.ledger.epoch,
    }


def lag_ms(tables: Sequence[TableRows | StagedRows], now_ns: int) -> float | None:
    """Time from the newest commit to now, when it is in the target."""
    newest = [_newest_us(rows) for rows in tables]
    known = [commit_us for commit_us in newest if commit_us is not None]
    return round((now_ns / 1e3 - max(known)) / 1e3, 1) if known else None


def _newest_us(rows: TableRows | StagedRows) -> int | None:
    if isinstance(rows, StagedRows):
        return rows.newest_us
    newest: int | None = pc.max(rows.rows.column(COMMIT_TIMESTAMP)).cast(pa.int64()).as_py()
    return newest
