"""Options that every source has, and how tables are chosen by them."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from databus.core import ConfigError, canonical_name, name_fits
from databus.schema import TableSchema


def _from_folder(path: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder")
    return path if folder is None else str(Path(folder) / path)


LocalPath = Annotated[str, AfterValidator(_from_folder)]
"""A path in a configuration; relative ones start at the folder that `parse_source` is given."""


SourceName = Annotated[str, AfterValidator(canonical_name)]
"""The name of a table (`db.table`) in a configuration, as sources call it."""


class ColumnChoice(BaseModel):
    """Which columns of a table are not captured."""

    model_config = ConfigDict(extra="forbid")

    exclude: list[str] = Field(
        default_factory=list, description="Columns that never reach the log.", examples=[["ssn"]]
    )


class SourceConfig(BaseModel):
    """One physical source. Each kind of source adds its own options to these."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="Kind of source, such as `sqlite` or `mock`.")
    tables: list[str] = Field(
        default_factory=lambda: ["*"],
        min_length=1,
        description="Tables to capture, as `db.table`, `*` standing for any run of characters. A database with a dot, "
        "and whatever else is to stand for itself, is written between backquotes.",
        examples=[["main.*"], ["shop.orders", "shop.customers"], ["`shop.example`.*"]],
    )
    exclude: list[str] = Field(default_factory=list, description="Tables to leave out of those, same form.")
    columns: dict[SourceName, ColumnChoice] = Field(
        default_factory=dict,
        description="By table: columns to leave out.",
        examples=[{"main.users": {"exclude": ["ssn"]}}],
    )
    ids: dict[SourceName, Annotated[int, Field(ge=1, le=2**32 - 1)]] = Field(
        default_factory=dict, description="By table: the id it is known by, instead of the next free one."
    )
    project: str | None = Field(
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$",
        description="Whose it is, for the rights of those who look at it in a [dashboard](dashboard.md).",
        examples=["billing"],
    )

    def selects(self, table: str) -> bool:
        """Whether the table `db.table` is captured.

        >>> SourceConfig(type="mock", tables=["shop.*"], exclude=["shop.tmp_*"]).selects("shop.tmp_1")
        False
        """
        return _matches(table, self.tables) and not _matches(table, self.exclude)

    @property
    def choice(self) -> str | None:
        """A hash of which tables and columns are captured, by which relays of one database are compared; None where
        another relay chooses them.
        """
        columns = {table: sorted(choice.exclude) for table, choice in self.columns.items() if choice.exclude}
        options = json.dumps([sorted(self.tables), sorted(self.exclude), columns], sort_keys=True)
        return hashlib.blake2b(options.encode(), digest_size=8).hexdigest()

    def unmatched(self, captured: Sequence[str]) -> Mapping[str, str]:
        """What options ask for and none of the captured tables is: each entry, and the option that it stands in.

        >>> SourceConfig(type="mock", tables=["shop.*", "crm.*"]).unmatched(["shop.orders"])
        {'crm.*': 'tables'}
        """
        alone = {entry: self.model_copy(update={"tables": [entry], "exclude": []}) for entry in self.tables}
        return {entry: "tables" for entry, narrowed in alone.items() if not any(map(narrowed.selects, captured))}

    def tables_here(self, folder: Path) -> Mapping[str, Sequence[str]] | None:
        """The tables (`db.table`) that there are, captured or not, with their columns; None where a server would have
        to be asked. folder: where relative paths start. Raises `ConfigError`, beginning with an option, if that option
        names what is not there.
        """
        del folder
        return None

    def definitions_here(self, folder: Path) -> Mapping[str, TableSchema] | None:
        """The tables that would be captured, with their definitions; see `tables_here`."""
        del folder
        return None

    @property
    def merging(self) -> Sequence[str]:
        """The options, as they are set, by which values that differ in the database may be delivered as one. They spare
        the columns of a table's own key.
        """
        return ()

    @property
    def has_messages(self) -> bool:
        """Whether its rows are messages of a broker as they were, with all that belongs to them."""
        return False

    def excluded_columns(self, table: str, key: Iterable[str]) -> frozenset[str]:
        """The columns of `table` to leave out. Raises `ConfigError` if one of them is in its `key`."""
        choice = self.columns.get(table)
        if choice is None:
            return frozenset()
        in_key = sorted(set(choice.exclude) & set(key))
        if in_key:
            raise ConfigError(f"columns.{table}.exclude: {in_key[0]!r} is part of the key; a row needs its key")
        return frozenset(choice.exclude)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name_fits(name, pattern) for pattern in patterns)
