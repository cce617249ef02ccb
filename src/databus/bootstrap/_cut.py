"""Where the old end of the log store is cut off, so that it does not grow for ever. Pure.

At that place every table is whole, or not there: then what is above says all of how a table stands, with one word for
each table of how it stood there. Between what calls for a snapshot and its end, it would not.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from databus.bootstrap._keep import is_servable
from databus.bootstrap._standing import standing_at
from databus.core import BUS_SEQ_MIN, SEQ_DONE, Pair
from databus.log import SchemaStore
from databus.stores import HeadNote, LogCut, LoggedControl, StateNote, TableAtCut, definition_at


def cut_off(
    head: HeadNote,
    states: Sequence[StateNote],
    until: Pair,
    until_us: int,
    controls: Mapping[str, Sequence[LoggedControl]],
    first_after: Callable[[str, Pair], Pair | None],
    schemas: SchemaStore,
) -> HeadNote:
    """The head of a log store that has lost what is at or below a pair, or a little less; the same where it can lose
    nothing more. Whoever stands below is given tables whole, so there has to be a state above.

    until_us: nothing up to `until` was committed later. controls: of each table (`db.table`) all that count, in order.
    first_after: of what the log store has of a table, the first pair above one.
    """
    if not states or not is_servable(states[-1], head):
        return head
    scn, _ = min(until, states[-1].position.pair)
    at = _last_settled((scn, SEQ_DONE), controls.values())
    if at <= (head.low if head.cut is None else head.cut.at):
        return head
    tables = {
        source: _word(source, at, controls_of_table, partial(first_after, source), schemas)
        for source, controls_of_table in controls.items()
        if controls_of_table and controls_of_table[0].pair <= at
    }
    return replace(head, low=max(head.low, at), cut=LogCut(at, tables, until_us))


def _last_settled(at: Pair, controls: Collection[Sequence[LoggedControl]]) -> Pair:
    """The last place up to a pair, behind a transaction, at which nothing is open."""
    while True:
        unsettled = [since for of_table in controls if (since := standing_at(of_table, at).unsettled_since) is not None]
        if not unsettled:
            return at
        scn, seq = min(unsettled)
        at = (scn if seq >= BUS_SEQ_MIN else scn - 1), SEQ_DONE


def _word(
    source: str,
    at: Pair,
    controls: Sequence[LoggedControl],
    first_after: Callable[[Pair], Pair | None],
    schemas: SchemaStore,
) -> TableAtCut:
    """How a table stands there."""
    standing = standing_at(controls, at)
    is_gone = standing.is_gone(first_after, at)
    last = next(control for control in reversed(controls) if control.pair <= at)
    definition = None if is_gone else definition_at(source, at, controls, schemas)
    return TableAtCut(definition or last.table, not is_gone, standing.is_narrowed)
