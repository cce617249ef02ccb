"""A source of made-up or scripted rows, for tests, benchmarks and dry runs. Start with `MockConfig`."""

from databus.sources.mock._config import MockConfig, MockTable
from databus.sources.mock._source import MockSource

__all__ = ["MockConfig", "MockSource", "MockTable"]
