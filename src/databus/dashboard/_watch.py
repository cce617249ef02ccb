"""Looking at parts, each in threads of its own: one that does not answer delays no other. Start with `Watch`."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from databus.core import DatabusError, ServiceUnavailable
from databus.dashboard._error_texts import text_for
from databus.dashboard._parts import Part, PipelinePart, why
from databus.dashboard._rights import Principal
from databus.operate import logger_of

LOOK_S: Final = 1.0
"""All parts are looked at at the same moment, so that what was seen can be sent soon after, not a second later."""
_SEEN_AFTER_S: Final = 0.25
"""When, after a look began, its result is sent: a part that is well answers within milliseconds."""
_LOOK_S_MAX: Final = 5.0
"""The longest time between two looks at a part that does not answer."""
MEASURE_S: Final = 15.0
"""How often a pipeline is asked for its backlog, for which it asks its relay and its targets."""
_GRAPH_S: Final = 30.0
"""How often a pipeline is asked for its graph, which changes with a reload only."""
UNSEEN_S: Final = 5.0
"""A part that has owed an answer for so long is shown as not answering; its connection may wait for minutes."""
_READS_MAX: Final = 32
"""Requests of pages to one part at a time."""
_ACTS_MAX: Final = 4
"""Changes to one part at a time."""

_logger = logger_of("databus.dashboard")


def turn_of(now_s: float) -> int:
    """The number of the turn, by the monotonic clock: in each turn the result of one look is sent."""
    return int((now_s - _SEEN_AFTER_S) // LOOK_S)


def next_turn_s(now_s: float) -> float:
    """Seconds until the next turn.

    >>> next_turn_s(7.5), turn_of(7.5), turn_of(8.3)
    (0.75, 7, 8)
    """
    return LOOK_S - (now_s - _SEEN_AFTER_S) % LOOK_S


@dataclass(frozen=True)
class Seen:
    """What was seen of a part last. Frozen: all its fields are of one moment."""

    status: Mapping[str, Any] = field(default_factory=dict)
    """Its last answer to `look`."""
    at_us: int = 0
    """When it answered last; 0 before its first answer."""
    error: Exception | None = None
    """Why it does not answer now; None if it does."""
    backlog: Mapping[str, Any] = field(default_factory=dict)
    """By output; see `databus.pipeline.worst_backlogs`."""
    backlog_us: int = 0
    """When the backlog was measured; 0 where there is none."""
    graph: Mapping[str, Any] = field(default_factory=dict)
    """Of a pipeline: its nodes and edges."""


class Threads:
    """At most `at_once` threads for requests to one part: if it does not answer, requests to other parts do not wait.
    They are daemons: they end with the process, whatever they wait for.
    """

    def __init__(self, name: str, at_once: int) -> None:
        self._name = name
        self._free = threading.BoundedSemaphore(at_once)

    def submit(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Begin a request, in the loop's thread. Raises `ServiceUnavailable` if all threads are busy."""
        if not self._free.acquire(blocking=False):
            raise ServiceUnavailable(f"{self._name}: too much is under way that was not answered yet; ask again later")
        future: Future[Any] = Future()

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the waiter gets it
                future.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=run, name=self._name, daemon=True).start()
        return asyncio.wrap_future(future)


class Watch:
    """Looks at one part once a second, until it is stopped. on_seen: called after each look, in a thread."""

    def __init__(self, name: str, part: Part, on_seen: "Callable[[Watch], None]") -> None:
        self.name = name
        self.part = part
        self.seen = Seen()
        self.reads = Threads(f"read {name}", _READS_MAX)
        """Requests of pages, which change nothing."""
        self.acts = Threads(f"act {name}", _ACTS_MAX)
        """Changes. None waits for a free thread: it would be done when its principal no longer looks."""
        self._on_seen = on_seen
        self._asked_s: float | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._looks, name=f"look {name}", daemon=True)]
        if isinstance(part, PipelinePart):
            self._threads.append(threading.Thread(target=self._measures, name=f"measure {name}", daemon=True))

    @property
    def project(self) -> str | None:
        """The project that it belongs to; None if there is none, or before its first answer."""
        project = self.seen.status.get("project")
        return None if project is None else str(project)

    @property
    def unseen(self) -> bool:
        """Whether the part does not answer, so that what was seen last may be wrong by now."""
        return self.seen.error is not None or self._waited_s > UNSEEN_S

    def unseen_for(self, principal: Principal) -> str:
        """Why the part does not answer, in the words that a principal may see; empty while it does."""
        error, waited_s = self.seen.error, self._waited_s
        if error is not None:
            return text_for(principal, type(error).__name__, why(error))
        return f"no answer for {waited_s:.0f} s" if waited_s > UNSEEN_S else ""

    @property
    def _waited_s(self) -> float:
        """For how long the part has owed an answer."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    def start(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin no further look."""
        self._stopping.set()

    def wait(self, s_max: float) -> None:
        """Wait until the looks have ended; those that wait for an answer may take longer, and are left behind."""
        ends_s = time.monotonic() + s_max
        for thread in self._threads:
            if thread.is_alive():  # else it was not even started
                thread.join(max(ends_s - time.monotonic(), 0))

    def _put(self, **changed: Any) -> None:
        with self._lock:
            self.seen = Seen(**{**self.seen.__dict__, **changed})

    def _looks(self) -> None:
        wait_s, graph_at_s = LOOK_S, float("-inf")
        while not self._stopping.is_set():
            try:
                self._asked_s = time.monotonic()
                status = self.part.look()
                if self.seen.error:
                    _logger.info("answers again", part=self.name)
                self._put(status=status, at_us=time.time_ns() // 1000, error=None)
                if isinstance(self.part, PipelinePart) and time.monotonic() - graph_at_s > _GRAPH_S:
                    self._put(graph=self.part.graph())
                    graph_at_s = time.monotonic()
                self._on_seen(self)
                wait_s = LOOK_S
            except Exception as error:  # whatever it is, the part is shown with it, and looked at again
                if not isinstance(error, DatabusError):
                    _logger.exception("looking at a part ended by a defect", part=self.name)
                elif not self.seen.error:  # once, where a mistyped address was given
                    _logger.warning("does not answer", part=self.name, where=self.part.where, why=str(error))
                self._put(error=error)
                # The graph is asked for again too: the part may come back with another file.
                wait_s, graph_at_s = min(2 * wait_s, _LOOK_S_MAX), float("-inf")
            self._asked_s = None
            # Until a full second of the clock, which all parts share: see `LOOK_S`.
            self._stopping.wait(wait_s - time.monotonic() % LOOK_S)

    def _measures(self) -> None:
        from databus.pipeline import worst_backlogs

        while not self._stopping.is_set():
            try:
                outputs = self.part.measure().get("outputs", {}) if isinstance(self.part, PipelinePart) else {}
                backlogs = {
                    name: {"backlog": worst_backlogs(output), "dead_letters": output.get("dead_letters")}
                    for name, output in outputs.items()
                }
                self._put(backlog=backlogs, backlog_us=time.time_ns() // 1000)
            except DatabusError:  # `_looks` shows why
                self._put(backlog={}, backlog_us=0)
            except Exception:  # a defect; if this thread ended, the old numbers would stay for ever
                _logger.exception("measuring a pipeline ended by a defect", part=self.name)
                self._put(backlog={}, backlog_us=0)
            self._stopping.wait(MEASURE_S)
