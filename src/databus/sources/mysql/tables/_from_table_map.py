"""Definitions from a table map's own metadata, where the server logs all of it (`binlog_row_metadata=FULL`)."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

from databus.core import CorruptData, SourceChanged, source_name
from databus.sources.mysql._charsets import BYTES_A_CHARACTER, charset_of_number
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql._server_text import decoded
from databus.sources.mysql.tables._column_types import escaped
from databus.sources.mysql.tables._table_state import hash_columns, same_name

_CUSTOM_COLLATIONS: Final = range(1024, 2048)
"""MySQL's administrators define collations in this range, so a number in it says nothing about the character set."""
_WORDS: Final = {
    FieldType.TINY: "tinyint",
    FieldType.SHORT: "smallint",
    FieldType.INT24: "mediumint",
    FieldType.LONG: "int",
    FieldType.LONGLONG: "bigint",
    FieldType.FLOAT: "float",
    FieldType.DOUBLE: "double",
    FieldType.YEAR: "year",
    FieldType.DATE: "date",
    FieldType.NEWDATE: "date",
    FieldType.TIME2: "time",
    FieldType.DATETIME2: "datetime",
    FieldType.TIMESTAMP2: "timestamp",
    FieldType.JSON: "json",
    FieldType.VECTOR: "vector",
}
GEOMETRIES: Final = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)
_OLD_TIMES: Final = {
    FieldType.TIME: FieldType.TIME2,
    FieldType.DATETIME: FieldType.DATETIME2,
    FieldType.TIMESTAMP: FieldType.TIMESTAMP2,
}
"""Types whose width and digits a table map does not say; by a setting, a statement's words mean either form."""
_BLOBS: Final = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_HASH: Final = "DB_ROW_HASH_"


class Metadata(Protocol):
    """The optional part of a table map: see `databus.sources.mysql.binlog.TableMetadata`."""

    @property
    def names(self) -> tuple[str, ...] | None: ...
    @property
    def unsigned(self) -> tuple[bool, ...] | None: ...
    @property
    def collations(self) -> tuple[int | None, ...] | None: ...
    @property
    def members(self) -> tuple[tuple[bytes, ...], ...] | None: ...
    @property
    def geometry_types(self) -> tuple[int | None, ...] | None: ...
    @property
    def key(self) -> tuple[tuple[int, int], ...] | None: ...
    @property
    def visible(self) -> tuple[bool, ...] | None: ...


