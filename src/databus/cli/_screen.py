"""What `run` and `demo` show while they work: live tables on a terminal, a line every few seconds elsewhere."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Final, Self

from databus.core import Clock, SystemClock

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINE_EVERY_S: Final = 5.0
_DOING_EVERY_S: Final = 30.0
"""How often something that takes long is said again where there is no terminal."""
_SAMPLES_MAX: Final = 20_000
_LATENCIES_S: Final = 60.0
_EVENTS_SHOWN: Final = 9
_LINES_WAITING_MAX: Final = 1_000
_END_S_MAX: Final = 1.0
_SPINNER: Final = "|/-\\"
_STYLES: Final = {"suspended": "bold red", "retrying": "yellow", "running": "green"}


@dataclass
class Meter:
    """Counts of one reader, its rate over the last seconds, and percentiles of its latency over the last minute.

    `add` is called by one thread and the rest by another: deques are read by copying them.
    """

    rows: int = 0
    transactions: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))
    """When rows arrived, in seconds, and how many."""
    _latencies: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))
    """When a latency was measured, in seconds, and the latency in milliseconds."""
    clock: Clock = field(default_factory=SystemClock)

    @property
    def _now_s(self) -> float:
        return self.clock.monotonic_ns() / 1e9

    def add(self, rows: int, latency_ms: float | None, transactions: int = 1) -> None:
        """Take note of what arrived."""
        self.rows += rows
        self.transactions += transactions
        self._recent.append((self._now_s, rows))
        if latency_ms is not None:
            self._latencies.append((self._now_s, latency_ms))

    def rate(self, seconds: float = 3.0) -> float:
        """Rows a second."""
        since = self._now_s - seconds
        return sum(rows for at, rows in self._recent.copy() if at >= since) / seconds

    def percentiles(self) -> str:
        """`p50 / p99` of the latency in milliseconds, of what has arrived in the last minute."""
        since = self._now_s - _LATENCIES_S
        values = sorted(latency_ms for at, latency_ms in self._latencies.copy() if at >= since)
        if not values:
            return "-"
        return f"{values[len(values) // 2]:,.1f} / {values[int(len(values) * 0.99)]:,.1f} ms"


@dataclass(frozen=True)
class ReaderLine:
    """One reader."""

    name: str
    rows: int
    """Since the start of the command."""
    rate: float
    """Rows a second now."""
    behind: str
    """How far it is behind, as text."""
    latency: str
    """See `Meter.percentiles`."""
    state: str = ""
    """What it does, where that is not plain from the rest."""


@dataclass(frozen=True)
class SourceLine:
    """One physical source: what it is doing, and why."""

    name: str
    state: str
    """As the relay says it; `away` for a relay that does not answer."""
    detail: str
    """Why it is in this state, and what to do."""


@dataclass(frozen=True)
class ScreenView:
    """Everything that is shown but events."""

    doing: str = ""
    """What is waited for, empty while everything runs."""
    sources: Sequence[SourceLine] = ()
    lines: Sequence[ReaderLine] = ()


class _Doing:
    """What is waited for, and since when; for one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._what = ""
        self._since_s = self._said_s = 0.0

    def text(self, what: str) -> str:
        """What is waited for now, with the seconds that it has taken so far."""
        now_s = self._clock.monotonic_s()
        if what != self._what:
            self._what, self._since_s, self._said_s = what, now_s, now_s
        seconds = int(now_s - self._since_s)
        return f"{what} ({seconds:,} s so far)" if what and seconds else what

    def reminder(self, what: str) -> str:
        """The same if it has taken long since it was last said; else empty."""
        text, now_s = self.text(what), self._clock.monotonic_s()
        if now_s - self._said_s < _DOING_EVERY_S:
            return ""
        self._said_s = now_s
        return text


def in_time(do: Callable[[], object]) -> bool:
    """Do what may block for ever, such as writing to a terminal that was stopped; False if it has not ended in time."""
    thread = threading.Thread(target=do, name="in-time", daemon=True)
    thread.start()
    thread.join(_END_S_MAX)
    return not thread.is_alive()


