"""TableSchema: the definition of a table, from which all others are derived.

Its canonical JSON is its meaning and the 64-bit fingerprint of that is its identity; the fingerprint stands in every
frame of rows. Two tables with the same columns and another name have different fingerprints.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from databus.core import RESERVED_COLUMNS, ConfigError
from databus.schema._types import forms_of


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `type` is a name of `databus.schema._types`; `db_type` is the database's own words for it."""

    name: str
    type: str
    nullable: bool = True
    db_type: str = ""
    charset: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; `charset` only where there is one."""
        value: dict[str, Any] = {
            "name": self.name,
            "type": self.type,
            "nullable": self.nullable,
            "db_type": self.db_type,
        }
        if self.charset is not None:
            value["charset"] = self.charset
        return value


@dataclass(frozen=True)
class TableSchema:
    """A table's columns in order and its key.

    Raises `ConfigError` for a column that has no name, a type that is none, a name that stands twice or is one of the
    bus's own, or a key that is not made of columns.
    """

    source: str
    """The name inside the physical source, `db.table`."""
    columns: tuple[Column, ...]
    key: tuple[str, ...] = field(default=())
    """Names of the columns that identify a row, in key order; empty where the table has none."""
    first_images: bool = True
    """Whether every update has its first image and every delete the whole row. If not, an insert may replace a row that
    is there already, and a delete may have only the key."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for column in self.columns:
            if not column.name:
                raise ConfigError(f"{self.source}: a column has no name")
            if column.name in RESERVED_COLUMNS:
                raise ConfigError(
                    f"{self.source}: column {column.name!r} has the name of one of the bus's own columns; leave it out "
                    f"with `columns: {{{self.source}: {{exclude: [{column.name}]}}}}` or rename it in the database"
                )
            if column.name in seen:
                raise ConfigError(f"{self.source}: column {column.name!r} stands twice")
            seen.add(column.name)
            forms_of(column.type)
        for name in self.key:
            if name not in seen:
                raise ConfigError(f"{self.source}: key column {name!r} is not a column")

    def __hash__(self) -> int:
        return hash(self.fingerprint)  # kept, and the same in every process: schemas are looked up for every frame

    @cached_property
    def canonical(self) -> str:
        """Canonical JSON: keys sorted, no blanks, UTF-8 kept."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @cached_property
    def fingerprint(self) -> int:
        """The identity of this definition: BLAKE2b of the canonical JSON, 8 bytes, read as unsigned little-endian."""
        return int.from_bytes(hashlib.blake2b(self.canonical.encode(), digest_size=8).digest(), "little")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; `first_images` only where it is false."""
        value: dict[str, Any] = {
            "source": self.source,
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key),
        }
        return value if self.first_images else {**value, "first_images": False}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote. Raises `ConfigError` for anything else."""
        try:
            columns = tuple(
                Column(c["name"], c["type"], bool(c.get("nullable", True)), c.get("db_type", ""), c.get("charset"))
                for c in value["columns"]
            )
            key, first_images = tuple(value.get("key", ())), bool(value.get("first_images", True))
            return cls(str(value["source"]), columns, key, first_images)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"not a table schema: {error!r} in {str(value)[:200]}") from error
