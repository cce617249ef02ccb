"""What the events of a batch say of what was written."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, SourceCheckpoint
from databus.flow import StagedRows, TableControl, TableRows
from databus.pipeline.engine._handle import OutputHandle, Span


def told_of(control: TableControl) -> dict[str, Any]:
    """What an event says of a control."""
    more = {name: control.body[name] for name in ("ddl", "reason") if control.body.get(name)}
    return {"table": control.table.source, "kind": control.kind.value, "pair": control.pair, **more}


def advanced(
    handle: OutputHandle, physical: str, end: SourceCheckpoint, span: Span, rows: Mapping[str, int]
) -> dict[str, Any]:
    """Up to where an output has come, from where, and what the target says of the tables that were written."""
    marks = handle.position(physical).marks if rows else {}
    return {
        "physical": physical,
        "start": list(span.start),
        "end": list(end.pair),
        "only": sorted(span.only or ()),
        "rows": {table: count for table, count in rows.items() if count},
        "marks": {name: noted.mark for table in rows if (noted := marks.get(name := f"{physical}/{table}"))},
        "epoch": None if handle.ledger is None else handle.ledger.epoch,
    }


def lag_ms(tables: Sequence[TableRows | StagedRows]) -> float | None:
    """Time from the newest commit to now, when it is in the target."""
    newest = [_newest_us(each) for each in tables]
    known = [each for each in newest if each is not None]
    return round((time.time_ns() / 1e3 - max(known)) / 1e3, 1) if known else None


def _newest_us(rows: TableRows | StagedRows) -> int | None:
    if isinstance(rows, StagedRows):
        return rows.newest_us
    newest: int | None = pc.max(rows.rows.column(COMMIT_TIMESTAMP)).cast(pa.int64()).as_py()
    return newest
