"""TableMap: what the log itself says about a table, in the event before its rows.

Names of columns, signedness, character sets, members and keys are there only with `binlog_row_metadata=FULL` (and
signedness and some more with MINIMAL).
"""

from dataclasses import dataclass
from typing import Final

from databus.core import source_name
from databus.sources.mysql._definition import FieldType
from databus.sources.mysql.binlog._byte_reader import ByteReader

_ONE_BYTE: Final = frozenset(
    {
        FieldType.FLOAT,
        FieldType.DOUBLE,
        FieldType.TIMESTAMP2,
        FieldType.DATETIME2,
        FieldType.TIME2,
        FieldType.TINY_BLOB,
        FieldType.MEDIUM_BLOB,
        FieldType.LONG_BLOB,
        FieldType.BLOB,
        FieldType.BLOB_COMPRESSED,
        FieldType.JSON,
        FieldType.GEOMETRY,
        FieldType.VECTOR,
    }
)
_TWO_BYTES: Final = frozenset({FieldType.VARCHAR, FieldType.VARCHAR_COMPRESSED, FieldType.BIT})
_TWO_BYTES_BIG: Final = frozenset(
    {FieldType.NEWDECIMAL, FieldType.ENUM, FieldType.SET, FieldType.VAR_STRING, FieldType.STRING}
)
_KNOWN: Final = frozenset(int(kind) for kind in FieldType)
_NUMERIC: Final = frozenset(
    {
        FieldType.DECIMAL,
        FieldType.TINY,
        FieldType.SHORT,
        FieldType.LONG,
        FieldType.FLOAT,
        FieldType.DOUBLE,
        FieldType.LONGLONG,
        FieldType.INT24,
        FieldType.YEAR,
        FieldType.NEWDECIMAL,
    }
)
_TEXT: Final = frozenset(
    {
        FieldType.VARCHAR,
        FieldType.VARCHAR_COMPRESSED,
        FieldType.VAR_STRING,
        FieldType.STRING,
        FieldType.TINY_BLOB,
        FieldType.MEDIUM_BLOB,
        FieldType.LONG_BLOB,
        FieldType.BLOB,
        FieldType.BLOB_COMPRESSED,
    }
)
_COUNTED_AS_TEXT: Final = {True: FieldType.GEOMETRY, False: FieldType.VECTOR}
"""By whether it is MariaDB: the type without text that a server writes a collation of as well."""
_FRACTIONS: Final = range(7)
_LENGTHS: Final = range(1, 5)
_METAS: Final = {
    FieldType.TIMESTAMP2: _FRACTIONS,
    FieldType.DATETIME2: _FRACTIONS,
    FieldType.TIME2: _FRACTIONS,
    FieldType.ENUM: (1, 2),
    FieldType.SET: (1, 2, 3, 4, 8),
    FieldType.BIT: frozenset(
        bytes_ << 8 | bits for bytes_ in range(9) for bits in range(8) if 1 <= 8 * bytes_ + bits <= 64
    ),
    FieldType.NEWDECIMAL: frozenset(digits << 8 | scale for digits in range(1, 66) for scale in range(digits + 1)),
    **dict.fromkeys(
        (
            FieldType.TINY_BLOB,
            FieldType.MEDIUM_BLOB,
            FieldType.LONG_BLOB,
            FieldType.BLOB,
            FieldType.BLOB_COMPRESSED,
            FieldType.JSON,
            FieldType.GEOMETRY,
            FieldType.VECTOR,
        ),
        _LENGTHS,
    ),
}
"""What a server writes for these types. With any other, the kernels of rows would walk by a width that is none."""


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """The optional part of a table map. A field that the server did not send is None; tuples have one entry for each
    column.
    """

    names: tuple[str, ...] | None = None
    """As the server has them."""
    unsigned: tuple[bool, ...] | None = None
    """False for columns that are not numbers."""
    collations: tuple[int | None, ...] | None = None
    """The number of the collation of text, ENUM and SET columns (63 is binary); None for other columns."""
    members: tuple[tuple[bytes, ...], ...] | None = None
    """The members of ENUM and SET columns, in the column's character set."""
    geometry_types: tuple[int | None, ...] | None = None
    """Of GEOMETRY columns; None for other columns."""
    key: tuple[tuple[int, int], ...] | None = None
    """The primary key: (index of the column, bytes of its prefix or 0)."""
    visible: tuple[bool, ...] | None = None
    """False for invisible columns."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table as the log has it."""

    database: str
    name: str
    types: tuple[int, ...]
    """As in `ColumnDefinition`: ENUM, SET and CHAR have types of their own."""
    metas: tuple[int, ...]
    """As in `ColumnDefinition`."""
    nullable: tuple[bool, ...]
    metadata: TableMetadata

    @property
    def source(self) -> str:
        """The name inside the physical source, `db.table`."""
        return source_name(self.database, self.name)


