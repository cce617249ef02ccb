"""The door: where connections wait until a request of theirs was admitted. Start with `Door.protocol_of`.

A connection that says nothing, does not end its TLS handshake, or may not ask, costs a place here and no other: it is
closed after `request_ms_max`, and sooner where there are more than `silent_max`, beginning with the one that has waited
longest of the address that has the most. So who connects and asks at once is heard, however many others only connect.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from databus.relay._tls import TlsTransport

_SWEEP_S_MAX: Final = 1.0


class Door:
    """Silent connections, by address. All of it belongs to the event loop's thread."""

    def __init__(self, silent_max: int, wait_s_max: float) -> None:
        self._silent_max = silent_max
        self._wait_s_max = wait_s_max
        self._addresses: dict[asyncio.Transport, str] = {}
        self._waiting: dict[str, dict[asyncio.Transport, float]] = {}  # by address, longest first: until when
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, transport: object) -> bool:
        return transport in self._addresses

    def protocol_of(self, protocol: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """A factory of protocols for a server: those of `protocol`, each behind this door."""
        return lambda: _Entrance(self, protocol)

    def enter(self, transport: asyncio.Transport) -> None:
        """A connection was made."""
        if len(self._addresses) >= self._silent_max:
            self._close_one()
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._addresses[transport] = address
        loop = asyncio.get_running_loop()
        self._waiting.setdefault(address, {})[transport] = loop.time() + self._wait_s_max
        if self._timer is None:
            self._timer = loop.call_later(min(self._wait_s_max, _SWEEP_S_MAX), self._sweep)

    def leave(self, transport: asyncio.BaseTransport | None) -> None:
        """A request of it was admitted, or it has gone; callable for any connection."""
        if isinstance(transport, TlsTransport):
            transport = transport.raw
        if not isinstance(transport, asyncio.Transport):
            return
        address = self._addresses.pop(transport, None)
        if address is not None:
            waiting = self._waiting[address]
            del waiting[transport]
            if not waiting:
                del self._waiting[address]

    def _close_one(self) -> None:
        most = max(self._waiting.values(), key=len)
        self._close(next(iter(most)))

    def _close(self, transport: asyncio.Transport) -> None:
        self.leave(transport)
        transport.abort()

    def _sweep(self) -> None:
        """Close those whose time is over."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in list(self._waiting.values()):
            for transport, until in list(waiting.items()):
                if until > now and not transport.is_closing():
                    break
                self._close(transport)
        delay_s = min(self._wait_s_max, _SWEEP_S_MAX)
        self._timer = loop.call_later(delay_s, self._sweep) if self._addresses else None


class _Entrance(asyncio.Protocol):
    """Notes a connection at the door, and hands it on at once."""

    def __init__(self, door: Door, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._door = door
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a TCP connection
        self._door.enter(transport)
        protocol = self._protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
