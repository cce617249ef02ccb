"""SQLite as a source: triggers write a change table, the relay cuts it into windows. Start with `SqliteSource`."""

from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._install import alter, install, remove, status
from databus.sources.sqlite._source import SqliteSource

__all__ = ["SqliteConfig", "SqliteSource", "alter", "install", "remove", "status"]
