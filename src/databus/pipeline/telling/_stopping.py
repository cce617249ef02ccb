"""How a run is asked to end, and how long it may take: nothing that hangs can keep a process alive.

The run ends in order within `STOP_S_MAX`: its queries have `QUERIES_S_MAX`, and then Spark, the relay and the outputs
have `LET_GO_S_MAX`, all at once. `Overdue` is for what hangs in spite of that. Start with `stopping`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, TypeVar

from databus.operate import has_terminal

STOP_S_MAX: Final = 20.0
"""How long a run may take to end after it was asked to, whatever hangs."""
QUERIES_S_MAX: Final = 9.0
LET_GO_S_MAX: Final = 6.0

CODE_OF_SECOND_SIGNAL: Final = 130
_LOOK_S: Final = 0.5
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T", bound=threading.Thread)

OnOverdue = Callable[[str, int], None]
"""Told by a thread of its own what the run still waits for, and which exit code it would have; may end the process."""


class Overdue:
    """Calls `on_overdue` once: `STOP_S_MAX` after `begin`, or at `hurry`, unless `end` comes first."""

    def __init__(self, on_overdue: OnOverdue | None, waits_for: Callable[[], str], code: Callable[[], int]) -> None:
        self._on_overdue = on_overdue
        self._waits_for = waits_for
        self._code = code
        self._has_ended = threading.Event()
        self._told = threading.Lock()

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to know."""
        return self._on_overdue is not None

    def begin(self) -> None:
        """The run was asked to end."""
        in_background("stop-overdue", self._wait)

    def hurry(self) -> None:
        """The run was asked by a second signal: it is not waited for any longer."""
        self._tell(CODE_OF_SECOND_SIGNAL)

    def end(self) -> None:
        """The run has ended."""
        self._has_ended.set()

    def _wait(self) -> None:
        if not self._has_ended.wait(STOP_S_MAX):
            self._tell(self._code())

    def _tell(self, code: int) -> None:
        if self._on_overdue is not None and self._told.acquire(blocking=False):
            self._on_overdue(self._waits_for(), code)


@contextmanager
def stopping(
    asks: "SimpleQueue[Any]",
    ask_to_stop: Callable[[str], None],
    overdue: Overdue,
    on_hangup: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Have `ask_to_stop` told of what is put into the queue; in the main thread of SIGINT and SIGTERM, too.

    A second signal hurries `overdue`; where nobody watches that, it raises `KeyboardInterrupt` in the main thread.
    on_hangup: called at SIGHUP, in the main thread and unless that is ignored (`nohup`); where the terminal has gone
    that this process had, SIGHUP asks to stop.
    """
    had_terminal = has_terminal()

    def hang_up() -> None:
        if on_hangup is not None and not (had_terminal and not has_terminal()):
            on_hangup()
        else:
            asks.put("the terminal has gone")

    def listen() -> None:
        signals = 0
        while (asked := asks.get()) is not None:
            signals += isinstance(asked, signal.Signals)
            if signals > 1:
                overdue.hurry()
            else:
                ask_to_stop(asked.name if isinstance(asked, signal.Signals) else str(asked))

    in_background("stop-asked", listen)
    try:
        if threading.current_thread() is threading.main_thread():
            with _signals_into(asks, hang_up, raises_at_second=not overdue.is_watched):
                yield
        else:
            yield
    finally:
        asks.put(None)


@contextmanager
def _signals_into(asks: "SimpleQueue[Any]", hang_up: Callable[[], None], *, raises_at_second: bool) -> Iterator[None]:
    """Put signals into the queue, by a thread that the system wakes.

    The main thread may be where Python runs no handlers, such as in the lock of a file that another thread writes.
    """
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGHUP:
            return
        seen.append(number)
        if raises_at_second and len(seen) > 1:
            raise KeyboardInterrupt

    def pass_on() -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while numbers := pipe.read(64):
                for number in numbers:
                    if number == signal.SIGHUP:
                        hang_up()
                    elif number in _SIGNALS:
                        asks.put(signal.Signals(number))

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    woken_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    taken = _SIGNALS if is_ignored else (*_SIGNALS, signal.SIGHUP)
    handlers_before = {each: signal.signal(each, handle) for each in taken}
    in_background("signals", pass_on)
    try:
        yield
    finally:
        for each, handler in handlers_before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(woken_before)
        os.close(writing)


def left_after(seconds_max: float, threads: Iterable[T], say: Callable[[list[T]], None]) -> list[T]:
    """Wait that long for threads to end; returns those that have not. say: told now and again who is waited for."""
    deadline = time.monotonic() + seconds_max
    left = list(threads)
    while (left := [each for each in left if each.is_alive()]) and time.monotonic() < deadline:
        say(left)
        left[0].join(_LOOK_S)
    return left


def in_background(name: str, do: Callable[[], object]) -> threading.Thread:
    """Do something that may never end, in a thread that keeps no process alive."""
    thread = threading.Thread(target=do, name=name, daemon=True)
    thread.start()
    return thread
