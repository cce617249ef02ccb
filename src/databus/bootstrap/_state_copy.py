"""A table as it was at a moment, copied: the nearest older state, and what the log store has since folded into it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from databus.bootstrap._look_back import check_new
from databus.bootstrap._standing import standing_at
from databus.bootstrap._table_past import Moment, TablePast
from databus.core import InputError, Pair, PositionPurged
from databus.disk import Location
from databus.flow import TableControl, TableRows
from databus.sinks import DeltaCopy
from databus.stores import StateNote

_FOLDED_ROWS: Final = 500_000


@dataclass(frozen=True)
class CopiedState:
    """What was copied."""

    rows: int
    position: Pair
    """The last change of the table that is in it."""


def copy_state(past: TablePast, moment: Moment, into: Location) -> CopiedState:
    """Write the table as it was at a moment into a folder. Raises `InputError` where it was not there, or not whole,
    and `PositionPurged` where it is not kept.
    """
    until = past.last_at(moment)
    _check_whole(past, until, moment)
    check_new(into)
    state = _nearest(past, until)
    copy = DeltaCopy(into, past.name)
    if state is not None:
        table = state.tables[past.source]
        batches = past.look.stores.batches(past.source, table, 0, None, None)
        copy.begin_mirror(table.table, (pa.Table.from_batches([batch]) for _, batch in batches), state.position.pair)
        after = state.position.pair
    elif past.goes_back_to_begin:
        after = (0, -1)
        copy.begin_mirror(past.definition_at(after), (), after)
    else:
        raise PositionPurged(
            f"{past.name}: no state of {moment.written} or before is kept, and the log store does not go back to where "
            f"the table began; what is kept begins at {_oldest(past)}",
            physical=past.physical,
        )
    if after < until:
        past.check_kept(after, f"the state at SCN {after[0]}")
        for items in _portions(past.items(after, until)):
            copy.write(items)
    return CopiedState(copy.rows, until)


def _check_whole(past: TablePast, until: Pair, moment: Moment) -> None:
    if not past.definition.key:
        raise InputError(f"{past.name}: has no key, so there is no state of it; `databus history` shows its rows")
    controls = past.look.kept.controls(past.source)
    standing = standing_at(controls, until)
    is_too_early = bool(controls) and controls[0].begins_table and until < controls[0].pair
    if not standing.is_there or is_too_early:
        raise InputError(f"{past.name}: was not there at {moment.written}")
    if standing.is_incomplete:
        raise InputError(f"{past.name}: was being read at {moment.written}, so it was not whole; name a later moment")


def _nearest(past: TablePast, until: Pair) -> StateNote | None:
    """The newest state that has nothing of the table that came later."""
    following = past.look.log.first_after(past.source, until)
    for state in reversed(past.look.kept.states):
        is_older = following is None or state.position.pair < following
        if is_older and past.source in state.tables and past.source not in state.incomplete:
            return state
    return None


def _oldest(past: TablePast) -> str:
    states = [each for each in past.look.kept.states if past.source in each.tables]
    return f"SCN {states[0].position.scn}" if states else "no state yet"


def _portions(items: Iterable[TableRows | TableControl]) -> Iterator[list[TableRows | TableControl]]:
    """Items, so many rows at a time; rows with nothing between them are one item."""
    held: list[TableRows | TableControl] = []
    count = 0
    for item in items:
        last = held[-1] if held else None
        if isinstance(item, TableControl) or not isinstance(last, TableRows) or last.table != item.table:
            held.append(item)
        else:
            held[-1] = TableRows(item.table, pa.concat_tables([last.rows, item.rows]))
        count += 1 if isinstance(item, TableControl) else item.rows.num_rows
        if count >= _FOLDED_ROWS:
            yield held
            held, count = [], 0
    if held:
        yield held
