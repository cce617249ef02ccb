"""Which states are kept. Pure."""

from collections.abc import Sequence
from typing import Final

from databus.bootstrap._config import KeepSection
from databus.stores import HeadNote, StateNote
from databus.wire import is_inside_transaction

_HOUR_US: Final = 3_600_000_000
_MONTH_DAYS: Final = 31


def forgotten(states: Sequence[StateNote], head: HeadNote, keep: KeepSection, now_us: int) -> list[StateNote]:
    """The states that are not kept any more, the oldest first as they are given. The newest that anybody may be served
    stays, and what is newer: an answer never goes back.
    """
    servable = [at for at, each in enumerate(states) if _is_servable(each, head)]
    end = servable[-1] if servable else 0
    kept: dict[tuple[str, int], StateNote] = {}
    for each in reversed(states[:end]):  # of each hour and day the first one stays
        hour = each.noted_us // _HOUR_US
        age_hours = now_us // _HOUR_US - hour
        if age_hours < 1:
            kept["all", each.noted_us] = each
        if age_hours < keep.hours:
            kept["hour", hour] = each
        if age_hours < 24 * keep.days:
            kept["day", hour // 24] = each
        if age_hours < 24 * _MONTH_DAYS * keep.months:
            kept["month", hour // (24 * _MONTH_DAYS)] = each
    names = {each.name for each in kept.values()}
    return [each for each in states[:end] if each.name not in names]


def _is_servable(state: StateNote, head: HeadNote) -> bool:
    position = state.position
    is_whole = not (is_inside_transaction(position.pair) or position.snapshots or state.incomplete)
    return is_whole and position.pair <= head.position.pair
