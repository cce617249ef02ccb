"""Keys: what a server makes of those that a statement names: their columns, names, prefixes, and MariaDB's hashes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from databus.sources.mysql._charsets import BYTES_A_CHARACTER
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.tables._lexer import ServerKind, UnknownEffect
from databus.sources.mysql.tables._syntax import DropKey, KeyPart, KeyText
from databus.sources.mysql.tables._table_state import PRIMARY, Key, TableState, same_name


def with_keys(state: TableState, keys: Iterable[KeyText], server: ServerKind, *, is_new: bool = False) -> TableState:
    """The table with keys that a statement adds. is_new: it is CREATE TABLE."""
    made = list(state.keys)
    for key in sorted(keys, key=lambda key: key.kind != "period"):  # others may stand on them, wherever they are said
        same = DropKey(key.name, is_period=key.kind == "period")
        is_there = any(is_named(other, same) for other in made)
        if key.kind == "foreign" or (key.is_optional and key.name and is_there):
            continue
        parts = tuple(_own_case(state, column) for part in key.parts for column in _columns_of(part, made))
        name = key.name or _made_up_name(parts, [other.name for other in made])
        is_long = key.kind == "unique" and server.is_mariadb and (key.is_hash or state.needs_hash(parts))
        if is_long and any(_is_geometry(state, part) for part in parts):  # MariaDB hashes those in CREATE only
            parts = tuple(replace(part, prefix=8) if _is_geometry(state, part) else part for part in parts)
            is_long = is_new or state.needs_hash(parts)
        made.append(Key(key.kind, name, parts, is_hashed=is_long))
    return replace(state, keys=tuple(made))


def _columns_of(part: KeyPart, made: Sequence[Key]) -> tuple[KeyPart, ...]:
    """A key's part as columns: of a period its end and its start, in the server's order. They identify a row of the
    period, since servers refuse periods that overlap.
    """
    if not part.is_period:
        return (part,)
    period = next((key for key in made if key.kind == "period" and same_name(key.name, part.name)), None)
    if period is None:
        raise UnknownEffect(f"which columns the period {part.name[:64]!r} has is not known")
    return period.parts[::-1]


def carried(part: KeyPart, old: ColumnDefinition, new: ColumnDefinition, *, is_other: bool) -> KeyPart:
    """A part of a key that an ALTER TABLE leaves, for the column that it is then.

    is_other: the statement dropped the column and added one of that name. The key takes it, but no more of it than the
    old column had. Else the prefix is dropped if it was the whole column, or does not fit any more.
    """
    if is_other:
        is_text = old.charset is not None and not old.members
        whole = old.meta // BYTES_A_CHARACTER[old.charset or BINARY] if is_text else 1
        part = replace(part, prefix=part.prefix or whole)
    keeps = (is_other or is_prefix_of(part, old)) and is_prefix_of(part, new)
    return KeyPart(new.name, part.prefix if keeps else 0)


def is_prefix_of(part: KeyPart, column: ColumnDefinition) -> bool:
    """Whether the part is, or may be, only the beginning of such a column."""
    if column.type in (FieldType.BLOB, FieldType.BLOB_COMPRESSED, FieldType.GEOMETRY):
        return True
    is_text = column.charset is not None and not column.members
    return is_text and part.prefix * BYTES_A_CHARACTER[column.charset or BINARY] < column.meta


def _is_geometry(state: TableState, part: KeyPart) -> bool:
    column = state.column(part.name)
    return column is not None and column.type is FieldType.GEOMETRY


def _own_case(state: TableState, part: KeyPart) -> KeyPart:
    column = state.column(part.name)
    return part if column is None else replace(part, name=column.name)


def _made_up_name(parts: tuple[KeyPart, ...], taken: list[str]) -> str:
    name = parts[0].name or "functional_index"
    if not same_name(name, PRIMARY) and not any(same_name(name, other) for other in taken):
        return name
    number = 2
    while any(same_name(f"{name}_{number}", other) for other in taken):
        number += 1
    return f"{name}_{number}"


def is_named(key: Key, action: DropKey) -> bool:
    """Whether a key, or a period, is the one that an action names."""
    return same_name(key.name, action.name) and (key.kind == "period") is action.is_period
