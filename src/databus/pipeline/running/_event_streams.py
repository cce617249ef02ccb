"""Events of a run over HTTP: server-sent events, one stream for each client.

    id: 7
    event: batch
    data: {"event": "batch", "output": "copy", "rows": 12, ...}

A slow client loses events, and an event `lost` says how many; the run never waits for a client.
"""

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from databus.core import TooManyRequests

STREAMS_MAX: Final = 20
_WAITING_MAX: Final = 1_000
"""Events that wait for a slow client."""
_SILENT_S_MAX: Final = 15.0
"""Then a comment is sent, so that both sides notice when the other is gone."""
_WRITE_S_MAX: Final = 30.0


class _Stream:
    def __init__(self) -> None:
        self.waiting: deque[tuple[int, str, bytes]] = deque(maxlen=_WAITING_MAX)
        self.has_come = asyncio.Event()
        self.lost = 0


class EventStreams:
    """`put` is called by any thread, everything else by the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: set[_Stream] = set()
        self._number = 0
        self._is_ending = False

    def put(self, event: Mapping[str, Any]) -> None:
        """Send an event to all clients."""
        if self._streams:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._put, dict(event))

    def end(self) -> None:
        """End all streams."""
        self._is_ending = True
        for stream in self._streams:
            stream.has_come.set()

    def _put(self, event: Mapping[str, Any]) -> None:
        self._number += 1
        data = json.dumps(event, default=str, ensure_ascii=False).encode(errors="backslashreplace")
        for stream in self._streams:
            stream.lost += len(stream.waiting) == _WAITING_MAX
            stream.waiting.append((self._number, str(event["event"]), data))
            stream.has_come.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a client until either side ends the stream."""
        if len(self._streams) >= STREAMS_MAX:
            raise TooManyRequests(f"{STREAMS_MAX} streams of events are open already")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        stream = _Stream()
        self._streams.add(stream)
        try:
            await response.prepare(request)
            await response.write(b": follows\n\n")
            while not self._is_ending:
                await asyncio.wait_for(response.write(await self._next(stream)), _WRITE_S_MAX)
        except (TimeoutError, ConnectionError):
            response.force_close()
        finally:
            self._streams.discard(stream)
        return response

    async def _next(self, stream: _Stream) -> bytes:
        """All events that have come meanwhile, in one piece."""
        with suppress(TimeoutError):
            await asyncio.wait_for(stream.has_come.wait(), _SILENT_S_MAX)
        stream.has_come.clear()
        parts = [b"id: %d\nevent: %s\ndata: %s\n\n" % (n, name.encode(), data) for n, name, data in stream.waiting]
        if stream.lost:
            parts.insert(0, b'event: lost\ndata: {"lost": %d}\n\n' % stream.lost)
        stream.waiting.clear()
        stream.lost = 0
        return b"".join(parts) or b": still here\n\n"
