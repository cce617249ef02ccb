"""Some consumers of a crowd, each in a thread: `python -m tests.relay.many_consumers URL FOLDER FIRST COUNT`.

Which kind one is follows from its number, see `Kind`. Each keeps what the rows it was given make of the table, and
where each key was changed last; once the end is known (FOLDER/end has its SCN) and reached, all of it goes into
FOLDER/found.FIRST, by consumer.
"""

import json
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databus.client import windows
from databus.filters import StreamFilter
from databus.link import RelayClient

TABLE = "shop/main.orders"
WHERE = "total >= 100"
COLUMNS = ["id", "total"]
BEATS = 1_000_000_000
"""From this id on rows are written only so that whatever filter there is something comes; they count for nothing."""
PARTITIONS = 3


@dataclass(frozen=True)
class Kind:
    """What a consumer of some number asks for: a third behind a condition or in a partition, a third with columns."""

    number: int

    @property
    def where(self) -> str | None:
        return WHERE if self.number % 12 in (1, 4) else None

    @property
    def columns(self) -> list[str] | None:
        return COLUMNS if self.number % 3 == 2 else None

    @property
    def partition(self) -> str | None:
        """Of six numbers, two share the keys."""
        return {1: "0/2", 4: "1/2"}.get(self.number % 6)

    @property
    def name(self) -> str | None:
        """Some are durable; of these, two share a name and its partitions."""
        shared = self.number - (15 if self.number % 30 == 15 else 0)
        return f"billing-{shared}" if self.number % 5 == 0 and self.partition is None else None

    @property
    def shares(self) -> Any:
        """Equal for those of whom each has a part of the rows."""
        return self.name or (f"six-{self.number // 6}" if self.partition else self.number)

    @property
    def reconnects(self) -> bool:
        return self.number % 60 in (3, 15)

    def open(self, url: str, checkpoint: Any) -> Any:
        how: dict[str, Any] = {"where": self.where, "columns": self.columns, "sources": [TABLE]}
        if self.name is not None:
            return windows(url, name=self.name, partitions=PARTITIONS, **how)
        if self.partition is None:
            return windows(url, checkpoint=checkpoint, **how)
        asked = StreamFilter.parse(self.where, self.columns, None, partition=self.partition)
        return windows(RelayClient(url).filtered(asked), sources=[TABLE], checkpoint=checkpoint)


class Follower(threading.Thread):
    """One consumer. rows: by id, the pair of its last change, and its values; None for a deleted one."""

    def __init__(self, url: str, end: Path, number: int) -> None:
        super().__init__(daemon=True)
        self.kind = Kind(number)
        self._url, self._end = url, end
        self.rows: dict[int, Any] = {}
        self.error = ""
        self.opened = 0
        self._checkpoint: Any = None
        self._is_done = False
        self._last = (0, 0)
        self._ended: set[Any] = set()

    def run(self) -> None:
        try:
            while not self._is_done:
                self.opened += 1
                with self.kind.open(self._url, self._checkpoint) as following:
                    # Each time longer: on a busy machine the first window comes after the second in which one that
                    # connects anew was to leave, and what it leaves with is not taken in.
                    self._follow(following, time.monotonic() + self.opened)
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            self.error = traceback.format_exc()

    def _follow(self, following: Any, until_s: float) -> None:
        for window in following:
            for row in window.rows():
                if self.kind.name is None:
                    assert row.pair > self._last, f"{row.pair} comes after {self._last}"
                    self._last = row.pair
                values = row.after
                key = (values or row.before)["id"]
                before = self.rows.get(key)
                if before is None or before[0] < row.pair:  # a name's may come again from its last save on
                    self.rows[key] = row.pair, values
            if not window.continues:
                self._checkpoint = window.checkpoint
                self._is_done = self._is_over(following, window)
                if self._is_done or (self.kind.reconnects and time.monotonic() > until_s):
                    return
        raise AssertionError("it ended by itself")

    def _is_over(self, following: Any, window: Any) -> bool:
        """Whether all that is to come has: of a name, in each partition that this one holds."""
        if not self._end.exists() or window.scn < int(self._end.read_text()):
            return False
        if self.kind.name is None:
            return True
        self._ended.add(window.partition)
        held = following.partitions
        return bool(held) and self._ended.issuperset(held)


def main() -> None:
    url, folder, first, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    followers = [Follower(url, folder / "end", number) for number in range(first, first + count)]
    for follower in followers:
        follower.start()
    for follower in followers:
        while follower.is_alive() and not follower.error:
            follower.join(0.5)
    found = {each.kind.number: {"error": each.error, "opened": each.opened, "rows": each.rows} for each in followers}
    part = folder / f"part.{first}"
    part.write_text(json.dumps(found, default=str))
    part.rename(folder / f"found.{first}")


if __name__ == "__main__":
    main()
