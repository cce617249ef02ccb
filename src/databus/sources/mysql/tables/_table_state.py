"""TableState: all that must be known of a table to follow its DDL. A definition is a view of it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Self

from databus.sources.mysql._charsets import BYTES_A_CHARACTER
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.tables._syntax import KeyPart

PRIMARY: Final = "PRIMARY"
_KEY_BYTES_MAX: Final = 3072  # InnoDB; MariaDB keeps a hash of what is longer
_ROW_TIMES: Final = ("row_start", "row_end")
_BLOBS: Final = frozenset({FieldType.BLOB, FieldType.BLOB_COMPRESSED, FieldType.JSON, FieldType.GEOMETRY})


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table."""

    kind: str
    """`primary`, `unique`, `index`; or `period`: the two columns of a period that a statement defined (catalogues do
    not list them).
    """
    name: str
    parts: tuple[KeyPart, ...]
    is_hashed: bool = False
    """Whether MariaDB keeps it in a hidden column."""

    def to_json(self) -> list[Any]:
        """As a JSON array."""
        parts = [[part.name, part.prefix] if part.prefix else part.name for part in self.parts]
        return [self.kind, self.name, parts, *([1] if self.is_hashed else [])]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        """Read what `to_json` wrote."""
        parts = tuple(KeyPart(part) if isinstance(part, str) else KeyPart(part[0], part[1]) for part in value[2])
        return cls(value[0], value[1], parts, is_hashed=len(value) > 3)


def same_name(left: str, right: str) -> bool:
    """Whether two names of columns or keys are one: their case does not count."""
    return left == right or left.casefold() == right.casefold()


def hash_columns(taken: Iterable[str]) -> Iterator[str]:
    """The names that MariaDB gives to its columns of hashes, in order, beside the table's own columns."""
    own = {name.casefold() for name in taken}
    return (name for number in count(1) if (name := f"DB_ROW_HASH_{number}").casefold() not in own)


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at a position of the log."""

    database: str
    name: str
    columns: tuple[ColumnDefinition, ...]
    keys: tuple[Key, ...] = ()
    """In the server's order: it decides which unique key identifies rows if there is no primary key."""
    charset: str = "utf8mb4"
    row_times: str = ""
    """Of MariaDB's system versioned tables: `implicit` (two hidden columns) or `explicit`; else empty."""

    @property
    def definition(self) -> TableDefinition:
        """What rows are decoded by."""
        columns = (*self.columns, *self._hidden())
        return TableDefinition(
            self.database, self.name, columns, self.row_key(), self.charset, is_versioned=bool(self.row_times)
        )

    def _hidden(self) -> Iterator[ColumnDefinition]:
        if self.row_times == "implicit":
            for name in _ROW_TIMES:
                yield ColumnDefinition(
                    name, FieldType.TIMESTAMP2, 6, "timestamp(6)", is_nullable=False, is_generated=True, is_hidden=True
                )
        free = hash_columns(column.name for column in self.columns)
        for key in self.keys:
            if not key.is_hashed:
                continue
            yield ColumnDefinition(
                next(free),
                FieldType.LONGLONG,
                0,
                "bigint(20) unsigned",
                is_unsigned=True,
                is_nullable=self._has_null(key),
                is_generated=True,
                is_hidden=True,
            )

    def is_like(self, listed: "TableState") -> bool:
        """Whether a catalogue that shows this table shows it as `listed`."""
        return self == listed or replace(self, keys=tuple(key for key in self.keys if key.kind != "period")) == listed

    def column(self, name: str) -> ColumnDefinition | None:
        """The column of that name, in whatever case."""
        return next((column for column in self.columns if same_name(column.name, name)), None)

    def row_key(self) -> tuple[str, ...]:
        """The columns that identify a row, as the server itself chooses them."""
        for key in self.keys:
            if key.kind == "primary" or (
                key.kind == "unique" and not self._has_null(key) and not self._is_partial(key)
            ):
                columns = [self.column(part.name) for part in key.parts]
                return tuple(column.name for column in columns if column is not None)
        return ()

    def _has_null(self, key: Key) -> bool:
        columns = [self.column(part.name) for part in key.parts]
        return any(column is None or column.is_nullable for column in columns)

    def _is_partial(self, key: Key) -> bool:
        return key.is_hashed or any(self._is_prefix(part) for part in key.parts)

    def _is_prefix(self, part: KeyPart) -> bool:
        column = self.column(part.name)
        if column is None or column.type is FieldType.GEOMETRY:
            return True  # of a geometry only its first bytes are indexed
        if not part.prefix:
            return False
        if column.charset is None and column.type not in _BLOBS:
            return False
        return column.type in _BLOBS or part.prefix * BYTES_A_CHARACTER.get(column.charset or "", 1) < column.meta

    def with_sorted_keys(self) -> Self:
        """With keys as the server keeps them: the primary one, unique ones without NULL, other unique ones, others."""

        def rank(key: Key) -> tuple[bool, bool, bool, bool]:
            is_unique = key.kind in ("primary", "unique")
            return (key.kind != "primary", not is_unique, is_unique and self._has_null(key), self._is_partial(key))

        return replace(self, keys=tuple(sorted(self.keys, key=rank)))

    def needs_hash(self, parts: Sequence[KeyPart]) -> bool:
        """Whether MariaDB cannot index a unique key over `parts` but by a hash."""
        size = 0
        for part in parts:
            column = self.column(part.name)
            if column is None:
                continue
            if column.type in _BLOBS and not part.prefix:
                return True
            is_text = column.charset is not None and not column.members
            character_bytes = BYTES_A_CHARACTER.get(column.charset or "", 1)
            length = part.prefix * character_bytes if part.prefix else column.meta if is_text else 8
            size += length
        return size > _KEY_BYTES_MAX

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, without its names."""
        return {
            "columns": [column.to_json() for column in self.columns],
            "keys": [key.to_json() for key in self.keys],
            "charset": self.charset,
            **({"row_times": self.row_times} if self.row_times else {}),
        }

    @classmethod
    def from_json(cls, database: str, name: str, value: dict[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(
            database,
            name,
            tuple(ColumnDefinition.from_json(column) for column in value["columns"]),
            tuple(Key.from_json(key) for key in value["keys"]),
            value["charset"],
            value.get("row_times", ""),
        )


def as_shown(name: tuple[str, str], definition: TableDefinition, known: TableState | None) -> TableState:
    """A table as the log itself shows it; what no table map has stays as it was known."""
    columns = tuple(column for column in definition.columns if not column.is_hidden)
    row_times = "" if not definition.is_versioned else known.row_times if known is not None else "explicit"
    state = TableState(*name, columns, () if known is None else known.keys, definition.charset, row_times)
    if state.row_key() != definition.key:
        state = replace(state, keys=(Key("primary", PRIMARY, tuple(map(KeyPart, definition.key))),))
    return state if definition.key else replace(state, keys=())
