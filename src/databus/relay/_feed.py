"""Feeds: how a published group wakes the streams that wait for it, at once and without polling."""

import asyncio
from collections.abc import Callable

from databus.core import DatabusError, ServiceUnavailable


class PublishFeed:
    """One physical source's publishes, as seen from the server's event loop.

    The log calls `published` from its own threads; that is one comparison while a wake-up is already on its way, so a
    burst of groups costs one. Streams remember `count` before they read and wait for another one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[asyncio.Future[None]] = set()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._is_scheduled = False
        self.count = 0
        self.is_over = False
        self.error: DatabusError | None = None
        """Why it is over, where that is not that the relay stops: who asks again would not go on."""

    def published(self) -> None:
        """Say that there is something new; any thread."""
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop has ended, and all listeners with it
                return

    def end(self, error: DatabusError | None = None) -> None:
        """Nothing more will come: wake everybody for the last time. In the loop's thread."""
        self.is_over, self.error = True, error
        self._wake()

    def _wake(self) -> None:
        self._is_scheduled = False
        self.count += 1
        try:
            for listener in self._listeners:
                listener()
        finally:
            waiting, self._waiting = self._waiting, set()
            for future in waiting:
                _resolve(future)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each wake-up, in the loop's thread, until `unlisten`."""
        self._listeners = (*self._listeners, listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Call it no more."""
        self._listeners = tuple(other for other in self._listeners if other != listener)

    async def wait(self, seen: int, wait_s: float | None = None) -> bool:
        """Wait until `count` is not `seen`; returns whether that happened within `wait_s`.

        Raises `ServiceUnavailable` once the feed is over.
        """
        if self.is_over:
            raise self.error or ServiceUnavailable("the relay stops; ask again")
        if self.count != seen:
            return True
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(future)
        timer = None if wait_s is None else self._loop.call_later(wait_s, _resolve, future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if timer is not None:
                timer.cancel()
        return self.count != seen


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
