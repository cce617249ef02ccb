"""MySQL and MariaDB, captured from the binary log. Start with `_source`; `_session` has what happens while it runs."""

from databus.sources.mysql._config import BinlogConfig, MysqlConfig, check_start
from databus.sources.mysql._file_source import BinlogSource
from databus.sources.mysql._kernels import load_kernels
from databus.sources.mysql._source import MysqlSource
from databus.sources.mysql.server import Finding, check_source

__all__ = [
    "BinlogConfig",
    "BinlogSource",
    "Finding",
    "MysqlConfig",
    "MysqlSource",
    "check_source",
    "check_start",
    "load_kernels",
]
