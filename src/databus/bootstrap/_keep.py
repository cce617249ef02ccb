"""Which states are kept. Pure."""

from collections.abc import Sequence
from typing import Final

from databus.bootstrap._config import KeepSection
from databus.stores import HeadNote, StateNote
from databus.wire import is_inside_transaction

_HOUR_US: Final = 3_600_000_000
_MONTH_DAYS: Final = 31
_ALL: Final = "*"  # no table is called so


def forgotten(states: Sequence[StateNote], head: HeadNote, keep: KeepSection, now_us: int) -> list[StateNote]:
    """The states that are not kept any more, the oldest first as they are given. Stays, however old it is: the newest
    one, since an answer never goes back; the newest in which all tables are whole; and for each table the newest in
    which that one is: others may be read for days.
    """
    kept: dict[tuple[str, int], StateNote] = {}
    for state in reversed(states):  # of each hour and day the first one stays
        hour = state.noted_us // _HOUR_US
        age_hours = now_us // _HOUR_US - hour
        if age_hours < 1:
            kept["all", state.noted_us] = state
        if age_hours < keep.hours:
            kept["hour", hour] = state
        if age_hours < 24 * keep.days:
            kept["day", hour // 24] = state
        if age_hours < 24 * _MONTH_DAYS * keep.months:
            kept["month", hour // (24 * _MONTH_DAYS)] = state
    names = {state.name for state in (*kept.values(), *_needed(states, head))}
    return [state for state in states if state.name not in names]


def is_servable(state: StateNote, head: HeadNote) -> bool:
    """Whether a state may be served to whoever asks."""
    return _is_readable(state, head) and not _lacking(state)


def _needed(states: Sequence[StateNote], head: HeadNote) -> list[StateNote]:
    newest: dict[str, StateNote] = {}
    for state in states:
        if not _is_readable(state, head):
            continue
        lacking = _lacking(state)
        newest.update(dict.fromkeys(state.tables.keys() - lacking, state))
        if not lacking:
            newest[_ALL] = state
    return [*states[-1:], *newest.values()]


def _is_readable(state: StateNote, head: HeadNote) -> bool:
    pair = state.position.pair
    return not is_inside_transaction(pair) and pair <= head.position.pair


def _lacking(state: StateNote) -> frozenset[str]:
    return state.incomplete | state.position.snapshots.keys()
