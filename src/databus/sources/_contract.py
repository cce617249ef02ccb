"""What a source is: how the changes of one physical source are read. The relay's capture loop is its only caller.

One thread calls everything but `request_snapshot`. The life of a source:

    identify() → tables() → start(resume) → poll() … poll() → close()
                              ↑ durable() at any time between polls

A source yields whole groups (see `databus.wire.Group`) in commit order. The last ones may still be on their way into
the log when the next is asked for. After `start(resume)` the first group continues exactly after `resume`, wherever the
process that produced `resume` was killed; what it yields for the same transactions is the same again, snapshots
excepted. A group may be a commit alone, for transactions that changed no captured table: a source whose log is busy
with others yields one now and then (its own `progress_bytes` and `progress_ms`), never one for each, so that neither
consumers' checkpoints nor what the database keeps for us stand still. Rows that are encoded already, as those of
another log, are given with their bytes (`Rows.body`): they go into the log as they are, and the batch is a view of
them. So does a whole group (`Group.encoded`) of a log that this one is a copy of; see `_copying`. A source never skips:
if what it needs is gone, or the database is not the one of `resume`, it raises `SourceChanged` or `PositionPurged`; if
the database does not answer, `ServiceUnavailable`, and the capture loop closes it, waits and starts again from the
log's end.

A source may also have a static method `contains` (see `Contains`): by it a log knows whether a consumer's position is
of its history, where the log holds nothing of that transaction. Without it such a position is accepted.

SCNs increase in commit order and are the same whenever the same transactions are read. Where the database's own clock
exceeds 55 bits, the source counts (`ScnCounter`), and its identity's scheme is `COUNTED`: such a log is not peerable.

A snapshot that a start finds open (`resume.snapshots`) goes on after its last key. A source that cannot read on from a
key begins again: another `snapshot_begin` with a higher generation, all rows, and the end of that one alone. The rows
of the attempt before stay in the log. Until that begin, commits go on naming the snapshot that is open.

Where `start` may take long, a source may have an attribute `doing`, a text that says what it does meanwhile; it is
shown where users ask what the source waits for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from databus.core import ORDINAL_MAX, Identity, LimitExceeded, make_scn, ordinal_of
from databus.log import Resume
from databus.schema import TableSchema
from databus.wire import Group


@dataclass(frozen=True, slots=True)
class SourceLag:
    """How far capture is behind the database. Unknown is None."""

    behind_ms: float | None = None
    """Age of the oldest change that is not captured, or of the last captured one where that is unknown; 0 only where
    nothing waits. While it is None, the relay counts on from when it was last 0."""
    changes: int | None = None
    """How many changes wait to be captured."""
    retention_left_ms: float | None = None
    """How long until the database drops something that we still need."""
    values_omitted: Mapping[str, int] = field(default_factory=dict)
    """By table, how many values were omitted since the source began, since their rows were too large."""
    bytes: int | None = None
    """How many bytes of the database's log are not captured yet."""
    statements_unknown: int = 0
    """How many changes of tables were not understood since the source began; those tables are read again."""


class Source(Protocol):
    """One physical source. See this module's first lines for the order of calls."""

    physical: str

    def identify(self) -> Identity:
        """Connect if need be, and return which database this is. Raises `ServiceUnavailable`, `InputError`,
        `SourceChanged`.
        """
        ...

    def tables(self) -> Sequence[TableSchema]:
        """The captured tables as they are now, in a stable order."""
        ...

    def start(self, resume: Resume) -> None:
        """Continue after `resume`. Raises `SourceChanged`, `PositionPurged`, `LockHeld`, `ServiceUnavailable`."""
        ...

    def poll(self, wait_ms: int) -> Group | None:
        """The next group, or None if nothing came within `wait_ms`.

        Raises as `start` does, and `UnrepresentableValue`.
        """
        ...

    def durable(self, position: Mapping[str, Any]) -> None:
        """Everything up to this commit position is safe in the log: the source may confirm it or trim its trail."""
        ...

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        """Read these tables again, starting at one of the next polls. Any thread. Raises `UnknownSource`.

        where: read only the rows for which this condition holds, in the database's SQL; the end of the reading is then
        not `complete`. Raises `InputError` for an invalid condition, `UnsupportedFeature` where the source takes none.
        """
        ...

    def lag(self) -> SourceLag:
        """How far behind. Cheap; asked about once a second, between polls."""
        ...

    def close(self) -> None:
        """Release everything; callable twice, and after any error."""
        ...


class ScnCounter:
    """Gives each transaction the next SCN. Make one at each `start`: it goes on from where the log ends.

    After a crash the log is cut back to its last whole transaction. The source reads on from that one's position, so
    what it yields again gets the SCNs that it had. Two logs count alike only if they began at the same transaction.
    Therefore the `scheme` of such a source's identity is `databus.core.COUNTED`, which is not peerable.
    """

    def __init__(self, resume: Resume) -> None:
        self.scn = resume.scn or make_scn(resume.timeline, 0)
        """SCN of the last transaction."""

    def next(self) -> int:
        """The SCN of the next transaction. Call it for every transaction that is yielded, and for no other."""
        if ordinal_of(self.scn) == ORDINAL_MAX:
            raise LimitExceeded(f"SCN {self.scn}: the timeline has no more; a new one must begin")
        self.scn += 1
        return self.scn
