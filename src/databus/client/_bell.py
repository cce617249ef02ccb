"""Waiting for windows, by a thread or in an event loop: one bell, rung by the readers' threads, wakes either."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from databus.client._batches import WindowBatch

_TURN_S_MAX: Final = 0.01  # that a consumer may keep the event loop while windows are there


class Bell(threading.Condition):
    """A condition that an event loop can wait for, too."""

    def __init__(self) -> None:
        super().__init__()
        self._wake: Callable[[], None] | None = None
        self._turn_began = 0.0

    def notify_all(self) -> None:
        """Wake all that wait."""
        super().notify_all()
        if self._wake is not None:
            self._wake()

    async def wait_async(self, is_over: Callable[[], bool], seconds_max: float | None = None) -> None:
        """Until it is over, or so long; other tasks go on meanwhile. One task waits at a time."""
        loop, rung = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed without ending its tasks
                loop.call_soon_threadsafe(rung.set)

        with self:
            self._wake = wake
        try:
            async with asyncio.timeout(seconds_max):
                while not is_over():
                    await rung.wait()
                    rung.clear()
        except TimeoutError:
            pass
        finally:
            with self:
                self._wake = None
            self._turn_began = time.monotonic()

    async def give_way(self) -> None:
        """Let other tasks have their turn, if this one has had the event loop for long without waiting."""
        if time.monotonic() - self._turn_began > _TURN_S_MAX:
            await asyncio.sleep(0)
            self._turn_began = time.monotonic()


class Batches:
    """Batches of windows, for `for` and `async for`."""

    def __init__(
        self, take: Callable[[], WindowBatch | None], take_async: Callable[[], Awaitable[WindowBatch | None]]
    ) -> None:
        self._take = take
        self._take_async = take_async

    def __iter__(self) -> Iterator[WindowBatch]:
        return self

    def __next__(self) -> WindowBatch:
        batch = self._take()
        if batch is None:
            raise StopIteration
        return batch

    def __aiter__(self) -> AsyncIterator[WindowBatch]:
        return self

    async def __anext__(self) -> WindowBatch:
        batch = await self._take_async()
        if batch is None:
            raise StopAsyncIteration
        return batch
