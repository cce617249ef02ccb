"""Where the old end of the log store is cut off, so that it does not grow for ever. Pure.

At that place every table is whole, or not there: then what is above says all of how a table stands, with one word for
each table of how it stood there. Between what calls for a snapshot and its end, it would not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from databus.bootstrap._keep import is_servable
from databus.bootstrap._standing import standing_at
from databus.core import BUS_SEQ_MIN, SEQ_DONE, Pair
from databus.stores import HeadNote, LogCut, LoggedControl, StateNote, TableAtCut


def cut_off(
    head: HeadNote,
    states: Sequence[StateNote],
    until: Pair,
    until_us: int,
    controls: Mapping[str, Sequence[LoggedControl]],
) -> HeadNote:
    """The head of a log store that has lost what is at or below a pair, or a little less; the same where it can lose
    nothing more. Whoever stands below is given tables whole, so there has to be a state above.

    until_us: nothing up to `until` was committed later. controls: of each table (`db.table`) all that count, in order.
    """
    if not states or not is_servable(states[-1], head):
        return head
    scn, _ = min(until, states[-1].position.pair)
    at, tables = _cut_at((scn, SEQ_DONE), controls)
    if at <= (head.low if head.cut is None else head.cut.at):
        return head
    return replace(head, low=max(head.low, at), cut=LogCut(at, tables, until_us))


def _cut_at(at: Pair, controls: Mapping[str, Sequence[LoggedControl]]) -> tuple[Pair, dict[str, TableAtCut]]:
    """The last place up to a pair, behind a transaction, at which nothing is open, and how the tables stand there."""
    while True:
        standings = {source: standing_at(each, at) for source, each in controls.items()}
        unsettled = [each.unsettled_since for each in standings.values() if each.unsettled_since is not None]
        if not unsettled:
            return at, {
                source: TableAtCut(each.table, each.is_there, each.is_narrowed)
                for source, each in standings.items()
                if each.table is not None
            }
        scn, seq = min(unsettled)
        at = (scn if seq >= BUS_SEQ_MIN else scn - 1), SEQ_DONE
