"""MySQL and MariaDB, captured from the binary log. Start with `_source`; `_session` has what happens while it runs."""

from databus.sources.mysql._config import BinlogConfig, MysqlConfig
from databus.sources.mysql._file_source import BinlogSource
from databus.sources.mysql._source import MysqlSource

__all__ = [
    "BinlogConfig",
    "BinlogSource",
    "MysqlConfig",
    "MysqlSource",
]