def parse_table_map(body: bytes, *, is_mariadb: bool = False) -> TableMap:
    """Read a table map's body from after the table id on. Raises `ValueError` saying what is wrong with it."""
    reader = ByteReader(body)
    reader.take(2)
    database = _name(reader)
    name = _name(reader)
    count = packed(reader)
    if not 0 < count <= 4096:
        raise ValueError(f"a table of {count} columns")
    raw_types = reader.take(count)
    meta_bytes = reader.take(packed(reader))
    nullable = _bits(reader.take((count + 7) // 8), count)
    types, metas = _types(raw_types, meta_bytes)
    metadata = _metadata(reader, types, is_mariadb=is_mariadb)
    return TableMap(database, name, types, metas, nullable, metadata)


def packed(reader: ByteReader) -> int:
    """A length-encoded integer."""
    first = reader.integer(1)
    if first < 251:
        return first
    if first in {251, 255}:
        raise ValueError(f"a length that begins with {first}")
    return reader.integer({252: 2, 253: 3, 254: 8}[first])


def _name(reader: ByteReader) -> str:
    text = reader.take(reader.integer(1)).decode("utf-8", "surrogateescape")
    if reader.take(1) != b"\0":
        raise ValueError(f"no zero byte after the name {text!r}")
    return text


def _bits(raw: bytes, count: int) -> tuple[bool, ...]:
    return tuple(bool(raw[i >> 3] >> (i & 7) & 1) for i in range(count))


def _types(raw_types: bytes, meta_bytes: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    reader = ByteReader(meta_bytes)
    types: list[int] = []
    metas: list[int] = []
    for kind in raw_types:
        meta = 0
        real = kind
        if kind in _ONE_BYTE:
            meta = reader.integer(1)
        elif kind in _TWO_BYTES:
            meta = reader.integer(2)
        elif kind in _TWO_BYTES_BIG:
            first, second = reader.take(2)
            meta = first << 8 | second
            if kind == FieldType.STRING:
                real, meta = _string(first, second)
        if real not in _KNOWN:
            raise ValueError(f"column {len(types) + 1} has the unknown type {real}")
        if real in _METAS and meta not in _METAS[FieldType(real)]:
            raise ValueError(f"column {len(types) + 1} has the type {FieldType(real).name} with the metadata {meta}")
        types.append(real)
        metas.append(meta)
    if not reader.is_done:
        raise ValueError("more type metadata than columns need")
    return tuple(types), tuple(metas)


def _string(first: int, second: int) -> tuple[int, int]:
    """STRING stands for CHAR, ENUM and SET; the two high bits of a CHAR's length are hidden, inverted, in the type."""
    real = first | 0x30
    if real not in (FieldType.STRING, FieldType.ENUM, FieldType.SET):
        raise ValueError(f"a CHAR, ENUM or SET with the type {first}")
    return real, second | (real ^ first) << 4


def _metadata(reader: ByteReader, types: tuple[int, ...], *, is_mariadb: bool) -> TableMetadata:  # noqa: C901, PLR0912 - a branch a field
    names = unsigned = key = visible = None
    members: dict[int, tuple[bytes, ...]] = {}
    collations: dict[int, int] = {}
    geometries: dict[int, int] = {}
    numeric = [i for i, kind in enumerate(types) if kind in _NUMERIC]
    text = [i for i, kind in enumerate(types) if kind in _TEXT or kind == _COUNTED_AS_TEXT[is_mariadb]]
    listed = [i for i, kind in enumerate(types) if kind in (FieldType.ENUM, FieldType.SET)]
    while not reader.is_done:
        kind = reader.integer(1)
        field = ByteReader(reader.take(packed(reader)))
        if kind == 1:
            unsigned = _unsigned(field, numeric, len(types))
        elif kind in (2, 10):
            collations |= _default_collations(field, text if kind == 2 else listed)
        elif kind in (3, 11):
            collations |= {i: packed(field) for i in (text if kind == 3 else listed)}
        elif kind == 4:
            names = tuple(field.take(field.integer(1)).decode("utf-8", "surrogateescape") for _ in types)
        elif kind in (5, 6):
            wanted = FieldType.SET if kind == 5 else FieldType.ENUM
            for i in listed:
                if types[i] == wanted:
                    members[i] = tuple(field.take(packed(field)) for _ in range(_count(field)))
        elif kind == 7:
            geometries = {i: packed(field) for i, type_ in enumerate(types) if type_ == FieldType.GEOMETRY}
        elif kind in (8, 9):
            key = _key(field, len(types), has_prefix=kind == 9)
        elif kind == 12:
            bits = field.take((len(types) + 7) // 8)
            visible = tuple(bool(bits[i >> 3] >> (7 - (i & 7)) & 1) for i in range(len(types)))
        else:
            continue  # a field of a newer server: it says nothing that a row's bytes depend on
        if not field.is_done:
            raise ValueError(f"optional metadata {kind} is longer than it should be")
    columns = range(len(types))
    return TableMetadata(
        names=names,
        unsigned=unsigned,
        collations=tuple(None if types[i] in _COUNTED_AS_TEXT.values() else collations.get(i) for i in columns)
        if collations
        else None,
        members=tuple(members.get(i, ()) for i in columns) if members else None,
        geometry_types=tuple(geometries.get(i) for i in columns) if geometries else None,
        key=key,
        visible=visible,
    )


def _count(reader: ByteReader) -> int:
    count = packed(reader)
    if count > 65_535:
        raise ValueError(f"{count} members")
    return count


def _unsigned(field: ByteReader, numeric: list[int], count: int) -> tuple[bool, ...]:
    bits = field.take((len(numeric) + 7) // 8)
    is_unsigned = [False] * count
    for k, i in enumerate(numeric):
        is_unsigned[i] = bool(bits[k >> 3] >> (7 - (k & 7)) & 1)
    return tuple(is_unsigned)


def _default_collations(field: ByteReader, columns: list[int]) -> dict[int, int]:
    """A default, then (index among the text columns, collation) of those that differ."""
    collations = dict.fromkeys(columns, packed(field))
    while not field.is_done:
        index, collation = packed(field), packed(field)
        if index >= len(columns):
            raise ValueError(f"a collation for text column {index} of {len(columns)}")
        collations[columns[index]] = collation
    return collations


def _key(field: ByteReader, columns: int, *, has_prefix: bool) -> tuple[tuple[int, int], ...]:
    key: list[tuple[int, int]] = []
    while not field.is_done:
        index = packed(field)
        if index >= columns:
            raise ValueError(f"a key over column {index} of {columns}")
        key.append((index, packed(field) if has_prefix else 0))
    return tuple(key)
