"""Figures: what a benchmark yields. Each module beside this one has `figures(scale) -> Iterator[Figure]`.

scale: 1.0 measures what docs/benchmarks.md reports; smaller values shorten a run for looking at it.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured value; where a peer or a limit was measured in the same run, its value and value / peer_value."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if not self.peer_value else self.value / self.peer_value

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def median_of(runs: int, measure: Callable[[], float]) -> float:
    """The median of several runs of a measurement."""
    return statistics.median(measure() for _ in range(runs))


def show(figures: Callable[[float], Iterator[Figure]]) -> None:
    """Print a module's figures, at the scale given on the command line."""
    for figure in figures(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        ratio = "" if figure.ratio is None else f"  {figure.ratio:.2f} of {figure.peer} ({figure.peer_value:,.0f})"
        print(f"{figure.name:100} {figure.value:14,.1f} {figure.unit}{ratio}")
