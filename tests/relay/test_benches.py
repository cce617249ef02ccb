"""Benchmarks of the relay run, at a scale at which their figures mean nothing."""

import pytest
from benchmarks import crowd


def test_the_bench_crowd_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "CROWDS", ((2, 50, 25.0),))
    monkeypatch.setattr(crowd, "SECONDS_MIN", 1.0)
    monkeypatch.setattr(crowd, "JSON_RATE", 50)
    figures = {figure.name: figure.value for figure in crowd.figures(0.0)}
    assert len(figures) == 7
    assert all(value < float("inf") for value in figures.values())
