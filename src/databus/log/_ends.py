"""The ends of a log: up to where it is appended, whole, on the disk, and shown to readers. Pure.

    published ≤ committed ≤ tail        durable ≤ committed

The tail may be inside a transaction, the others never are. Readers are shown what is committed; but where snapshots are
concerned, only what is durable, because a snapshot would not come out the same again.
"""

from collections.abc import Mapping
from typing import NamedTuple

from databus.core import BUS_SEQ_MIN, SourceChanged
from databus.log._recover import Forces
from databus.log._segment import End
from databus.wire import EncodedGroup


class Appended(NamedTuple):
    """What has been appended at one moment, for `Ends.synced`."""

    tail: End
    committed: End
    forces: Mapping[int, int]
    """At the last whole transaction: the fingerprint in force, by source id."""


class Ends:
    """See this module's first lines. It begins where recovery ends: everything is durable there."""

    __slots__ = ("_snapshot_place", "committed", "durable", "durable_forces", "forces", "published", "tail")

    def __init__(self, end: End, in_force: Mapping[int, int]) -> None:
        self.tail = self.committed = self.durable = self.published = end
        self.forces = Forces(in_force, {})
        self.durable_forces = in_force
        self._snapshot_place: tuple[int, int] | None = None  # behind the last snapshot group that is not durable

    def check_next(self, physical: str, group: EncodedGroup) -> None:
        """Raise unless the group may stand behind the tail: `SourceChanged` if its SCN is not above the last,
        ValueError for a group that no source may yield.
        """
        tail, commit, first = self.tail.commit, group.commit, group.first
        if group.is_commit_alone:
            is_next = commit.pair >= tail.pair
        else:
            is_next = first > tail.pair and (
                first[0] > tail.scn or tail.continues or first[1] >= BUS_SEQ_MIN or self.tail.commit_offset < 0
            )
        if not is_next:
            raise SourceChanged(
                f"{physical}: transaction {commit.txid} at SCN {first[0]}, `_seq` {first[1]} comes after SCN "
                f"{tail.scn}, `_seq` {tail.seq} in the log. SCNs only grow; the database was reset or restored, or it "
                f"is another one. Start a new log in another folder, or raise the timeline"
            )
        if tail.continues and commit.scn != tail.scn:
            raise ValueError(f"{physical}: SCN {commit.scn} inside the transaction at SCN {tail.scn}")
        if commit.continues and first[0] != commit.scn:
            raise ValueError(f"{physical}: a part of SCN {commit.scn} in one group with SCN {first[0]}")

    def append(self, end: End, group: EncodedGroup) -> bool:
        """The group was written, up to `end`. Whether other schemas are in force now, behind a whole transaction."""
        self.tail = end
        self.forces.use(group.schemas)
        if group.needs_sync:
            self._snapshot_place = end.place
        if end.commit.continues:
            return False
        self.committed = end
        changes_schemas = bool(self.forces.undo)
        self.forces.publish()
        if self._snapshot_place is None:
            self._publish(end)
        return changes_schemas

    def appended(self) -> Appended:
        """What an fsync that begins now makes durable."""
        return Appended(self.tail, self.committed, self.forces.published())

    def synced(self, appended: Appended) -> None:
        """So much is on the disk."""
        if appended.committed.place > self.durable.place:
            self.durable, self.durable_forces = appended.committed, appended.forces
        place = appended.tail.place
        if self._snapshot_place is not None and (self._snapshot_place <= place or place == self.tail.place):
            self._snapshot_place = None
        self._publish(self.committed if self._snapshot_place is None else self.durable)

    def cut_back(self) -> None:
        """The part of a transaction behind the last whole one was taken back, durably."""
        self.tail = self.committed
        self.forces.cut_back()
        self.synced(self.appended())

    def _publish(self, end: End) -> None:
        if end.place > self.published.place:
            self.published = end
