"""What is counted of a batch on its way into an output: rows by table and step, bytes, and how long each stage took.

Tasks count and hand it back in receipts. Rows are counted as Arrow's tables say how many they have, never one by one.
Of every table `came = dropped + written + already + letters`, where each is counted by whoever decides it: a difference
is a row that was lost. The output says what was written. Start with `Counts`.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

Dropped = Counter[str]
"""By the path of a filter (`filters.late`): how many rows fewer left it than came; below zero, how many more."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Of one table."""

    came: int = 0
    """Rows that the log has of it."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """See `Dropped`."""
    letters: int = 0
    """Rows that the target refuses, which are kept as dead letters, and those that wait behind them."""
    already: int = 0
    """Rows that the target has already, or has something newer of."""

    def plus(self, other: "RowCounts") -> "RowCounts":
        """Both together."""
        dropped = {
            name: self.dropped.get(name, 0) + other.dropped.get(name, 0) for name in {**self.dropped, **other.dropped}
        }
        letters, already = self.letters + other.letters, self.already + other.already
        return RowCounts(self.came + other.came, dropped, letters, already)


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted of a batch."""

    rows: Mapping[str, RowCounts] = field(default_factory=dict)
    """By source (`db.table`)."""
    bytes: int = 0
    """Of frames."""
    spent_us: Mapping[str, int] = field(default_factory=dict)
    """By stage, over all tasks together."""

    def plus(self, other: "Counts") -> "Counts":
        """Both together."""
        rows = dict(self.rows)
        for source, counts in other.rows.items():
            rows[source] = rows[source].plus(counts) if source in rows else counts
        return Counts(rows, self.bytes + other.bytes, Counter(self.spent_us) + Counter(other.spent_us))

    @classmethod
    def total(cls, all_: Iterable["Counts"]) -> "Counts":
        """All together."""
        total = cls()
        for counts in all_:
            total = total.plus(counts)
        return total

    def to_json(self) -> dict[str, Any]:
        """As a receipt has it."""
        rows = {
            source: [counts.came, dict(counts.dropped), counts.letters, counts.already]
            for source, counts in self.rows.items()
        }
        return {"rows": rows, "bytes": self.bytes, "us": dict(self.spent_us)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` made."""
        rows = {source: RowCounts(*counted) for source, counted in value["rows"].items()}
        return cls(rows, value["bytes"], value["us"])


@dataclass
class BatchTally:
    """Counts one batch for one output, while it is filtered and written."""

    before: Counts = field(default_factory=Counts)
    """What is known of the batch already."""
    _came: Counter[str] = field(default_factory=Counter)
    _dropped: dict[str, Dropped] = field(default_factory=dict)
    _letters: Counter[str] = field(default_factory=Counter)
    _already: Counter[str] = field(default_factory=Counter)
    _spent_us: Counter[str] = field(default_factory=Counter)

    def came(self, source: str, rows: int) -> Dropped:
        """So many rows of a table came; returns where its filters count what they drop."""
        self._came[source] += rows
        return self._dropped.setdefault(source, Counter())

    def kept(self, letters: Mapping[str, int]) -> None:
        """So many rows of tables became dead letters."""
        self._letters.update(letters)

    def had(self, rows: Mapping[str, int]) -> None:
        """So many rows of tables the target has already."""
        self._already.update(rows)

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Count the time that this takes."""
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._spent_us[stage] += (time.perf_counter_ns() - began_ns) // 1000

    def counts(self) -> Counts:
        """What it came to."""
        rows = {
            source: RowCounts(
                self._came[source],
                {name: count for name, count in self._dropped.get(source, {}).items() if count},
                self._letters[source],
                self._already[source],
            )
            for source in {**self._came, **self._letters, **self._already}
        }
        return self.before.plus(Counts(rows, 0, self._spent_us))
