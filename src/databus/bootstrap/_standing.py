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


def standing_at(controls: Sequence[LoggedControl], until: Pair) -> Standing:
    """controls: all of one table, in order."""
    is_there, needed, begun, table = True, False, None, None
    for number, each in enumerate(controls):
        if each.pair > until:
            break
        table = each.table
        is_there = each.kind is not ControlKind.DROP
        if each.kind is ControlKind.DROP:
            needed, begun = False, None
        elif each.kind is ControlKind.GAP or _asks_for_rows(each):
            needed, begun = True, None
        elif each.kind is ControlKind.SNAPSHOT_BEGIN:
            begun = each.pair
            needed = needed or number == 0  # its first sight
        elif each.kind is ControlKind.SNAPSHOT_END and _brought_all(each):
            scn, seq = each.body["begin"]
            needed = needed and not (begun is not None and (scn, seq) >= begun)
    return Standing(is_there, needed, table)


def _asks_for_rows(control: LoggedControl) -> bool:
    return control.kind is ControlKind.SCHEMA and int(control.body.get("class", 1)) >= NEEDS_SNAPSHOT


def _brought_all(end: LoggedControl) -> bool:
    """Whether a snapshot read all that is captured; with a WHERE in the configuration, that is what passes it."""
    return bool(end.body.get("complete", False) or end.body.get("as_configured", False))
