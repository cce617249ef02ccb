"""What operators may ask of a MySQL or MariaDB server without capturing it. See `databus.sources._capabilities`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from databus.core import ConfigError
from databus.sources._capabilities import Finding
from databus.sources._oracle import Oracle
from databus.sources.mysql._config import MysqlConfig, check_start
from databus.sources.mysql._kernels import load_kernels
from databus.sources.mysql._oracle import mysql_oracle
from databus.sources.mysql._transaction_ids import contains
from databus.sources.mysql.server import check_source


class MysqlOperations:
    """The static part of `MysqlSource`."""

    @staticmethod
    def contains(scheme: str, position: Mapping[str, Any], txid: str) -> bool | None:
        """See `databus.core.Contains`."""
        return contains(scheme, position, txid)

    @staticmethod
    def check(config: MysqlConfig) -> Sequence[Finding]:
        """See `databus.sources.Checkable`."""
        return check_source(config)

    @staticmethod
    def warm_up(physical: str, say: Callable[[str], None]) -> None:
        """Compile the decoder."""
        load_kernels(physical, say)

    @staticmethod
    def check_place(place: str) -> None:
        """See `databus.sources.Movable`."""
        try:
            check_start(place)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @staticmethod
    def oracle(config: MysqlConfig, folder: Path) -> Oracle:
        """See `databus.sources.Comparable`."""
        del folder
        return mysql_oracle(config)
