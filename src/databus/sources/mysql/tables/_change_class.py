"""Classes: what a change of a column does to the values that are there (DESIGN 4.6).

1 leaves every value, as consumers hold it, equal. 3 changes values, or cannot be proven not to.
"""

from dataclasses import dataclass
from typing import Any, Final

from databus.sources.mysql._charsets import BYTES_A_CHARACTER, UTF8MB3
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.tables._lexer import SqlMode

METADATA: Final = 1
FILLS: Final = 2
UNPROVEN: Final = 3

_INTEGERS: Final = (FieldType.TINY, FieldType.SHORT, FieldType.INT24, FieldType.LONG, FieldType.LONGLONG)
_FLOATS: Final = (FieldType.FLOAT, FieldType.DOUBLE)
_FRACTIONS: Final = frozenset({FieldType.TIME2, FieldType.DATETIME2, FieldType.TIMESTAMP2})
_BLOBS: Final = frozenset({FieldType.BLOB, FieldType.BLOB_COMPRESSED})
_VARCHARS: Final = frozenset({FieldType.VARCHAR, FieldType.VARCHAR_COMPRESSED})
_PRECISION_MAX: Final = 38  # beyond it the bus has digits as text
_PRESERVING: Final = frozenset(
    {(UTF8MB3, "utf8mb4"), ("ascii", "utf8mb4"), ("ascii", UTF8MB3), ("ascii", "latin1"), ("ascii", "latin2")}
)
"""Conversions of character sets that keep every text the same."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a change of a table is of a class."""

    column: str | None
    """The column that the reason is about, by its new name; None for the whole table."""
    number: int
    """The class."""
    why: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"column": self.column, "class": self.number, "why": self.why}


def reason_of(old: ColumnDefinition, new: ColumnDefinition, sql_mode: int) -> Reason | None:
    """What a change of a column's definition does to its values; None if the definition is the same."""
    if new.is_generated:
        return Reason(new.name, UNPROVEN, "its expression may have changed")
    if old.is_generated:
        return Reason(new.name, UNPROVEN, "it was generated")
    if new.is_auto_increment and not _keeps_numbers(old, sql_mode):
        return Reason(new.name, UNPROVEN, "it became AUTO_INCREMENT, which may have put numbers in place of 0 and NULL")
    if old.is_nullable and not new.is_nullable and not _refuses_null(new, sql_mode):
        return Reason(new.name, UNPROVEN, "it became NOT NULL, which may have changed NULLs to other values")
    if old.members and new.members and not is_strict(sql_mode) and not _are_apart({*old.members, *new.members}):
        # Values are looked for among the new members by the new collation: 'A' may become 'a'. A strict server refuses.
        return Reason(new.name, UNPROVEN, "members may be equal in some collation, and sql_mode is not strict")
    if _is_same_type(old, new):
        return None if old.is_nullable == new.is_nullable else Reason(new.name, METADATA, "it may be NULL or not")
    why = _loss(old, new, sql_mode)
    spelled = f"{old.column_type} became {new.column_type}"
    if why is None:
        return Reason(new.name, METADATA, f"{spelled}, and every value stayed the same")
    return Reason(new.name, UNPROVEN, f"{spelled}: {why}")


def _are_apart(members: set[str]) -> bool:
    """Whether all of them are different in every collation."""
    is_plain = all(member.isascii() and member.isprintable() for member in members)
    return is_plain and len({member.rstrip(" ").casefold() for member in members}) == len(members)


def _keeps_numbers(old: ColumnDefinition, sql_mode: int) -> bool:
    """Whether the server keeps every 0 and NULL of a column that becomes AUTO_INCREMENT, or was that before."""
    keeps_zero = bool(sql_mode & SqlMode.NO_AUTO_VALUE_ON_ZERO)
    return old.is_auto_increment or (keeps_zero and not old.is_nullable)


def _refuses_null(new: ColumnDefinition, sql_mode: int) -> bool:
    """Whether the server refuses the change if a row has NULL, so that no row had it."""
    return is_strict(sql_mode) and new.type is not FieldType.TIMESTAMP2


def is_strict(sql_mode: int) -> bool:
    """Whether the server refuses values that do not fit, in statements of that sql_mode."""
    return bool(sql_mode & (SqlMode.STRICT_ALL_TABLES | SqlMode.STRICT_TRANS_TABLES))


def _is_same_type(old: ColumnDefinition, new: ColumnDefinition) -> bool:
    fields = (old.type, old.meta, old.is_unsigned, old.charset, old.members)
    same = fields == (new.type, new.meta, new.is_unsigned, new.charset, new.members)
    return same and (old.type not in _SPELLED or old.column_type == new.column_type)


