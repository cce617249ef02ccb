"""How a run is asked to stop, and how long that may take: nothing that hangs keeps the process alive.

The run ends in order within `STOP_S_MAX`: its queries have `QUERIES_S_MAX`; then Spark, the relay and the outputs have
`LET_GO_S_MAX`, all at the same time. `Overdue` is for whatever hangs in spite of that. Start with `stopping`.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, TypeVar

from databus.core import Clock, SystemClock
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
"""Called, in a thread of its own, with what the run still waits for and its exit code; may end the process."""


class Overdue:
    """Calls `on_overdue` once: `STOP_S_MAX` after `begin`, or at `hurry`, unless `end` comes first."""

    def __init__(
        self,
        on_overdue: OnOverdue | None,
        waits_for: Callable[[], str],
        code: Callable[[], int],
        clock: Clock | None = None,
    ) -> None:
        self._on_overdue = on_overdue
        self._waits_for = waits_for
        self._code = code
        self._clock = clock or SystemClock()
        self._has_ended = threading.Event()
        self._is_called = threading.Lock()

    @property
    def is_watched(self) -> bool:
        """Whether there is an `on_overdue`."""
        return self._on_overdue is not None

    def begin(self) -> None:
        """The run was asked to end."""
        in_background("stop-overdue", self._wait)

    def hurry(self) -> None:
        """A second signal has come: do not wait any longer."""
        self._call(CODE_OF_SECOND_SIGNAL)

    def end(self) -> None:
        """The run has ended."""
        self._has_ended.set()

    def _wait(self) -> None:
        if not self._clock.wait(self._has_ended, STOP_S_MAX):
            self._call(self._code())

    def _call(self, code: int) -> None:
        if self._on_overdue is not None and self._is_called.acquire(blocking=False):
            self._on_overdue(self._waits_for(), code)


@contextmanager
def stopping(
    asks: "SimpleQueue[Any]",
    ask_to_stop: Callable[[str], None],
    overdue: Overdue,
    on_hangup: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Call `ask_to_stop` with what is put into the queue; in the main thread, also at SIGINT and SIGTERM.

    A second signal hurries `overdue`; if that is not watched, it raises `KeyboardInterrupt` in the main thread.
    on_hangup: called at SIGHUP, in the main thread, unless SIGHUP is ignored (`nohup`). If this process has lost its
    terminal, SIGHUP asks to stop instead.
    """
    had_terminal = has_terminal()

    def hang_up() -> None:
        if on_hangup is not None and not (had_terminal and not has_terminal()):
            on_hangup()
        else:
            asks.put("the terminal has gone")

    def listen() -> None:
        signals = 0
        while (request := asks.get()) is not None:
            signals += isinstance(request, signal.Signals)
            if signals > 1:
                overdue.hurry()
            else:
                ask_to_stop(request.name if isinstance(request, signal.Signals) else str(request))

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
    """Put signals into the queue, from a thread that the system wakes through a pipe.

    The main thread may be at a place where Python runs no handlers, such as waiting for the lock of a file.
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
    handlers_before = {number: signal.signal(number, handle) for number in taken}
    in_background("signals", pass_on)
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken_before)
        os.close(writing)


def left_after(
    seconds_max: float, threads: Iterable[T], say: Callable[[list[T]], None], clock: Clock | None = None
) -> list[T]:
    """Wait that long for threads to end; returns those that have not. say: called meanwhile with those waited for."""
    clock = clock or SystemClock()
    deadline = clock.monotonic_s() + seconds_max
    left = list(threads)
    while (left := [thread for thread in left if thread.is_alive()]) and clock.monotonic_s() < deadline:
        say(left)
        left[0].join(_LOOK_S)
    return left


def in_background(name: str, do: Callable[[], object]) -> threading.Thread:
    """Do something that may never end, in a daemon thread."""
    thread = threading.Thread(target=do, name=name, daemon=True)
    thread.start()
    return thread
