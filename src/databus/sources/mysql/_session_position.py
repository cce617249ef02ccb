"""Where a session stands in the log, which tables are being read there, and the controls that the bus makes itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from databus.core import Clock, ControlKind, next_bus_seq, source_name
from databus.schema import TableSchema
from databus.wire import Commit, Control, Group, OpenSnapshot

BEGINS_US: Final = "begins_us"
"""In a position: transactions committed before this time are not captured."""

HELD_KEY: Final = "held"
"""In a position: the tables that are held there (see `_held_tables`)."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A transaction, and the place after it in the server's log."""

    scn: int
    """With its timeline."""
    seq: int
    """The last one given at `scn`."""
    txid: str
    commit_us: int
    position: Mapping[str, Any]
    timeline: int


@dataclass(frozen=True, slots=True)
class Gap:
    """What was lost before this session begins."""

    from_scn: int
    """The last SCN before the gap."""
    reason: str


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table whose rows are not captured, since a statement may have changed it in an unknown way."""

    name: tuple[str, str]
    scn: int
    """That statement's."""


def held_at(position: Mapping[str, Any] | None) -> dict[str, HeldTable]:
    """The tables that are held at a commit's position, by source."""
    entries = (position or {}).get(HELD_KEY, ())
    return {source_name(database, name): HeldTable((database, name), scn) for database, name, scn in entries}


def held_entry(held: Mapping[str, HeldTable]) -> dict[str, Any]:
    """The part of a position about held tables."""
    return {HELD_KEY: [[*table.name, table.scn] for table in held.values()]} if held else {}


class SessionPosition:
    """Where a session stands now. `snapshots` are the readings that are open, by table; every commit names them."""

    def __init__(self, place: StreamPosition, snapshots: Mapping[str, OpenSnapshot], clock: Clock) -> None:
        self.place = place
        self.snapshots = dict(snapshots)
        self._clock = clock

    def move(self, position: Mapping[str, Any]) -> None:
        """The log stands further, without a transaction."""
        self.place = replace(self.place, position=position)

    def pass_transaction(self, scn: int, seq: int, txid: str, commit_us: int, position: Mapping[str, Any]) -> None:
        """The log stands behind a transaction."""
        self.place = replace(self.place, scn=scn, seq=seq, txid=txid, commit_us=commit_us, position=position)

    def next_seqs(self, count: int = 1) -> int:
        """Take so many numbers of the bus's own at this SCN; the first of them."""
        first = next_bus_seq(self.place.seq, self._clock.now_ns())
        self.place = replace(self.place, seq=first + count - 1)
        return first

    def commit(self) -> Commit:
        """A commit that says where this is."""
        place = self.place
        return Commit(place.scn, place.seq, place.txid, place.position, place.commit_us, dict(self.snapshots))

    def control(self, kind: ControlKind, table: TableSchema, body: Mapping[str, Any], seq: int | None = None) -> Group:
        """A control of the bus's own: no function of the log, so it is served after fsync. seq: one that was taken."""
        seq = self.next_seqs() if seq is None else seq
        return Group(self.commit(), (), Control(kind, table, self.place.scn, seq, body), snapshot=True)


def as_one(groups: Sequence[Group], position: Mapping[str, Any]) -> list[Group]:
    """Groups that belong together: only the last one ends their transaction."""
    return [
        replace(group, commit=replace(group.commit, continues=group is not groups[-1], position=position))
        for group in groups
    ]
