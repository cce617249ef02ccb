"""Tasks: what an output has done side by side, wherever a batch is written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

ROWS_A_TASK_MIN: Final = 10_000
"""Of a batch; what a task of Spark's costs is more than what fewer rows do."""


class Tasks(Protocol):
    """Runs what can be done at the same time."""

    @property
    def slots(self) -> int:
        """How many of them run at once."""

    @property
    def rows_min(self) -> int:
        """Fewer rows are not worth a task."""

    def run(self, task: Callable[[int], T], count: int) -> list[T]:
        """Call `task` with each number below `count`, and return what it gives, in the order of numbers.

        It travels as it is. It may be called twice with one number, or be killed half-way. Raises what it raises.
        """


@dataclass(frozen=True)
class Here:
    """In this process, one after another."""

    slots: int = 1
    rows_min: int = ROWS_A_TASK_MIN

    def run(self, task: Callable[[int], T], count: int) -> list[T]:
        """See `Tasks.run`."""
        return [task(number) for number in range(count)]
