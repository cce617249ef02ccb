"""What the events of a batch say of what was written."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, SourceCheckpoint
from databus.flow import Batch, Counts, RowCounts, StagedRows, TableControl, TableRows
from databus.pipeline.engine._handle import OutputHandle, Span
from databus.pipeline.engine._plan import Feed
from databus.pipeline.graph import Graph
from databus.places import choice_to_json, chosen_by, identity
from databus.wire import is_answer


@dataclass
class Totals:
    """What has come into one output of what is being written."""

    rows: Counter[str] = field(default_factory=Counter)
    """By source, as the output says."""
    counts: Counts | None = field(default_factory=Counts)
    """None where nobody counts: the output is given rows as Spark has them."""

    def take(self, batch: Batch | None, written: Mapping[str, int], rows: int | None, commit_us: int) -> None:
        """A part of it was written. rows: where no batch says it."""
        self.rows.update(written or {"": rows or 0})
        if batch is None or self.counts is None:
            self.counts = None
        else:
            self.counts = self.counts.plus(batch.counts).plus(Counts({}, 0, {"commit": commit_us}))

    def read_for(self, source: str, steps: str, came: int, spent_us: int, given: int) -> None:
        """Of a table behind typed filters so many rows were read, of which they gave others so many."""
        if self.counts is not None:
            rows = RowCounts(came - given, {steps: came - given} if came != given else {})
            self.counts = self.counts.plus(Counts({source: rows}, 0, {"fetch": spent_us}))

    def came(self, source: str) -> int:
        """Rows of a table that were counted so far."""
        return 0 if self.counts is None else self.counts.rows.get(source, RowCounts()).came

    def to_json(self) -> dict[str, Any]:
        """As the journal of batches has it: `counts` of those tables alone of which not just all was written."""
        rows = {table: count for table, count in self.rows.items() if count}
        if self.counts is None:
            return {"rows": rows, "counts": None}
        counts = {
            table: _counts_to_json(each, self.rows[table])
            for table, each in self.counts.rows.items()
            if each.came != self.rows[table] or each.dropped or each.letters
        }
        spent_ms = {stage: round(us / 1e3, 1) for stage, us in self.counts.spent_us.items()}
        return {"rows": rows, "counts": counts, "bytes": self.counts.bytes, "spent_ms": spent_ms}


def _counts_to_json(counts: RowCounts, written: int) -> dict[str, Any]:
    already = counts.given - counts.letters - written
    told = {"dropped": dict(counts.dropped), "letters": counts.letters, "already": already}
    return {"in": counts.came, **{name: each for name, each in told.items() if each}}


def told_of(control: TableControl) -> dict[str, Any]:
    """What an event says of a control."""
    more = {name: control.body[name] for name in ("ddl", "reason") if control.body.get(name)}
    return {"table": control.table.source, "kind": control.kind.value, "pair": control.pair, **more}


def choice_of(graph: Graph, feed: Feed, handle: OutputHandle, physical: str) -> dict[str, Any]:
    """What an output takes of a physical source, which says which rows of the log it is to have."""
    inputs = inputs_hash(graph, [way.input for way in feed.ways])
    return {"tables": choice_to_json(handle.choice(physical)), "inputs": inputs}


def inputs_hash(graph: Graph, inputs: Iterable[str]) -> str:
    """Of what inputs, by their paths, leave out of the log's rows."""
    return identity(json.dumps(sorted({repr(graph.inputs[each].filter) for each in inputs})))


def advanced(handle: OutputHandle, physical: str, end: SourceCheckpoint, span: Span, written: Totals) -> dict[str, Any]:
    """Up to where an output has come, from where, what was counted, and what the target says of the tables that were
    written.
    """
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
    newest = [_newest_us(each) for each in tables]
    known = [each for each in newest if each is not None]
    return round((now_ns / 1e3 - max(known)) / 1e3, 1) if known else None


def _newest_us(rows: TableRows | StagedRows) -> int | None:
    if isinstance(rows, StagedRows):
        return rows.newest_us
    newest: int | None = pc.max(rows.rows.column(COMMIT_TIMESTAMP)).cast(pa.int64()).as_py()
    return newest
