"""The stores as a server sees them: opened once, and looked at again for each request."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from databus.bootstrap._ask import AnswerRequest
from databus.bootstrap._parts import Footers, Outline
from databus.bootstrap._plan import KeptPast, plan
from databus.bootstrap._render import Stores
from databus.core import ServiceUnavailable, SourceCheckpoint
from databus.disk import Location
from databus.stores import KnownSchemas, LogCut, LogLook, LogStore, NoteFolder, StateRows


@dataclass(frozen=True)
class Look:
    """What is there of one physical source at one moment."""

    kept: KeptPast
    stores: Stores
    schemas: KnownSchemas
    log: LogLook
    footers: Footers
    cut_now: Callable[[], LogCut | None]
    """Where the log store was cut off at the moment of asking."""

    def outline(self, position: SourceCheckpoint | None, ask: AnswerRequest) -> Outline:
        """What is answered to who stands there. Raises what `plan` and `hold` do."""
        self.hold(ask.sources)
        return Outline(plan(position, ask, self.kept), ask, self.kept, self.stores, self.footers)

    def hold(self, sources: Iterable[str]) -> None:
        """List the files of tables (`db.table`) in the log store: they stay for hours. Raises `ServiceUnavailable`
        where some were removed since the notes were read, which would be missed in silence.
        """
        for source in sources:
            self.log.controls(source)
        if self.cut_now() != self.kept.head.cut:
            raise ServiceUnavailable(f"{self.schemas.physical}: the log store was cut at this moment; ask again")


class PhysicalStores:
    """Both stores of one physical source. Any thread may ask."""

    def __init__(self, root: Location, physical: str) -> None:
        self.physical = physical
        self._notes = NoteFolder(root, physical)
        self._log = LogStore(root / "log", self._notes)
        self._states = StateRows(root / "state", physical)
        self._schemas: tuple[Sequence[object], KnownSchemas] | None = None

    def look(self) -> Look:
        """Read the notes. Raises `ServiceUnavailable` while there are none, `CorruptData` for what are none."""
        head = self._notes.head()
        if head is None:
            raise ServiceUnavailable(f"{self.physical}: the stores are being filled, and hold nothing yet; ask again")
        if self._schemas is None or self._schemas[0] != head.definitions:
            self._schemas = head.definitions, KnownSchemas(self.physical, head.definitions)
        schemas = self._schemas[1]
        log = self._log.look(head)  # after the notes: it has all that they say
        kept = KeptPast(self._notes.states(), head, log.controls, time.time_ns())
        stores = Stores(schemas, log.controls, log.pieces, self._states.batches)
        return Look(kept, stores, schemas, log, Footers(log.groups, self._states.groups), self._cut)

    def _cut(self) -> LogCut | None:
        head = self._notes.head()
        return None if head is None else head.cut
