"""A client over a history made by hand, without a relay: it is run until nothing is left, or until it is killed."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from databus.client import ClientConfig, Consumer, MemoryCheckpoints, Result, Splitter
from databus.client._consumer_loop import ConsumerLoop
from databus.client._lane import Lane
from databus.client._letter_folder import ClientLetters, LetterFolder, letters_in
from databus.client._subscription import WantedSource
from databus.core import Checkpoint, ControlKind, SourceCheckpoint, SystemClock
from databus.link import ReaderState
from databus.schema import Column, TableSchema
from databus.testing import Feed
from databus.wire import Group

ORDERS = TableSchema(
    "main.orders", (Column("id", "int64", nullable=False), Column("note", "string"), Column("n", "int64")), ("id",)
)
NOTES = TableSchema("main.notes", (Column("note", "string"),), ())
TABLE = "shop/main.orders"
QUICK = ClientConfig(checkpoint_ms=0, retries_max=1, retry_first_ms=0, retry_ms_max=0)


class Killed(BaseException):
    """The process is gone."""


class Parts(Feed):
    """A feed whose transactions may come in parts."""

    def __init__(self, *tables: TableSchema) -> None:
        super().__init__(*tables or (ORDERS, NOTES))
        self.scn = 0
        self._first = 1

    def part(self) -> None:
        """End a part of the open transaction."""
        if self._open:
            self._end(continues=True)

    def commit(self):
        """See `Feed.commit`."""
        self._end(continues=False)
        self.scn, self._first = self._scn, 1
        return self

    def _end(self, *, continues: bool) -> None:
        self._scn += self._first == 1
        images = list(zip(self._open, count(self._first), strict=False))
        self._first += len(images)
        commit = replace(self._commit(self._first - 1), continues=continues)
        self._groups.append(Group(commit, tuple(self._rows(images, is_snapshot=False))))
        self._open = []

    def truncate(self, table: str = "main.orders"):
        """A truncation between two transactions."""
        return self.control(ControlKind.TRUNCATE, table)


@dataclass
class World:
    """What outlives a process: the history, the folder of letters, the checkpoint, the target."""

    feed: Parts
    folder: Path
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    rows: dict[Any, dict[str, Any]] = field(default_factory=dict)
    taken: list[tuple[str, Any]] = field(default_factory=list)
    """What the target took, in order: `("run", number)` where a process began, `("roll", position)` where all behind a
    position was said to come again, changes as `("row", row)`, controls as `("control", control)`.
    """
    refuses: Callable[[Any], bool] = lambda _row: False
    kills: Callable[[str], bool] = lambda _where: False
    runs: int = 0
    config: ClientConfig = QUICK
    was_killed: bool = False

    def run(self, until: int | None = None, **options: Any) -> "World":
        """One process, until nothing is left of the first groups, or it is killed or fails."""
        self.runs += 1
        self.taken.append(("run", self.runs))
        process = _Process(self, until, **options)
        try:
            process.run()
        except Killed:
            process.is_dead = True
        return self

    @property
    def letters(self) -> ClientLetters:
        return ClientLetters(self.folder)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Of the letters."""
        return sorted(letter.pair for found in self.letters.read() for letter in found.letters)

    def notes(self) -> dict[int, str]:
        """What the target has."""
        return {key[1]: row["note"] for key, row in sorted(self.rows.items())}


class Copy(Consumer):
    """Copies tables, one transaction a window; what is not committed is forgotten when the process dies."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.staged: list[Any] = []
        self.windows: list[Any] = []

    def on_start_window(self, window: Any) -> None:
        assert self.staged == []
        self.windows.append(window)

    def on_data_events(self, changes: Any) -> None:
        for row in changes.rows():
            if self.world.refuses(row):
                raise ValueError(f"no such note: {row['note']}")
            self.staged.append(row)

    def on_control(self, control: Any) -> None:
        self.staged.append(control)

    def on_end_window(self, window: Any) -> Result | None:
        self.world_dies("before commit")
        staged, self.staged = self.staged, []
        for each in staged:
            self.apply(each)
        self.world_dies("after commit")
        return None

    def apply(self, each: Any) -> None:
        world = self.world
        if hasattr(each, "kind"):
            world.taken.append(("control", each))
            if each.kind in (ControlKind.TRUNCATE, ControlKind.DROP):
                world.rows = {key: row for key, row in world.rows.items() if key[0] != each.source}
            return
        world.taken.append(("row", each))
        if each.before is not None:
            world.rows.pop((each.source, each.before.get("id")), None)
        if each.after is not None:
            world.rows[each.source, each.after.get("id")] = each.after

    def on_rollback(self, physical: str, position: SourceCheckpoint) -> None:
        self.staged = []
        self.world.taken.append(("roll", position))

    def world_dies(self, where: str) -> None:
        if self.world.kills(where):
            raise Killed


class _Lane:
    """A lane over a feed."""

    joined = Lane.joined

    def __init__(self, world: World, start: SourceCheckpoint, until: int | None) -> None:
        self.start = start
        self.windows: deque[Any] = deque()
        self.is_ended = self.is_restarted = False
        self.error = None
        self.reader = SimpleNamespace(
            state=ReaderState.STREAMING, connections=1, last_error=None, close=lambda: None,
            channel=SimpleNamespace(bytes_waiting=0),
        )  # fmt: skip
        self._world, self._until, self._is_loaded = world, until, False

    @property
    def has_work(self) -> bool:
        return bool(self.windows) or not self._is_loaded

    def advance(self) -> bool:
        if not self._is_loaded:
            self._is_loaded = True
            feed = self._world.feed
            splitter = Splitter("shop", self.start, feed._by_fingerprint.__getitem__)
            splitter.connected("feed", "feed")
            for group in list(feed._parsed())[: self._until]:
                self.windows.extend(splitter.split(group))
        return bool(self.windows)


class _Store(MemoryCheckpoints):
    def __init__(self, process: "_Process") -> None:
        super().__init__(process.world.checkpoint)
        self.process = process

    def save(self, checkpoint: Checkpoint) -> None:
        if self.process.world.kills("before save"):
            raise Killed
        if not self.process.is_dead:
            super().save(checkpoint)
            self.process.world.checkpoint = checkpoint
        if self.process.world.kills("after save"):
            raise Killed


class _Process(ConsumerLoop):
    def __init__(self, world: World, until: int | None, part: Any = None, consumer: Any = None, name: str = "") -> None:
        self.world, self.until, self.is_dead = world, until, False
        letters = LetterFolder(letters_in(world.folder, world.config.dead_letters_max), name)
        self.copy = (consumer or Copy)(world)
        relay = SimpleNamespace(clone=lambda: SimpleNamespace(close=lambda: None))
        super().__init__(
            relay, self.copy, _Store(self), lambda: [WantedSource("shop", None)], "beginning", world.config,
            SystemClock(), part, letters,
        )  # fmt: skip

    def _lane(self, _wanted: Any, start: Any) -> Any:
        return _Lane(self.world, start if isinstance(start, SourceCheckpoint) else SourceCheckpoint(), self.until)

    def _perform(self) -> None:
        try:
            if not self.is_dead:
                super()._perform()
        except Killed:
            self.is_dead = True
            raise

    def _wait(self) -> None:
        if any(each.replay_from is not None for each in self._order):
            time.sleep(0.001)
        elif self._unsaved():
            self._checkpoint_all(self._unsaved())
        else:
            self.end()
