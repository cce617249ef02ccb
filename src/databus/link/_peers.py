"""Peers: the addresses of relays that capture one database. A question is asked at one; at the others where that fails.

Every request of a `RelayClient` goes through `Peers.ask`, so the rules stand here once:

- The address that answered last is asked first. One that comes back is not preferred by itself.
- It does not answer, or answers 429 or 5xx: the next one is asked. Each is asked once, so the wait is bounded.
- It answers 404, 409 or 410: this relay has no such source, schema or position. Another may, so the others are asked
  before anybody is told. While one of them is silent that is no answer yet: the error is one to try again after, and
  names the bootstrap service that one which has lost the position knows.
- Any other answer, such as 400 or 401, is the answer.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from databus.core import (
    ConfigError,
    DatabusError,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    TransientError,
    UnknownSource,
)
from databus.link._http import Endpoint

T = TypeVar("T")
_MAY_DIFFER: Final = (UnknownSource, PositionForeign, PositionPurged)
_SERVER_ERROR: Final = 500


class Peers:
    """The addresses, and which one answered last. `clone` one for each that follows: they may go on at different ones.

    is_closed: whether the one that asks has been closed, and its errors come from that.
    """

    def __init__(self, endpoints: Sequence[Endpoint], is_closed: Callable[[], bool], at: int = 0) -> None:
        if not endpoints:
            raise ConfigError("relay: expected an address, such as http://127.0.0.1:11115, or several")
        self.endpoints = tuple(dict.fromkeys(endpoints))
        self._is_closed = is_closed
        self._at = at
        self._logged = ""  # the last refusal that was logged

    def clone(self, is_closed: Callable[[], bool]) -> "Peers":
        """The same addresses for somebody else."""
        return Peers(self.endpoints, is_closed, self._at)

    @property
    def now(self) -> Endpoint:
        """The address that answered last."""
        return self.endpoints[self._at]

    @property
    def others(self) -> list[Endpoint]:
        """The other addresses."""
        return [endpoint for endpoint in self.endpoints if endpoint is not self.now]

    def note_silent(self, endpoint: Endpoint, error: TransientError) -> None:
        """Say that an address does not answer that is not needed now."""
        if not self._is_closed():
            _log("a relay does not answer; it is asked when the others do not", error, relay=endpoint.name)

    def ask(self, question: Callable[[Endpoint], T]) -> T:
        """The first answer, asking each address once. Raises the error of the only one, or one that names all."""
        first, count = self._at, len(self.endpoints)
        errors: list[DatabusError] = []
        for step in range(count):
            at = (first + step) % count
            try:
                answer = question(self.endpoints[at])
            except DatabusError as error:
                if count == 1 or self._is_closed() or not _may_differ(error):
                    raise
                errors.append(_named(error, self.endpoints[at]))
            else:
                if errors:
                    self._move(first, at, errors[0])
                return answer
        raise self._joint(errors) from errors[0]

    def leave(self, endpoint: Endpoint, error: DatabusError) -> None:
        """Ask another one next: this one was connected, and fell silent."""
        if len(self.endpoints) > 1 and endpoint is self.now and not self._is_closed():
            self._move(self._at, (self._at + 1) % len(self.endpoints), error)

    def _move(self, left: int, now: int, error: DatabusError) -> None:
        self._at, self._logged = now, ""
        was, relay = self.endpoints[left].name, self.endpoints[now].name
        _log("another relay is asked from now on", error, was=was, relay=relay)

    def _joint(self, errors: Sequence[DatabusError]) -> DatabusError:
        message = "; ".join(dict.fromkeys(str(error) for error in errors))
        definite = [error for error in errors if isinstance(error, _MAY_DIFFER)]
        purged = [error for error in definite if isinstance(error, PositionPurged)]
        bootstrap = next((error.bootstrap for error in purged if error.bootstrap is not None), None)
        if len(definite) < len(errors):
            hidden = "; ".join(map(str, definite))
            if hidden not in ("", self._logged):  # nobody would read it for as long as the others are silent
                _log("a relay cannot go on from here; the others are waited for", definite[0], message=hidden)
            self._logged = hidden
            waiting = ServiceUnavailable(f"none of {len(self.endpoints)} relays can go on: {message}")
            waiting.bootstrap = bootstrap
            return waiting
        if purged:
            oldest = [error.oldest for error in purged if error.oldest is not None]
            oldest_scn = min(oldest, default=None)
            return PositionPurged(message, physical=purged[0].physical, oldest=oldest_scn, bootstrap=bootstrap)
        if isinstance(errors[0], PositionForeign):
            return PositionForeign(message, physical=errors[0].physical)
        return type(errors[0])(message)


def _named(error: DatabusError, endpoint: Endpoint) -> DatabusError:
    """The error with the address that it is of: a relay's own words do not have it."""
    if endpoint.name not in str(error):
        error.args = (f"{endpoint.name}: {error}", *error.args[1:])
    return error


def _may_differ(error: DatabusError) -> bool:
    """Whether another relay of the same database may answer otherwise."""
    return isinstance(error, (TransientError, *_MAY_DIFFER)) or error.http_status >= _SERVER_ERROR


def _log(event: str, error: DatabusError, **facts: str) -> None:
    try:
        from databus.operate import logger_of  # takes long to import, and few processes have something to say here
    except ImportError:  # an executor of Spark's has what reads and writes alone; the next relay is asked all the same
        return
    logger_of("databus.link").warning(event, **{"error": type(error).__name__, "message": str(error), **facts})
