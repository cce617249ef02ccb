"""The relay upstream as it is asked about a log: which one, where it stands, how far it is behind its database.

A thread asks once a second, so that a measure of the lag costs the stream nothing.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from databus.core import (
    ConfigError,
    CorruptData,
    DatabusError,
    MalformedRequest,
    Pair,
    ServiceUnavailable,
    UnknownSource,
    UnsupportedFeature,
)
from databus.link import RelayClient
from databus.log import LogOrigin, SchemaVersion, definitions_from_json
from databus.sources._copying import RelayHop

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the log upstream stood at one moment."""

    log: str
    published: Pair
    lag_ms: float | None
    """How far it was behind its database; None where it did not know."""


class Upstream:
    """Asks about one physical source. `watch` and `close` once each."""

    def __init__(self, physical: str, client: RelayClient) -> None:
        self.physical = physical
        self._client = client
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.path: tuple[RelayHop, ...] = ()
        self.definitions: tuple[SchemaVersion, ...] = ()
        self.standing: Standing | None = None
        """None while it does not answer."""

    @property
    def _where(self) -> str:
        return f"{self.physical}: the relay at {self._client.url}"

    def origin(self, me: RelayHop, start: str) -> LogOrigin:
        """Which log it has, and where a copy begins.

        Raises `ConfigError` where it has no source of that name, or has it from `me`; `ServiceUnavailable` while its
        log is not open.
        """
        answer = self._ask(start)
        if me.id in {hop.id for hop in self.path}:
            names = " from ".join(hop.url for hop in (me, *self.path[: [hop.id for hop in self.path].index(me.id) + 1]))
            raise ConfigError(
                f"{self.physical}: a loop of relays, with no database in it: {names}. Let one of them read the "
                f"database, or a relay that does"
            )
        if answer.get("log") is None:
            raise ServiceUnavailable(f"{self._where} has no log yet: {answer.get('state')}")
        origin = LogOrigin.from_json(answer, self._where)
        self.definitions = origin.definitions
        return origin

    def renew_definitions(self) -> None:
        """Have all definitions that there are by now."""
        self._take(self._ask("latest", len(self.definitions)))

    def _ask(self, start: str, definitions: int | None = None) -> Mapping[str, Any]:
        try:
            answer = self._client.chain(self.physical, start, definitions=definitions)
        except UnknownSource as error:
            raise ConfigError(
                f"{self._where} has no physical source {self.physical!r}: {error}. A copy has the name that its "
                f"source has upstream: names are part of positions"
            ) from error
        except MalformedRequest as error:
            if "/chain" not in str(error):
                raise
            raise UnsupportedFeature(
                f"{self._where} is of an older databus, and cannot be copied; update it"
            ) from error
        if not isinstance(answer, dict) or not isinstance(answer.get("path"), list):
            raise CorruptData(f"{self._where}: its answer to /chain is not readable")
        self.path = tuple(RelayHop.from_json(hop, self._where) for hop in answer["path"])
        return answer

    def _take(self, answer: Mapping[str, Any]) -> None:
        try:
            definitions = definitions_from_json(answer.get("definitions", ()))
        except (KeyError, TypeError, ValueError, DatabusError) as error:
            raise CorruptData(f"{self._where}: its definitions are not readable: {error!r}") from error
        if len(definitions) > len(self.definitions):
            self.definitions = definitions

    def watch(self) -> None:
        """Look once a second from now on."""
        self._thread = threading.Thread(target=self._watch, daemon=True, name=f"upstream-{self.physical}")
        self._thread.start()

    def _watch(self) -> None:
        while not self._ending.is_set():
            try:
                answer = self._ask("latest", len(self.definitions))
                self._take(answer)
                before, lag_ms = answer["before"], answer.get("lag_ms")
                self.standing = Standing(str(answer["log"]), (int(before["scn"]), int(before["seq"])), lag_ms)
            except (DatabusError, KeyError, TypeError, ValueError):  # the stream of frames raises what is wrong
                self.standing = None
            self._ending.wait(_LOOK_S)

    def close(self) -> None:
        """Ask no more, and close the client. Callable twice."""
        self._ending.set()
        self._client.close()