_SPELLED: Final = frozenset({*_FLOATS, FieldType.GEOMETRY, FieldType.STRING, FieldType.YEAR, FieldType.VECTOR})
"""Types whose words say more than their numbers: digits, kinds of geometry, addresses."""


def _loss(old: ColumnDefinition, new: ColumnDefinition, sql_mode: int) -> str | None:
    """What may have happened to values; None if every one is proven the same."""
    if old.type in _INTEGERS and new.type in _INTEGERS:
        return None if _fits_integer(old, new) else "values may not fit"
    if old.type is FieldType.NEWDECIMAL and new.type is FieldType.NEWDECIMAL:
        return None if _fits_decimal(old, new) else "values may not fit, or are spelled with another scale"
    if old.type in _FLOATS and new.type in _FLOATS:
        plain = "(" not in old.column_type + new.column_type
        widens = _FLOATS.index(old.type) <= _FLOATS.index(new.type) and (old.is_unsigned or not new.is_unsigned)
        return None if plain and widens else "values may be rounded"
    if old.type in _FRACTIONS and old.type is new.type:
        return None if old.meta <= new.meta else "fractions of a second are rounded"
    if old.type is FieldType.BIT and new.type is FieldType.BIT:
        return "a BIT(1) is a boolean" if 1 in (_bits(old), _bits(new)) else _shrunk(_bits(old), _bits(new))
    if old.members and new.members and old.type is new.type:
        return _members_loss(old, new)
    if old.type is FieldType.GEOMETRY and new.type is FieldType.GEOMETRY:
        return None if new.column_type == "geometry" else "values may be of another kind"
    if old.charset is not None and new.charset is not None and not old.members and not new.members:
        return _text_loss(old, new, sql_mode)
    return "the conversion is not proven to keep values"


def _shrunk(old: int, new: int) -> str | None:
    return None if old <= new else "values may not fit"


def _bits(column: ColumnDefinition) -> int:
    return (column.meta >> 8) * 8 + (column.meta & 0xFF)


def _fits_integer(old: ColumnDefinition, new: ColumnDefinition) -> bool:
    narrow, wide = _INTEGERS.index(old.type), _INTEGERS.index(new.type)
    if old.is_unsigned == new.is_unsigned:
        return narrow <= wide
    return old.is_unsigned and narrow < wide


def _fits_decimal(old: ColumnDefinition, new: ColumnDefinition) -> bool:
    scale, new_scale = old.meta & 0xFF, new.meta & 0xFF
    precision, new_precision = old.meta >> 8, new.meta >> 8
    as_text = precision > _PRECISION_MAX or new_precision > _PRECISION_MAX
    if as_text and (scale != new_scale or min(precision, new_precision) <= _PRECISION_MAX):
        return False
    fits = new_scale >= scale and new_precision - new_scale >= precision - scale
    return fits and (old.is_unsigned or not new.is_unsigned)


def _members_loss(old: ColumnDefinition, new: ColumnDefinition) -> str | None:
    if not _keeps_text(old.charset, new.charset):
        return "its character set is converted"
    kept = [member for member in new.members if member in set(old.members)]
    if old.type is FieldType.SET:
        return None if kept == list(old.members) else "members were taken away or put in another order"
    return None if len(kept) == len(old.members) else "members were taken away"


def _keeps_text(old: str | None, new: str | None) -> bool:
    return old == new or (old, new) in _PRESERVING


def _text_loss(old: ColumnDefinition, new: ColumnDefinition, sql_mode: int) -> str | None:
    if not _keeps_text(old.charset, new.charset):
        return "its character set is converted"
    if old.type is FieldType.STRING:
        if old.charset == BINARY:
            return "bytes are padded again"
        if sql_mode & SqlMode.PAD_CHAR_TO_FULL_LENGTH:
            return "blanks may have been added at the end"
    elif new.type is FieldType.STRING:
        return "blanks at the end are taken away"
    if old.type not in _TEXTS or new.type not in _TEXTS:
        return "the conversion is not proven to keep values"
    return _shrunk(_room(old, in_bytes=new.type in _BLOBS), _room(new, in_bytes=new.type in _BLOBS))


_TEXTS: Final = frozenset({FieldType.STRING, *_VARCHARS, *_BLOBS})


def _room(column: ColumnDefinition, *, in_bytes: bool) -> int:
    """How long its longest value may be: in characters, or in bytes."""
    if column.type in _BLOBS:
        return int((1 << 8 * column.meta) - 1)
    length = column.meta - (column.type is FieldType.VARCHAR_COMPRESSED)
    return length if in_bytes else length // BYTES_A_CHARACTER.get(column.charset or BINARY, 1)
