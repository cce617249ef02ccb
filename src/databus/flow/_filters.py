"""What filters over whole tables do with each: rows that pass, columns that stay, other names, masks. Pure.

They travel to tasks as they are, and have of a pipeline's file their options alone. Start with `TableFilter`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import ConfigError, ControlKind
from databus.filters import RowChoice, TableStep, matches
from databus.flow._hmac import hmac_hex
from databus.flow._lineage import Lineage
from databus.schema import Column, Predicate, TableSchema, column_named, forms_of, sink_schema

_HASHED: Final = ("bool", "string", "binary", "date", "timestamp", "timestamptz")
_Made = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, kw_only=True)
class TableFilter(ABC):
    """Base of these. Each works on one table by itself, on Arrow."""

    tables: tuple[str, ...] = ("*",)
    """Patterns of those that it is about."""
    missing: Literal["stop", "skip"] = "stop"
    """What happens where a column is not there."""

    needs_tables: ClassVar[bool] = False
    """Whether it works between tables edges only: it needs whole updates, controls, or gives the table another key."""

    @property
    def not_a_copy(self) -> str:
        """Why a mirror behind it does not hold what the source holds, as the end of a sentence; empty where it does."""
        return ""

    @property
    def hides(self) -> bool:
        """Whether a column that it is about must not pass under another name."""
        return True

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The columns that its options name."""

    def is_about(self, name: str) -> bool:
        """Whether it does something to the table of this full name."""
        return matches(name, self.tables)

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """The columns of what comes out, where these come in."""
        return list(names)

    def lineage(self, names: Sequence[str]) -> Lineage:
        """What becomes of the columns of typed rows. Raises KeyError for one that it names and that is not there."""
        lacking = [name for name in self.names if column_named(name, names) is None]
        if lacking and self.missing == "stop":
            raise KeyError(lacking[0])
        return self._lineage(names)

    @abstractmethod
    def _lineage(self, names: Sequence[str]) -> Lineage:
        """The same; columns that it names and that are not among these are left alone."""

    def control(self, kind: ControlKind, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What it makes of a control's body, other than of `schema`; None where it lets none pass.

        Raises `UnsupportedFeature` for one that it cannot follow.
        """
        del kind
        return body

    @abstractmethod
    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """What it makes of a table in one definition. missing: columns that it names and this definition lacks, each as
        the table got it later; None for one that is left alone. Raises `ConfigError` for what does not fit the table.
        """


@dataclass(frozen=True, kw_only=True)
class Where(TableFilter):
    """Lets rows pass that a condition holds for."""

    condition: str
    hides = False

    @cached_property
    def predicate(self) -> Predicate:
        """The condition. Raises `ConfigError`."""
        return Predicate.parse(self.condition)

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return self.predicate.columns

    def _lineage(self, names: Sequence[str]) -> Lineage:
        read = [column_named(name, names) for name in self.names]
        unchanged = Lineage.unchanged(names)
        return unchanged if None in read else replace(unchanged, reads=frozenset(name for name in read if name))

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`. A column that the table got later is NULL."""
        if any(column is None for column in missing.values()):
            return TableStep.unchanged(table)
        later = {column.name: forms_of(column.type).sink for column in missing.values() if column is not None}
        bound = self.predicate.over(pa.schema([*sink_schema(table), *later.items()]))
        choice = RowChoice(table)

        def apply(rows: pa.Table) -> pa.Table:
            judged = rows
            for name, kind in later.items():
                judged = judged.append_column(name, pa.nulls(rows.num_rows, kind))
            return choice.left(rows, bound.holds(judged))

        own = {name: name for name in table.names}
        return TableStep(table, choice.after, apply, own, reads=bound.columns, selects=True)


@dataclass(frozen=True, kw_only=True)
class Project(TableFilter):
    """Leaves some of the columns: those of `columns`, or all but those of `exclude`."""

    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None

    @property
    def hides(self) -> bool:
        """With `exclude`: what is not named goes on."""
        return self.exclude is not None

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return self.columns or self.exclude or ()

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """See `TableFilter.columns_left`."""
        named = {column_named(name, names) for name in self.names}
        return [name for name in names if (name in named) == (self.columns is not None)]

    def _lineage(self, names: Sequence[str]) -> Lineage:
        return Lineage.unchanged(self.columns_left(names))

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`."""
        del missing
        left = self.columns_left(table.names)
        lost = [name for name in table.key if name not in left]
        if lost:
            raise ConfigError(
                f"{', '.join(lost)} is part of the key, by which rows are told apart, and has to stay; `mask` can "
                "`hash` it"
            )
        if not left:
            raise ConfigError("no column would be left")
        after = replace(table, columns=tuple(table.column(name) for name in left))
        gone = [name for name in table.names if name not in left]
        return TableStep(table, after, lambda rows: rows.drop_columns(gone), {name: name for name in left})


@dataclass(frozen=True, kw_only=True)
class Rename(TableFilter):
    """Gives columns other names."""

    columns: Mapping[str, str]
    """By name in the table, the name behind the filter."""
    hides = False

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return tuple(self.columns)

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """See `TableFilter.columns_left`."""
        to = {column_named(old, names): new for old, new in self.columns.items()}
        return [to.get(name, name) for name in names]

    def _lineage(self, names: Sequence[str]) -> Lineage:
        return Lineage(dict(zip(self.columns_left(names), names, strict=True)))

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`."""
        del missing
        new = dict(zip(table.names, self.columns_left(table.names), strict=True))
        columns = tuple(
            Column(new[column.name], column.type, column.nullable, column.db_type, column.charset)
            for column in table.columns
        )
        after = replace(table, columns=columns, key=tuple(new[name] for name in table.key))

        def apply(rows: pa.Table) -> pa.Table:
            return rows.rename_columns([new.get(name, name) for name in rows.column_names])

        return TableStep(table, after, apply, {name: old for old, name in new.items()})


@dataclass(frozen=True, kw_only=True)
class Mask(TableFilter):
    """Puts hashes, NULL or beginnings in the place of values.

    A hash is HMAC-SHA-256 of the value as text, in hexadecimal.
    """

    hash: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    truncate: Mapping[str, int] = field(default_factory=dict)
    """How many characters or bytes stay, by column."""
    salt: bytes = field(default=b"", repr=False)
    """The key of the hashes, which nothing shows."""

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return (*self.hash, *self.redact, *self.truncate)

    def _lineage(self, names: Sequence[str]) -> Lineage:
        masked = {column_named(name, names) for name in self.names}
        hashed = {column_named(name, names) for name in self.hash}
        return Lineage(
            {name: None if name in masked else name for name in names},
            frozenset(name for name in masked if name is not None),
            hashed={name: name for name in hashed if name is not None},
            made_of={name: frozenset([name]) for name in masked if name is not None},
        )

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`."""
        del missing
        columns = {column.name: column for column in table.columns}
        made: dict[str, _Made] = {}
        how: dict[str, Any] = {}
        for name in (column_named(name, table.names) for name in self.hash):
            if name is not None:
                made[name], how[name] = self._hash(columns[name]), "hash"
                columns[name] = Column(name, "string", columns[name].nullable)
        for name in (column_named(name, table.names) for name in self.redact):
            if name is not None:
                _check_no_key(table, name, "redact")
                made[name], how[name] = _nothing, "redact"
                columns[name] = Column(name, columns[name].type)
        for option, length in self.truncate.items():
            name = column_named(option, table.names)
            if name is not None:
                _check_no_key(table, name, "truncate")
                made[name], how[name] = _cut(columns[name], length), ("truncate", length)

        def apply(rows: pa.Table) -> pa.Table:
            for name, function in made.items():
                values = function(rows.column(name).combine_chunks())
                rows = rows.set_column(rows.schema.get_field_index(name), name, values)
            return rows

        after = replace(table, columns=tuple(columns.values()))
        return TableStep(table, after, apply, {name: name for name in table.names}, how)

    def _hash(self, column: Column) -> _Made:
        is_whole = column.type.startswith(("int", "uint")) or column.type.endswith(",0)")
        if not (is_whole or column.type in _HASHED):
            raise ConfigError(f"hash: column {column.name} is {column.type}, whose text is not one for each value")
        is_bytes = column.type == "binary"
        return lambda values: hmac_hex(values if is_bytes else values.cast(pa.string()), self.salt)


def _check_no_key(table: TableSchema, name: str, option: str) -> None:
    if name in table.key:
        raise ConfigError(
            f"{option}: column {name} is part of the key, by which rows are told apart; it can be hashed (`hash`)"
        )


def _nothing(values: pa.Array) -> pa.Array:
    return pa.nulls(len(values), values.type)


def _cut(column: Column, length: int) -> _Made:
    if column.type == "string":
        return lambda values: pc.utf8_slice_codeunits(values, 0, length)
    if column.type == "binary":
        return lambda values: pc.binary_slice(values, 0, length)
    raise ConfigError(f"truncate: column {column.name} is {column.type}; text and binary can be truncated")
