"""Which oracle reads the database of a physical source."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from databus.core import ConfigError
from databus.sources import Comparable, Oracle, OracleTable, Row, SourceConfig, offered, parse_source


def oracle_of(physical: str, config: SourceConfig | None, *, folder: Path, database: Path | None = None) -> Oracle:
    """How the database of a physical source is read. `database`: a SQLite file, instead of what `config` says.

    Raises `ConfigError` where there is no configuration, `UnsupportedFeature` for a kind that cannot be compared.
    """
    if database is not None:
        config = parse_source({"type": "sqlite", "path": str(database.absolute())}, physical)
    if config is None:
        raise ConfigError(f"{physical}: its options are in no configuration here; give that of the relay")
    comparable: type[Comparable] = offered(Comparable, config, physical)
    return comparable.oracle(config, folder)


def read_source(physical: str, config: SourceConfig) -> Mapping[str, dict[Row, Row]]:
    """What the database of a source holds now, by table (`db.table`) and key, in the values that a mirror holds."""
    with oracle_of(physical, config, folder=Path())() as reading:
        return {table.source: _by_key(reading.rows(table), table) for table in reading.tables()}


def _by_key(rows: Iterable[Row], table: OracleTable) -> dict[Row, Row]:
    places = [table.names.index(each) for each in table.key]
    return {tuple(row[place] for place in places): row for row in rows}
