"""Logs that are copies of another relay's: which relays are between here and the database, and what a copy is of."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from databus.core import SourceChanged
from databus.disk import move_folder
from databus.log import Log, LogOrigin, SchemaVersion
from databus.operate import logger_of
from databus.sources import Copying, RelayHop, Source

FORMER: Final = ".former"
"""Folder, in the relay's, of logs that a new one has taken the place of. No physical source has such a name."""

_logger = logger_of("databus.relay")


class LogCopy:
    """What a capture knows of the log that its source has its changes from; nothing, where that is a database.

    me: this relay, as others come to know it.
    """

    def __init__(self, me: Callable[[], RelayHop]) -> None:
        self._me = me
        self._source: Copying | None = None
        self._adopted: Sequence[SchemaVersion] = ()
        self.path: tuple[RelayHop, ...] = ()
        """The relays between here and the database, the nearest first, as far as they are known."""

    @property
    def is_one(self) -> bool:
        """Whether the log is a copy: nothing is written to it but what its origin has."""
        return self._source is not None

    def takes(self, source: Source) -> Source:
        """This source is read from now on."""
        self._source = source if isinstance(source, Copying) else None
        return source

    def hops(self) -> list[dict[str, str]]:
        """This relay, and those between here and the database."""
        return [asdict(hop) for hop in (self._me(), *self.path)]

    def origin(self, log: Log | None, begin_again: Callable[[Log], None]) -> LogOrigin | None:
        """What the log is a copy of, or is to be; None where it is none.

        begin_again: called where a new log is to take the place of `log`. Raises `SourceChanged` where it may not be.
        """
        source = self._source
        if source is None:
            self.path = ()
            return None
        try:
            origin = source.origin(self._me(), is_new=log is None)
        finally:
            self.path = tuple(source.path)
        if log is None or log.uuid == origin.log:
            return origin
        if not source.begins_new_log:
            raise SourceChanged(
                f"{log.physical}: {log.folder} is log {log.uuid}, of {log.identity.description}; the relay upstream "
                f"has log {origin.log} now, of {origin.identity.description}. What this log holds is served. To copy "
                f"the new one, set `on_new_log: begin` for {log.physical} and run `databus sources reload`; or stop "
                f"this relay, move that folder away and start it again. Consumers whose positions are of the former "
                f"log alone have to start over"
            )
        begin_again(log)
        return source.origin(self._me(), is_new=True)

    def register(self, log: Log, source: Source | None = None) -> None:
        """Have all definitions in the log's store: what its origin's has by now, which is cheap while there is nothing
        new; else those of a source that begins.
        """
        if self._source is None:
            log.schemas.register(() if source is None else source.tables())
        elif self._source.definitions is not self._adopted or source is not None:
            definitions = self._source.definitions
            log.schemas.adopt(definitions)
            self._adopted = definitions


def set_aside(log: Log) -> None:
    """Close a log, and move its folder below `FORMER`, from where it is not served."""
    log.close()
    place = _free(log.folder.parent / FORMER / f"{log.physical}-{log.uuid}")
    move_folder(log.folder, place)
    _logger.warning("a new log begins; the former one is kept, and not served", physical=log.physical, kept=str(place))


def _free(place: Path) -> Path:
    free, count = place, 1
    while free.exists():  # it was copied before, and has come back
        count += 1
        free = place.with_name(f"{place.name}.{count}")
    return free


def chain_json(
    physical: str,
    hops: Sequence[dict[str, str]],
    log: Log | None,
    *,
    start: str,
    known: int,
    state: str,
    lag_ms: float | None,
) -> dict[str, Any]:
    """What /chain answers. known: how many definitions the asker has; they are left out while there are no more."""
    answer: dict[str, Any] = {"physical": physical, "path": list(hops), "state": state, "lag_ms": lag_ms, "log": None}
    if log is None:
        return answer
    answer |= log.as_origin(start).to_json()
    if len(answer["definitions"]) <= known:
        del answer["definitions"], answer["in_force"]
    return answer
