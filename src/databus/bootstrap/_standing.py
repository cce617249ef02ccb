"""How a table stands at a position, by the controls up to there. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from databus.core import ControlKind, Pair
from databus.schema import NEEDS_SNAPSHOT, TableSchema
from databus.stores import LoggedControl


@dataclass(frozen=True, slots=True)
class Standing:
    """What the controls say of a table."""

    is_there: bool
    """Whether it exists."""
    is_incomplete: bool
    """Whether it lacks rows that a snapshot is to bring."""
    table: TableSchema | None
    """The definition in force; None where no control names one."""
    is_narrowed: bool = False
    """Whether it is captured with a WHERE, so that no snapshot of it is complete."""
    unsettled_since: Pair | None = None
    """Where that began for which it waits for a snapshot, or where the one began that is being read; None if nothing
    is open."""


def standing_at(controls: Sequence[LoggedControl], until: Pair) -> Standing:
    """controls: all of one table, in order."""
    is_there, needed, begun, since, table, is_narrowed = True, False, None, None, None, False
    for number, control in enumerate(controls):
        if control.pair > until:
            break
        table, is_narrowed = control.table, bool(control.body.get("is_narrowed", is_narrowed))
        is_there = control.kind is not ControlKind.DROP
        if control.kind is ControlKind.DROP:
            needed, begun, since = False, None, None
        elif control.kind is ControlKind.GAP or _asks_for_rows(control):
            needed, begun, since = True, None, since or control.pair
        elif control.kind is ControlKind.SNAPSHOT_BEGIN:
            begun, since = control.pair, since or control.pair
            needed = needed or number == 0  # its first sight
        elif control.kind is ControlKind.SNAPSHOT_END:
            is_complete = control.body.get("complete", False)
            if is_complete or control.body.get("as_configured", False):  # else it was one that a request has narrowed
                is_narrowed = not is_complete
                scn, seq = control.body["begin"]
                needed = needed and not (begun is not None and (scn, seq) >= begun)
            since = since if needed else None
    return Standing(is_there, needed, table, is_narrowed, since)


def _asks_for_rows(control: LoggedControl) -> bool:
    return control.kind is ControlKind.SCHEMA and int(control.body.get("class", 1)) >= NEEDS_SNAPSHOT
