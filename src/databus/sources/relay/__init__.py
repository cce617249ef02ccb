"""Another relay's log of one physical source, byte for byte: a chained relay. Start with `RelaySource`."""

from databus.sources.relay._config import RelaySourceConfig
from databus.sources.relay._source import RelaySource

__all__ = ["RelaySource", "RelaySourceConfig"]
