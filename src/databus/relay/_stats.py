"""Statistics of serving: what each client has asked for and been sent. All of it belongs to the event loop's thread."""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from databus.core import SourceCheckpoint
from databus.relay._grant import Grant

NAME_LENGTH_MAX: Final = 100
_CALLS: Final = ("sources", "register", "stream", "position", "range", "other")

_GONE_S: Final = 3_600.0
_Key = tuple[str, str]
"""A client's name and a physical source."""


@dataclass
class ClientStats:
    """Counters of one client, or of all of them."""

    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_CALLS, 0))
    errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_CALLS, 0))
    sent_bytes: int = 0
    seconds: float = 0.0
    last_us: int = 0
    access: str = ""
    """As whom it asked last, of `access` in relay.yml."""

    def to_json(self) -> dict[str, Any]:
        """With the original's names where it had them."""
        value: dict[str, Any] = {}
        for command in _CALLS:
            name = command.capitalize()
            value[f"num{name}Calls"] = self.calls[command]
            value[f"numErr{name}Calls"] = self.errors[command]
        return {
            **value,
            "timeStreamCallsMs": round(self.seconds * 1000),
            "numBytes": self.sent_bytes,
            "timestampLastAccessMs": self.last_us // 1000,
            **({"access": self.access} if self.access else {}),
        }


@dataclass(eq=False)
class OpenStream:
    """A stream that is being served."""

    client: str
    physical: str
    selected: str
    output: str
    since_us: int
    position: SourceCheckpoint
    """Up to where it has been sent."""
    sent_bytes: int = 0
    at_tail: bool = False
    """Whether nothing is left to send."""
    access: str = ""

    def to_json(self) -> dict[str, Any]:
        """For /relayStats and /admin/status."""
        return {
            "physical": self.physical,
            "sources": self.selected,
            "output": self.output,
            "sinceMs": self.since_us // 1000,
            "position": self.position.to_json(),
            "numBytes": self.sent_bytes,
            "atTail": self.at_tail,
            **({"access": self.access} if self.access else {}),
        }


class Stats:
    """All clients, up to a number of names; who has been away longest is forgotten first."""

    def __init__(self, clients_max: int) -> None:
        self.total = ClientStats()
        self.streams: set[OpenStream] = set()
        self._clients: OrderedDict[str, ClientStats] = OrderedDict()
        self._clients_max = clients_max
        self._gone: OrderedDict[_Key, tuple[SourceCheckpoint, float]] = OrderedDict()

    def opened(self, stream: OpenStream) -> None:
        """A stream is being served from now on."""
        self.streams.add(stream)
        self._gone.pop((stream.client, stream.physical), None)

    def closed(self, stream: OpenStream, now_s: float) -> None:
        """A stream has ended. The position of a named client is kept for an hour: if it has crashed, its lag stays
        visible.
        """
        self.streams.discard(stream)
        if _is_name(stream.client):
            self._gone[stream.client, stream.physical] = (stream.position, now_s)
            while len(self._gone) > self._clients_max:
                self._gone.popitem(last=False)

    def positions(self, now_s: float) -> list[tuple[_Key, SourceCheckpoint]]:
        """Up to where each client has been sent each physical source: its open streams, else its last one."""
        open_ = [((stream.client, stream.physical), stream.position) for stream in list(self.streams)]
        here = {key for key, _ in open_}
        gone = [(key, position) for key, (position, at_s) in list(self._gone.items()) if now_s - at_s <= _GONE_S]
        return [*open_, *(last for last in gone if last[0] not in here)]

    def client(self, name: str) -> ClientStats:
        """The counters of a client, made at its first request."""
        counters = self._clients.get(name)
        if counters is None:
            counters = self._clients[name] = ClientStats()
            while len(self._clients) > self._clients_max:
                self._clients.popitem(last=False)
        self._clients.move_to_end(name)
        return counters

    def note(self, name: str, command: str, access: str, *, is_error: bool, seconds: float, now_us: int) -> None:
        """A request has been answered."""
        command = command if command in _CALLS else "other"
        client = self.client(name)
        client.access = access
        for counters in (self.total, client):
            counters.calls[command] += 1
            counters.errors[command] += is_error
            counters.last_us = now_us
            counters.seconds += seconds if command == "stream" else 0.0

    def sent(self, stream: OpenStream, count: int, position: SourceCheckpoint) -> None:
        """A stream got on."""
        stream.sent_bytes += count
        stream.position = position
        self.total.sent_bytes += count
        self.client(stream.client).sent_bytes += count

    def names(self, grant: Grant) -> list[str]:
        """The clients that are known; for whoever sees some tables only, those that came with the same token."""
        return sorted(
            name for name, counters in self._clients.items() if not grant.is_limited or counters.access == grant.name
        )

    def known(self, name: str, grant: Grant) -> ClientStats | None:
        """The counters of a client, if it has ever asked."""
        counters = self._clients.get(name)
        return None if counters is None or (grant.is_limited and counters.access != grant.name) else counters


def _is_name(client: str) -> bool:
    """Whether a client gave itself this name; the others go by their address."""
    if client in ("localhost", "unknown"):
        return False
    try:
        ipaddress.ip_address(client)
    except ValueError:
        return True
    return False
