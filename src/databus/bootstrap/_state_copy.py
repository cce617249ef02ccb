"""A table as it was at a moment, copied: the nearest older state, and what the log store has since folded into it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from databus.bootstrap._look_back import check_new
from databus.bootstrap._standing import standing_at
from databus.bootstrap._table_past import Moment, TablePast
from databus.core import InputError, Pair, PositionPurged
from databus.disk import Location
from databus.flow import TableControl, TableRows, is_data_file, is_passing_file
from databus.sinks import DeltaCopy
from databus.stores import StateNote
from databus.wire import is_inside_transaction

_FOLDED_ROWS: Final = 500_000
_UNFINISHED: Final = "_unfinished_copy"


@dataclass(frozen=True)
class CopiedState:
    """What was copied."""

    rows: int
    position: Pair
    """The last change of the table that is in it."""


def copy_state(past: TablePast, moment: Moment, into: Location) -> CopiedState:
    """Write the table as it was at a moment into a folder. Raises `InputError` where it was not there, or not whole,
    and `PositionPurged` where it is not kept. Killed half-way, the same call does the rest.
    """
    until, state = _origin(past, moment)
    mark = into / _UNFINISHED
    reached = _reached(past, into) if mark.exists() else None
    if reached is not None and reached > until:
        raise InputError(
            f"--into {into}: holds an unfinished copy that has come to SCN {reached[0]}, which is later than "
            f"{moment.written}; name the moment that it was begun for, or another folder"
        )
    if reached is None:
        check_new(into)
    mark.write(past.name.encode())  # whoever finds the folder meanwhile is not to take a part for the whole
    copy = DeltaCopy(into, past.name)
    after = _begun(past, state, copy) if reached is None else reached
    if after < until:
        for items in _portions(past.items(after, until)):
            copy.write(items)
    mark.remove()
    return CopiedState(copy.rows, until)


def _origin(past: TablePast, moment: Moment) -> tuple[Pair, StateNote | None]:
    """Up to where a copy goes, and the state that it is made of; None where the log store has the table's begin."""
    until = past.last_at(moment)
    if past.is_below_log(until):  # there is no log to fold in: only a state of that very place will do
        state = _exactly_at(past, moment)
        return state.position.pair, state
    _check_whole(past, until, moment)
    nearest = _nearest(past, until)
    if nearest is not None:
        if nearest.position.pair < until:
            past.check_kept(nearest.position.pair, f"the state at SCN {nearest.position.scn}")
    elif not past.goes_back_to_begin:
        raise PositionPurged(
            f"{past.name}: no state of {moment.written} or before is kept, and the log store does not go back to where "
            f"the table began; what is kept begins at {_oldest(past)}",
            physical=past.physical,
        )
    return until, nearest


def _begun(past: TablePast, state: StateNote | None, copy: DeltaCopy) -> Pair:
    """Begin a copy; returns up to where it goes."""
    if state is None:
        after = (0, -1)
        copy.begin_mirror(past.definition_at(after), (), after)
        return after
    table = state.tables[past.source]
    batches = past.look.stores.batches(past.source, table, 0, None, None)
    copy.begin_mirror(table.table, (pa.Table.from_batches([batch]) for _, batch in batches), state.position.pair)
    return state.position.pair


def _reached(past: TablePast, into: Location) -> Pair | None:
    """How far a copy has come that was killed; where it had not begun to count, what is left of it is removed."""
    log = into / "_delta_log"
    is_begun = any(name[0].isdigit() for name in log.names())
    reached = DeltaCopy(into, past.name).reached if is_begun else None
    for name in into.names():
        if is_passing_file(name) or (reached is None and (name == _UNFINISHED or is_data_file(name))):
            (into / name).remove()
    if reached is None:
        log.remove_folder()
    return reached


def _check_whole(past: TablePast, until: Pair, moment: Moment) -> None:
    if not past.definition.key:
        raise InputError(f"{past.name}: has no key, so there is no state of it; `databus history` shows its rows")
    controls = past.look.kept.controls(past.source)
    standing = standing_at(controls, until)
    is_gone = standing.is_gone(partial(past.look.log.first_after, past.source), until)
    is_too_early = bool(controls) and controls[0].begins_table and until < controls[0].pair
    if is_gone or is_too_early:
        raise InputError(f"{past.name}: was not there at {moment.written}")
    if standing.is_incomplete:
        raise InputError(f"{past.name}: was being read at {moment.written}, so it was not whole; name a later moment")


def _exactly_at(past: TablePast, moment: Moment) -> StateNote:
    """The newest state at an SCN. Raises `PositionPurged` if there is none."""
    for state in reversed(past.look.kept.states):
        is_there = past.source in state.tables and past.source not in state.incomplete
        if is_there and state.position.scn == moment.scn and not is_inside_transaction(state.position.pair):
            return state
    raise past.purged(moment.written)


def _nearest(past: TablePast, until: Pair) -> StateNote | None:
    """The newest state that has nothing of the table that came later."""
    following = past.look.log.first_after(past.source, until)
    for state in reversed(past.look.kept.states):
        is_older = following is None or state.position.pair < following
        if is_older and past.source in state.tables and past.source not in state.incomplete:
            return state
    return None


def _oldest(past: TablePast) -> str:
    states = [state for state in past.look.kept.states if past.source in state.tables]
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
