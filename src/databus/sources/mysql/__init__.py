"""MySQL and MariaDB, captured from the binary log. Start with `_source`."""

from databus.sources.mysql._check import Finding, check_source
from databus.sources.mysql._config import MysqlConfig

__all__ = ["Finding", "MysqlConfig", "check_source"]
