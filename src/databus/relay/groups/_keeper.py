"""The keeper: a coordinator with its journal, its clocks, and those who wait. All of it in one event loop's thread.

An answer leaves when everything that was decided before it is on the disk: the calls of some milliseconds share a
batch, and one fsync. What waits is woken when its group has changed.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from databus.core import Checkpoint, Clock, DatabusError
from databus.operate import logger_of
from databus.relay.groups._call import CallAnswer, MemberCall
from databus.relay.groups._coordinator import Clocks, Coordinator, GroupChanges, GroupLimits
from databus.relay.groups._journal import GroupJournal
from databus.relay.groups._names import read_names, write_names

_TICK_S: Final = 0.5
_GATHER_S: Final = 0.004
"""So long a batch is gathered: more calls share an fsync, and none waits noticeably."""
_WAIT_OF_LEASE: Final = 0.3
"""A call that waits longer would be answered when its lease is nearly over."""
_logger = logger_of("databus.relay.groups")


class GroupKeeper:
    """The groups of a relay's folder. `start` in the loop, and `stop` there; `close` after it."""

    def __init__(self, folder: Path, limits: GroupLimits, clock: Clock) -> None:
        self.trouble: DatabusError | None = None
        """Why there are no groups, if their files cannot be read."""
        self._folder, self._clock = folder, clock
        self._journal = GroupJournal(folder)
        self._writer = ThreadPoolExecutor(1, "relay-groups")
        self._machine = Coordinator(limits, self.now())
        self._limits = limits
        self._versions: dict[str, int] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._pending: list[asyncio.Future[None]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._failed = False
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.guards_ended = 0
        self.flushes = 0

    def now(self) -> Clocks:
        """Both clocks."""
        return Clocks(self._clock.monotonic_ns(), self._clock.now_ns() // 1_000_000)

    @property
    def machine(self) -> Coordinator:
        """The coordinator. Raises what is wrong with its files. Whoever changes something calls `durable` then."""
        if self.trouble is not None:
            raise self.trouble
        return self._machine

    @property
    def seen(self) -> Coordinator:
        """The coordinator, to look at; without groups where its files cannot be read."""
        return self._machine

    def open(self) -> None:
        """Read the files; any thread, before the loop's first call. What is wrong with them is kept as `trouble`."""
        try:
            self._machine = self._read()
        except DatabusError as error:
            self.trouble = error
            _logger.error("groups are not served", message=str(error))  # noqa: TRY400 - the message says it
            return
        if lost := self._machine.lost():
            _logger.error(
                "these names were in use, and their state is lost: they wait for databus consumers import or reset",
                names=lost[:100],
            )

    def _read(self) -> Coordinator:
        names = read_names(self._folder)
        try:
            return Coordinator(self._limits, self.now(), self._journal.read(), names)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:  # never the relay's end
            raise self._journal.unreadable(error) from error

    def start(self) -> None:
        """Look at leases from now on. In the loop."""
        self._loop = asyncio.get_running_loop()
        self._ticking = asyncio.ensure_future(self._tick())

    def end_guards(self, physical: str, why: str) -> None:
        """The log of a physical source could not keep what groups need: their guard is over. Any thread."""
        with suppress(RuntimeError):  # the loop has ended, and so has the relay
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._end_guards, physical, why)

    def _end_guards(self, physical: str, why: str) -> None:
        for group in self._machine.groups.values():
            if group.guard and physical in group.start.sources:
                group.guard = False
                group.note_head()
                self._machine.touch(group)
                self.guards_ended += 1
                _logger.warning(
                    "the guard of a group has ended: what it has not read may leave the log",
                    group=group.name,
                    physical=physical,
                    reason=why,
                )
                self.changed(group.name)

    def end(self) -> None:
        """Nothing waits any more. In the loop."""
        self._is_over = True
        if self._ticking is not None:
            self._ticking.cancel()
        for name in list(self._waiters):
            self._wake_all(name)

    def close(self) -> None:
        """Let go of the file."""
        self._writer.shutdown(wait=True)
        self._journal.close()

    # Calls

    async def handle(
        self, name: str, call: MemberCall, start: Checkpoint | None, access: str, may_wait: Callable[[], bool]
    ) -> CallAnswer:
        """Answer a call, once that is durable, and once there is something to do if it may wait."""
        answer = self.machine.handle(name, call, self.now(), start, access)
        self.changed(name)
        if answer.is_empty and call.wait_ms and not call.leave and may_wait():
            answer = await self._wait(name, call, answer)
        await self.durable()
        return answer

    async def _wait(self, name: str, call: MemberCall, answer: CallAnswer) -> CallAnswer:
        loop = asyncio.get_running_loop()
        wait_ms = min(call.wait_ms, answer.again_ms, answer.lease_ms * _WAIT_OF_LEASE)
        deadline = loop.time() + wait_ms / 1e3
        while True:
            future: asyncio.Future[None] = loop.create_future()
            waiters = self._waiters.setdefault(name, set())
            waiters.add(future)
            timer = loop.call_at(deadline, _resolve, future)
            try:
                await future
            finally:
                timer.cancel()
                waiters.discard(future)
                if not waiters and self._waiters.get(name) is waiters:
                    del self._waiters[name]
            answer = self.machine.look(name, call, self.now())
            self.changed(name)
            if not answer.is_empty or loop.time() >= deadline or self._is_over:
                return answer

    def changed(self, name: str) -> None:
        """A group may have changed: have that written, and wake whoever waits for it."""
        group = self._machine.groups.get(name)
        version = -1 if group is None else group.version
        if self._versions.get(name, 0) != version:
            self._wake_all(name)
            if group is None:
                self._versions.pop(name, None)
            else:
                self._versions[name] = version
        if self._machine.has_changes:
            self._flush()

    def _wake_all(self, name: str) -> None:
        for future in self._waiters.get(name, ()):
            _resolve(future)

    # What is durable

    async def durable(self) -> None:
        """Wait until all that has been decided is on the disk. Raises `DiskFull`, `ServiceUnavailable`."""
        if self._flushing is None and not self._machine.has_changes and not self._failed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(future)
        self._flush()
        await future

    def _flush(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending or (self._machine.has_changes and not self._failed):
                await asyncio.sleep(0 if self._is_over else _GATHER_S)
                pending, self._pending = self._pending, []
                changes = self._machine.drain()
                whole = None
                if self._failed or self._journal.wants_rewriting:
                    whole, changes = self._machine.whole(), GroupChanges(names=dict(self._machine.names))
                error: BaseException | None = None
                try:
                    await loop.run_in_executor(self._writer, self._put, changes, whole)
                    self._failed = False
                except DatabusError as raised:
                    error, self._failed = raised, True
                    _logger.error("groups cannot be written", message=str(raised))  # noqa: TRY400 - no defect
                for future in pending:
                    if not future.done():
                        future.set_result(None) if error is None else future.set_exception(error)
        finally:
            self._flushing = None

    def _put(self, changes: GroupChanges, whole: list[dict[str, Any]] | None) -> None:
        """Write a batch. whole: all records, if the journal is to be rewritten."""
        if whole is not None:
            self._journal.rewrite(whole)
        elif changes.records:
            self._journal.append(changes.records)
        if changes.names is not None:
            write_names(self._folder, changes.names)
        self.flushes += 1

    async def _tick(self) -> None:
        while not self._is_over:
            await asyncio.sleep(_TICK_S)
            if self.trouble is not None:
                return
            if forgotten := self._machine.tick(self.now()):
                _logger.warning("names that were not used for long are forgotten", names=forgotten[:100])
            for name in list(self._machine.groups):
                self.changed(name)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
