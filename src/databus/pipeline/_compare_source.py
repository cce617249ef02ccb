"""Which oracle reads the database of a physical source."""

from collections.abc import Mapping
from pathlib import Path

from databus.core import ConfigError
from databus.pipeline._compare_found import Row
from databus.pipeline._compare_oracle import Oracle
from databus.sources import SourceConfig


def oracle_of(physical: str, config: SourceConfig | None, *, folder: Path, database: Path | None = None) -> Oracle:
    """How the database of a physical source is read. `database`: a SQLite file, instead of what `config` says.

    Raises `ConfigError` for a kind that cannot be compared.
    """
    if database is not None or (config is not None and config.type == "sqlite"):
        from databus.pipeline._compare_sqlite import sqlite_oracle

        return sqlite_oracle(database or folder / str(getattr(config, "path", "")))
    if config is not None and config.type == "mysql":
        from databus.pipeline._compare_mysql import mysql_oracle

        return mysql_oracle(config)
    if config is None:
        raise ConfigError(f"{physical}: its options are in no configuration here; give that of the relay")
    raise ConfigError(f"{physical} is of type {config.type}; SQLite, MySQL and MariaDB can be compared")


def read_source(physical: str, config: SourceConfig) -> Mapping[str, dict[Row, Row]]:
    """What the database of a source holds now, by table (`db.table`) and key, in the values that a mirror holds."""
    with oracle_of(physical, config, folder=Path())() as reading:
        return {table.source: reading.rows(table, table.key) for table in reading.tables()}
