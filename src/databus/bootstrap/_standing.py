"""How a table stands at a position, by the controls up to there. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from databus.core import ControlKind, Pair
from databus.schema import NEEDS_SNAPSHOT
from databus.stores import LoggedControl


@dataclass(frozen=True, slots=True)
class TableStanding:
    """What the controls say of a table."""

    dropped: Pair | None
    """Where it was dropped last, if no control has come since; it may have been made again by then, as rows tell."""
    is_incomplete: bool
    """Whether it lacks rows that a snapshot is to bring."""
    is_narrowed: bool = False
    """Whether it is captured with a WHERE, so that no snapshot of it is complete."""
    unsettled_since: Pair | None = None
    """Where that began for which it waits for a snapshot, or where the one began that is being read; None if nothing
    is open."""

    def is_gone(self, first_after: Callable[[Pair], Pair | None], until: Pair) -> bool:
        """Whether it was dropped, and is not there again at the position. first_after: of what the log store has of it,
        the first pair above one.
        """
        following = None if self.dropped is None else first_after(self.dropped)
        return self.dropped is not None and (following is None or following > until)


def standing_at(controls: Sequence[LoggedControl], until: Pair) -> TableStanding:
    """controls: all of one table, in order."""
    dropped, needed, begun, since, is_narrowed = None, False, None, None, False
    for number, control in enumerate(controls):
        if control.pair > until:
            break
        is_narrowed = bool(control.body.get("is_narrowed", is_narrowed))
        dropped = control.pair if control.kind is ControlKind.DROP else None
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
    return TableStanding(dropped, needed, is_narrowed, since)


def _asks_for_rows(control: LoggedControl) -> bool:
    return control.kind is ControlKind.SCHEMA and int(control.body.get("class", 1)) >= NEEDS_SNAPSHOT