class Screen:
    """Shows a board and events. Use as a context manager. `is_live`: whether there is a terminal to show them on.

    Nothing here waits for the terminal or for who reads our output: a thread of its own writes, and lines are dropped
    where it falls behind. `is_shown`: whether all of it had been written when the screen was closed.

    board: asked for what is shown, some times a second, by a thread of the screen's; without it, `show` says it.
    """

    def __init__(self, board: Callable[[], ScreenView] | None = None, clock: Clock | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self.is_live = self._console.is_terminal
        self._board = board or (lambda: ScreenView(sources=self._sources, lines=self._lines))
        self._sources: Sequence[SourceLine] = ()
        self._lines: Sequence[ReaderLine] = ()
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._doing = _Doing(clock or SystemClock())
        self._live = (  # it asks at once what is shown
            Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=False)
            if self.is_live
            else None
        )
        self._start = time.monotonic()
        self._shown_at = -_LINE_EVERY_S
        self._is_held_back = False
        self._lines_out: Queue[str | None] = Queue(_LINES_WAITING_MAX)
        self._printer = threading.Thread(target=self._print, name="screen", daemon=True)
        self.is_shown = True

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        else:
            self._printer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Show what is left to show, if the terminal takes it; callable twice."""
        self.is_shown = in_time(self._stop)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._lines_out.put(None)
            self._printer.join()

    def _print(self) -> None:
        while (line := self._next_line()) is not None:
            self._console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _next_line(self) -> str | None:
        """What comes next. If nothing does, the state of things follows that was held back, and what takes long."""
        while True:
            with suppress(Empty):
                return self._lines_out.get(timeout=_LINE_EVERY_S)
            if self._is_held_back:
                self._say_state()
            if reminder := self._doing.reminder(self._board().doing):
                self.say(reminder)

    def say(self, text: str) -> None:
        """An event."""
        line = f"{time.monotonic() - self._start:5.1f} s  {text}"
        self._events.append(line)
        if not self.is_live:
            with suppress(Full):
                self._lines_out.put_nowait(line)

    def show(self, lines: Sequence[ReaderLine], sources: Sequence[SourceLine] = ()) -> None:
        """The state of things; may be called often."""
        self._sources = sources
        self._lines = lines
        if self._live is None:
            self._say_state()

    def _say_state(self) -> None:
        self._is_held_back = time.monotonic() - self._shown_at < _LINE_EVERY_S
        if not self._is_held_back:
            self._shown_at = time.monotonic()
            texts = [f"{source.name} {source.state}: {source.detail}" for source in self._sources]
            self.say("   ".join([*texts, *(_as_text(line) for line in self._lines)]))

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        board = self._board()
        parts: list[RenderableType] = []
        if doing := self._doing.text(board.doing):
            parts.append(Text(f"{_SPINNER[int(time.monotonic() * 4) % len(_SPINNER)]} {doing}", style="bold"))
        if board.sources:
            parts.append(_sources_table(board.sources))
        if board.lines:
            parts.append(_lines_table(board.lines))
        return Group(*parts, *(Text(line) for line in self._events.copy()))


def _as_text(line: ReaderLine) -> str:
    state = f" ({line.state})" if line.state else ""
    return f"{line.name} {line.rows:,} rows, {line.rate:,.0f}/s{state}"


def _sources_table(sources: Sequence[SourceLine]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=False)
    for name in ("source", "state", ""):
        table.add_column(name)
    for source in sources:
        table.add_row(Text(source.name), Text(source.state, style=_STYLES.get(source.state, "")), Text(source.detail))
    return table


def _lines_table(lines: Sequence[ReaderLine]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=False)
    has_states = any(line.state for line in lines)
    table.add_column("reader")
    if has_states:
        table.add_column("state")
    for name in ("rows", "rows/s", "behind", "latency p50 / p99"):
        table.add_column(name, justify="right")
    for line in lines:
        state = [Text(line.state)] if has_states else []
        table.add_row(Text(line.name), *state, f"{line.rows:,}", f"{line.rate:,.0f}", line.behind, line.latency)
    return table
