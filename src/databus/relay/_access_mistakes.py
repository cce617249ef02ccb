"""What `access` may say otherwise than it is meant: tables and columns that no log has, which may come later, but most
are misspelt; and rules for one name where other names are in reach too. None is an error.
"""

from collections.abc import Iterator, Sequence

from databus.core import is_pattern
from databus.filters import matches, nearest, patterns_meet
from databus.log import SchemaStore
from databus.relay._config import AccessConfig, RelayConfig
from databus.relay._filters import misfits
from databus.schema import column_named


def mistakes_on_disk(config: RelayConfig) -> list[str]:
    """Those of a relay's configuration, by what its logs have captured so far; none where nothing was captured yet."""
    stores = [SchemaStore.load(config.folder / name, name, {}) for name in config.sources]
    known = [store for store in stores if store.ids()]
    return list(mistakes_of(config.access, known)) if known else []


def mistakes_of(access: Sequence[AccessConfig], stores: Sequence[SchemaStore]) -> Iterator[str]:
    """Those of `access` where these are the schemas of the logs."""
    known = {store.full_name(source): version.table for store in stores for source, version in store.current().items()}
    for entry in access:
        named = {"tables": entry.tables or [], "where": [*entry.where], "hide": [*entry.hide]}
        for option, tables in named.items():
            for table in tables:
                if not is_pattern(table) and not any(matches(name, [table]) for name in known):
                    near = nearest(table, known)
                    hint = f"; did you mean {near}?" if near else ""
                    yield f"access {entry.name}, {option}: no table is called {table} yet{hint}"
        for table, columns in entry.hide.items():
            there = [definition for name, definition in known.items() if matches(name, [table])]
            for column in columns if there else ():
                if not any(column_named(column, definition.names) for definition in there):
                    yield f"access {entry.name}, hide: {table} has no column {column} yet"
        yield from _escapes(entry)
        for store in stores:
            for reason in misfits(entry.grant.filter, store):
                yield f"access {entry.name}: {reason}; nothing of that table is sent"


def _escapes(entry: AccessConfig) -> Iterator[str]:
    """Rules for one table, whose rows are out of their reach as soon as they come under another name."""
    for option, tables in (("where", [*entry.where]), ("hide", [*entry.hide])):
        for table in tables:
            reach = [pattern for pattern in entry.tables or () if is_pattern(pattern) and patterns_meet(pattern, table)]
            if not is_pattern(table) and (entry.tables is None or reach):
                yield (
                    f"access {entry.name}, {option}: holds for the name {table} alone, and other names are in reach "
                    f"({', '.join(reach) or 'all tables'}): rows that come under another one, as after RENAME TABLE or "
                    f"while an online schema change copies them, are seen in full. Have `tables` name tables in full, "
                    f"or {option} a pattern"
                )
