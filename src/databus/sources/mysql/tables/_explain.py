"""From what a statement did to a table to the events that consumers get."""

from collections.abc import Iterator
from dataclasses import replace

from databus.sources.mysql.tables._apply import Outcome
from databus.sources.mysql.tables._change_class import UNPROVEN, Reason
from databus.sources.mysql.tables._pending_changes import Work
from databus.sources.mysql.tables._table_events import Altered, Created, Dropped, TableEvent, Truncated
from databus.sources.mysql.tables._table_state import TableState
from databus.sources.mysql.tables._unknown_tables import TableName


def explain(name: TableName, before: TableState | None, work: Work, ddl: str) -> Iterator[TableEvent]:
    """The events of one table."""
    after = work.tables.get(name, before)
    if before is not None and after is not None and (work.origin.get(name, name) == name):
        if name in work.truncated:
            yield Truncated(after.definition, ddl)
            return
        yield from _altered(before, after, work.outcomes.get(name), ddl)
    elif before is not None and after is not None and work.origin.get(name) is not None:
        swapped = (Reason(None, UNPROVEN, "another table took its name"),)
        yield Altered(before.definition, after.definition, ddl, swapped)
    else:
        if before is not None:
            yield Dropped(before.definition, ddl)
        if after is not None:
            is_empty = work.origin.get(name) is None and name not in work.filled
            yield Created(after.definition, ddl, is_empty)


def _altered(before: TableState, after: TableState, outcome: Outcome | None, ddl: str) -> Iterator[TableEvent]:
    if outcome is None:
        return
    old, new = before.definition, after.definition
    if old == new and not outcome.reasons and not outcome.text_reasons:
        return
    text_reasons = tuple(outcome.text_reasons)
    event = Altered(old, new, ddl, tuple(outcome.reasons), outcome.renamed, outcome.fill, text_reasons)
    yield event if event.number < UNPROVEN else replace(event, renamed={}, fill={})