class LoggedTable(Protocol):
    """A table map: see `databus.sources.mysql.binlog.TableMap`."""

    @property
    def database(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def types(self) -> tuple[int, ...]: ...
    @property
    def metas(self) -> tuple[int, ...]: ...
    @property
    def nullable(self) -> tuple[bool, ...]: ...
    @property
    def metadata(self) -> Metadata: ...


def from_table_map(table_map: LoggedTable, previous: TableDefinition | None = None) -> TableDefinition:
    """The definition of a table by a table map with names.

    previous: the history's definition, for what no table map says: words of a type, defaults, what is generated. It is
    believed column by column, only where it agrees with the map. Raises `CorruptData` for a map without names, or whose
    parts contradict each other, `SourceChanged` for a column that neither of them describes fully.
    """
    metadata, source = table_map.metadata, source_name(table_map.database, table_map.name)
    if metadata.names is None:
        raise CorruptData(f"{source}: its table map does not name the columns; binlog_row_metadata is not FULL")
    known = {column.name: column for column in previous.columns} if previous is not None else {}
    shown_count = len(metadata.names) - _hashes(table_map, known)
    columns = tuple(
        _column(table_map, index, known.get(name), source, is_hidden=index >= shown_count)
        for index, name in enumerate(metadata.names)
    )
    key = tuple(columns[index].name for index, _ in metadata.key or ())
    return TableDefinition(
        table_map.database,
        table_map.name,
        columns,
        key,
        previous.charset if previous is not None else "utf8mb4",
        is_versioned=_is_versioned(table_map) if previous is None else previous.is_versioned,
    )


def _is_versioned(table_map: LoggedTable) -> bool:
    """MariaDB's hidden columns of a system versioned table, by their names and place."""
    names = table_map.metadata.names or ()
    return len(names) > 2 and any(
        same_name(names[i], "row_start") and same_name(names[i + 1], "row_end") for i in range(1, len(names) - 1)
    )


def _hashes(table_map: LoggedTable, known: Mapping[str, ColumnDefinition]) -> int:
    """How many of the last columns are MariaDB's own, for hashes of keys. A map lists them like any other column,
    so type and name identify them, unless the table is known to have a column of that name.
    """
    names, unsigned = table_map.metadata.names or (), table_map.metadata.unsigned or ()
    if table_map.metadata.visible is not None:
        return 0  # only MySQL says which columns are visible
    first = len(names)
    while first > 1 and names[first - 1].startswith(_HASH):
        own = known.get(names[first - 1])
        is_shown = own is not None and not own.is_hidden
        if is_shown or table_map.types[first - 1] != FieldType.LONGLONG or unsigned[first - 1 : first] != (True,):
            break
        first -= 1
    while names[first:] != tuple(islice(hash_columns(names[:first]), len(names) - first)):
        first += 1  # names that the server would not have chosen here
    return len(names) - first


def _column(
    table_map: LoggedTable, index: int, known: ColumnDefinition | None, source: str, *, is_hidden: bool
) -> ColumnDefinition:
    metadata = table_map.metadata
    names = metadata.names or ()
    try:
        kind = FieldType(table_map.types[index])
        charset = _charset(metadata, index)
        members = metadata.members[index] if metadata.members is not None else ()
        names_of_members = tuple(decoded(member, charset or BINARY) for member in members)
    except (ValueError, IndexError, LookupError) as error:
        raise CorruptData(f"{source}: its table map contradicts itself at column {names[index]!r}: {error}") from error
    column = ColumnDefinition(
        name=names[index],
        type=kind,
        meta=table_map.metas[index],
        column_type="",
        is_unsigned=metadata.unsigned is not None and metadata.unsigned[index] and kind is not FieldType.YEAR,
        is_nullable=table_map.nullable[index],
        charset=charset,
        members=names_of_members,
        is_invisible=not metadata.visible[index] if metadata.visible is not None else False,
        is_hidden=is_hidden,
        uses=None,  # no map says which columns are generated
    )
    if known is not None and _agrees(known, column, has_visibility=metadata.visible is not None):
        return known if known.is_nullable == column.is_nullable else replace(known, is_nullable=column.is_nullable)
    if kind in _OLD_TIMES:
        raise SourceChanged(
            f"{source}: column {column.name!r} has the form of MariaDB 5.3, of which no log says how many digits of a "
            f"second it has, and nothing else is known of it here. For log files, give `definitions`"
        )
    geometry = metadata.geometry_types[index] if metadata.geometry_types is not None else None
    return replace(column, column_type=_words(column, geometry))


def _charset(metadata: Metadata, index: int) -> str | None:
    number = metadata.collations[index] if metadata.collations is not None else None
    if number is None:
        return None
    charset = charset_of_number(number)
    if charset is None:
        raise ValueError(f"it has the unknown collation {number}")
    return charset


def _agrees(known: ColumnDefinition, logged: ColumnDefinition, *, has_visibility: bool) -> bool:
    """Whether the history's column is the one in the map."""
    like = _OLD_TIMES.get(logged.type)
    if known.type not in (logged.type, like) or (known.meta != logged.meta and like is None):
        return False
    if known.is_unsigned != logged.is_unsigned:
        return False
    if known.charset is not None and known.charset != logged.charset:
        return False
    if has_visibility and known.is_invisible != logged.is_invisible:
        return False
    return known.members == logged.members


def _words(column: ColumnDefinition, geometry: int | None) -> str:
    """A type's words, as far as the map has them: no display widths, no digits of floats."""
    kind, meta = column.type, column.meta
    sign = " unsigned" if column.is_unsigned else ""
    if kind in (FieldType.TIME2, FieldType.DATETIME2, FieldType.TIMESTAMP2):
        return _WORDS[kind] + (f"({meta})" if meta else "")
    if kind in _WORDS:
        return _WORDS[kind] + sign
    if kind is FieldType.NEWDECIMAL:
        return f"decimal({meta >> 8},{meta & 0xFF}){sign}"
    if kind is FieldType.BIT:
        return f"bit({(meta >> 8) * 8 + (meta & 0xFF)})"
    if column.members:
        spelled = ",".join(f"'{escaped(member)}'" for member in column.members)
        return f"{'enum' if kind is FieldType.ENUM else 'set'}({spelled})"
    if kind is FieldType.GEOMETRY:
        return GEOMETRIES[geometry] if geometry is not None and geometry < len(GEOMETRIES) else "geometry"
    is_binary = column.charset == BINARY
    if kind in (FieldType.BLOB, FieldType.BLOB_COMPRESSED):
        return _BLOBS.get(meta, "") + ("blob" if is_binary else "text")
    character_bytes = BYTES_A_CHARACTER.get(column.charset or BINARY, 1)
    length = (meta - (kind is FieldType.VARCHAR_COMPRESSED)) // character_bytes
    if kind is FieldType.STRING:
        return f"{'binary' if is_binary else 'char'}({length})"
    return f"{'varbinary' if is_binary else 'varchar'}({length})"


def check_agreement(table_map: LoggedTable, known: TableDefinition) -> None:
    """Raise `SourceChanged`, naming the column, if a table map says something else than the known definition.

    Counts and types are compared where rows are planned (`make_plan`), which is expected to follow.
    """
    for index, (column, nullable) in enumerate(zip(known.columns, table_map.nullable, strict=False)):
        difference = _difference(table_map, index, column)
        if difference is None and not column.is_hidden and column.is_nullable != nullable:
            difference = "nullable" if nullable else "NOT NULL"
        if difference is not None:
            raise SourceChanged(
                f"{known.source}: the log has column {index + 1} ({column.name!r}) as {difference}, but its "
                f"definition at this position is {_column_words(column)}"
            )


def _difference(table_map: LoggedTable, index: int, column: ColumnDefinition) -> str | None:
    """What the optional part of the map says of a column differently from the definition, in words."""
    if index >= len(table_map.types) or table_map.types[index] != column.type:
        return None  # what the types say is not for this function to compare
    metadata = table_map.metadata
    if metadata.unsigned is not None and column.type is not FieldType.YEAR:
        is_unsigned = metadata.unsigned[index]
        if is_unsigned != column.is_unsigned:
            return "unsigned" if is_unsigned else "signed"
    number = metadata.collations[index] if metadata.collations is not None else None
    if number is not None and number not in _CUSTOM_COLLATIONS:
        charset = charset_of_number(number)
        if charset is not None and charset != (column.charset or BINARY):
            return f"text in {charset}" if charset != BINARY else "bytes"
    geometry = metadata.geometry_types[index] if metadata.geometry_types is not None else None
    if geometry is not None and geometry < len(GEOMETRIES):
        kind = column.column_type.split(" ")[0].replace("geomcollection", "geometrycollection")
        if kind != GEOMETRIES[geometry]:
            return GEOMETRIES[geometry]
    return None


def _column_words(column: ColumnDefinition) -> str:
    charset = f" in {column.charset}" if column.charset not in (None, BINARY) else ""
    return f"{column.column_type}{charset}{'' if column.is_nullable else ' NOT NULL'}"
