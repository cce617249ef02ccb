"""Literals: the value of a default in a column of a type, exactly as the server stores it, if databus can say.

Used twice: for the value that existing rows get with a new column, and to spell a default in one way, wherever it is
read (in a statement, in either server's catalogue).
"""

import datetime as dt
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

from databus.sources.mysql._charsets import BYTES_A_CHARACTER, is_text
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql._server_text import decoded, encoded
from databus.sources.mysql.tables._column_clauses import bytes_of
from databus.sources.mysql.tables._syntax import SqlLiteral

ADDRESS_TYPES: Final = ("uuid", "inet4", "inet6")


class ZeroDate:
    """A date with a part that is zero, which no calendar has. `text` is as MySQL spells it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def is_zero(self) -> bool:
        """Whether all of it is zero: only then the text is the whole value; it has no fraction of a second."""
        return not set(self.text) - set("0-: ")


class UnknownLiteral(Exception):
    """A literal whose stored value databus does not compute; the message says why."""


_EXACT: Final = Context(prec=200)
_BITS: Final = {FieldType.TINY: 8, FieldType.SHORT: 16, FieldType.INT24: 24, FieldType.LONG: 32, FieldType.LONGLONG: 64}
_BYTES: Final = frozenset({FieldType.VARCHAR, FieldType.VARCHAR_COMPRESSED, FieldType.BLOB, FieldType.BLOB_COMPRESSED})
_NUMBERS: Final = (FieldType.NEWDECIMAL, FieldType.FLOAT, FieldType.DOUBLE)
_COMPRESSED: Final = (FieldType.VARCHAR_COMPRESSED, FieldType.BLOB_COMPRESSED)
_DATE: Final = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_CLOCK: Final = r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?"
_DATE_TEXT: Final = re.compile(_DATE)
_DATETIME_TEXT: Final = re.compile(rf"{_DATE}(?:[ T]{_CLOCK})?")
_TIME_TEXT: Final = re.compile(r"(-?)(\d{1,3}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?")
_HOURS_MAX: Final = 838
_DATE_CHARACTERS: Final = len("2020-01-31")


def value_of(column: ColumnDefinition, literal: SqlLiteral) -> Any:
    """The value that `literal` has in `column`, as a Python value of the bus's type: `ZeroDate` for a zero date.

    Raises `UnknownLiteral`.
    """
    if literal.kind == "null":
        return None
    if literal.kind == "expression":
        raise UnknownLiteral(f"the default of {column.name} is an expression")
    kind = column.type
    if kind in _BITS:
        return _integer(column, literal)
    if kind is FieldType.NEWDECIMAL:
        scale = column.meta & 0xFF
        return _number(column, literal).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    if kind in (FieldType.FLOAT, FieldType.DOUBLE):
        return _float(column, literal)
    if kind is FieldType.BIT:
        return _bit(column, literal)
    if kind in (FieldType.ENUM, FieldType.SET):
        return _members(column, literal)
    if kind in _BYTES or (kind is FieldType.STRING and column.column_type not in ADDRESS_TYPES):
        return _text(column, literal)
    return _time(column, literal)


def filled_value(column: ColumnDefinition, literal: SqlLiteral) -> Any:
    """As `value_of`, for the value that existing rows get with a new column: plain literals only.

    Servers store other literals in ways of their own, and not all alike: they round 2.5e0 to an even number, take
    the sign from a zero, read x'31' as a text or as a number, and cut what is too long. Raises `UnknownLiteral`.
    """
    value, text = value_of(column, literal), literal.text.strip(" ")
    if not _is_plain(column, literal, text) or _is_negative_zero(literal, value, text) or _is_cut(column, value):
        raise UnknownLiteral(f"the default {literal.text[:40]!r} of {column.name} is not spelled plainly")
    return value


def _is_plain(column: ColumnDefinition, literal: SqlLiteral, text: str) -> bool:
    kind = column.type
    if kind is FieldType.BIT:
        return literal.kind != "number" or text.isdecimal()
    if kind in _BITS or kind in _NUMBERS:
        is_number = re.fullmatch(r"-?\d+(\.\d+)?", text) is not None or kind in (FieldType.FLOAT, FieldType.DOUBLE)
        return is_number and literal.kind in ("number", "string")
    if kind is FieldType.YEAR:  # four digits are a year from 1901 on, or 0000
        return re.fullmatch(r"\d{1,2}|0000|19(?!00)\d\d|2\d{3}", text) is not None
    return kind not in (FieldType.DATE, FieldType.NEWDATE) or len(text) <= _DATE_CHARACTERS  # a time may round it up


def _is_negative_zero(literal: SqlLiteral, value: Any, text: str) -> bool:
    is_a_number = isinstance(value, Decimal | float) or literal.kind == "number"
    return is_a_number and text.startswith("-") and (not text.strip("-0.") or not value)


def _is_cut(column: ColumnDefinition, value: Any) -> bool:
    """Whether a text has more characters, blanks at its end, than a column of variable length holds."""
    if column.type is not FieldType.VARCHAR or not isinstance(value, str):
        return False
    return len(value) > column.meta // BYTES_A_CHARACTER[column.charset or BINARY]


def implicit_value(column: ColumnDefinition) -> Any:
    """The value of a NOT NULL column without default in rows that were there before it. Raises `UnknownLiteral`."""
    kind = column.type
    if kind is FieldType.ENUM:
        return column.members[0]
    if kind in (FieldType.DATE, FieldType.NEWDATE):
        return ZeroDate("0000-00-00")
    if kind in (FieldType.DATETIME2, FieldType.TIMESTAMP2):
        return ZeroDate("0000-00-00 00:00:00")
    if kind is FieldType.TIME2 or kind is FieldType.YEAR:
        return 0
    if kind in _BITS or kind in (FieldType.NEWDECIMAL, FieldType.FLOAT, FieldType.DOUBLE, FieldType.BIT):
        return value_of(column, SqlLiteral("number", "0"))
    if (
        kind is FieldType.SET
        or kind in _BYTES
        or (kind is FieldType.STRING and column.column_type not in ADDRESS_TYPES)
    ):
        return "" if kind is FieldType.SET else _text(column, SqlLiteral("string", ""))
    raise UnknownLiteral(f"{column.name} has no default, and what a {column.column_type} then holds is not known")


def spelled(column: ColumnDefinition, literal: SqlLiteral | None) -> str | None:
    """A default in the one form that definitions use; None for NULL, for no default, and if that form cannot say it."""
    if literal is None:
        return None
    try:
        value = value_of(column, literal)
    except UnknownLiteral:
        return None
    if value is None or (column.type in _COMPRESSED and not value):  # the catalogue shows '' there where nothing is
        return None
    return _sql(column, value)


def shown_value(column: ColumnDefinition, value: Any) -> str | None:
    """A value as the server shows it, exactly: for columns that come as text. A BIT is a number."""
    if value is None:
        return None
    digits = column.meta
    if isinstance(value, dt.datetime):
        return value.isoformat(" ", "microseconds")[: 19 + (digits + 1 if digits else 0)]
    if column.type is FieldType.TIME2:
        text, _, _ = _clock(value).partition(".")
        return f"{text}.{abs(value) % 1_000_000:06d}"[: len(text) + digits + 1] if digits else text
    if column.type is FieldType.YEAR:
        return f"{value:04d}"
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(int(value)) if isinstance(value, bool | int) else str(value)


def _sql(column: ColumnDefinition, value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int) and column.type is FieldType.TIME2:
        return _quoted(_clock(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, ZeroDate):
        return _quoted(value.text)
    return _quoted(str(value))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _clock(microseconds: int) -> str:
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}" + (
        f".{fraction:06d}" if fraction else ""
    )
    return f"-{text}" if microseconds < 0 else text


def _number(column: ColumnDefinition, literal: SqlLiteral) -> Decimal:
    if literal.kind in ("hex", "bits"):
        return Decimal(int.from_bytes(bytes_of(literal)))
    try:
        value = Decimal(literal.text.strip(" "))
    except InvalidOperation as error:
        raise UnknownLiteral(f"the default {literal.text[:40]!r} of {column.name} is not a number") from error
    if not value.is_finite() or value.adjusted() > 100 or len(value.as_tuple().digits) > 100:
        raise UnknownLiteral(f"the default {literal.text[:40]!r} of {column.name} is out of range")
    return value


def _integer(column: ColumnDefinition, literal: SqlLiteral) -> int:
    value = int(_number(column, literal).to_integral_value(ROUND_HALF_UP))
    bits = _BITS[column.type]
    low, high = (0, (1 << bits) - 1) if column.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not low <= value <= high:
        raise UnknownLiteral(f"the default {value} of {column.name} is out of range")
    return value


def _float(column: ColumnDefinition, literal: SqlLiteral) -> float:
    if "(" in column.column_type:
        raise UnknownLiteral(f"the default of {column.name} is rounded to its digits")
    value = float(_number(column, literal))
    if column.type is FieldType.DOUBLE:
        return value
    narrowed: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return narrowed


def _bit(column: ColumnDefinition, literal: SqlLiteral) -> int | bool:
    is_text = literal.kind == "string"
    value = int.from_bytes(encoded(literal.text, BINARY)) if is_text else int(_number(column, literal))
    bits = (column.meta >> 8) * 8 + (column.meta & 0xFF)
    if not 0 <= value < 1 << bits:
        raise UnknownLiteral(f"the default {value} of {column.name} is out of range")
    return bool(value) if bits == 1 else value


def _characters(column: ColumnDefinition, literal: SqlLiteral) -> str:
    if literal.kind in ("string", "number"):
        if literal.kind == "number" and not re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", literal.text):
            raise UnknownLiteral(f"the default {literal.text[:40]} of {column.name} is a number, spelled by the server")
        return literal.text
    text = decoded(bytes_of(literal), column.charset or BINARY)
    if not is_text(text):
        raise UnknownLiteral(f"the default of {column.name} is given as bytes that are no {column.charset}")
    return text


def _members(column: ColumnDefinition, literal: SqlLiteral) -> str:
    if literal.kind == "number":
        raise UnknownLiteral(f"the default of {column.name} is a number of members")
    folded = {member.casefold(): member for member in reversed(column.members)}
    exact = {member: member for member in column.members}
    wanted = _characters(column, literal).rstrip(" ")
    parts = [wanted] if column.type is FieldType.ENUM else [part for part in wanted.split(",") if part]
    members = [exact.get(part) or folded.get(part.casefold()) for part in parts]
    if (column.type is FieldType.ENUM and wanted not in exact and not members[0]) or None in members:
        raise UnknownLiteral(f"the default {wanted[:40]!r} of {column.name} is not among its members")
    if column.type is FieldType.ENUM:
        return members[0] or ""
    return ",".join(member for member in column.members if member in members)


def _text(column: ColumnDefinition, literal: SqlLiteral) -> str | bytes:
    if column.charset == BINARY:
        raw = bytes_of(literal) if literal.kind in ("hex", "bits") else encoded(_characters(column, literal), BINARY)
        if column.type is not FieldType.STRING:
            return raw
        if len(raw) > column.meta:
            raise UnknownLiteral(f"the default of {column.name} is longer than it")
        return raw.ljust(column.meta, b"\0")
    text = _characters(column, literal)
    return text.rstrip(" ") if column.type is FieldType.STRING else text


def _time(column: ColumnDefinition, literal: SqlLiteral) -> Any:
    kind, text = column.type, literal.text.strip(" ")
    if kind is FieldType.YEAR:
        return _year(column, literal)
    is_zero = literal.kind == "number" and text == "0"
    if kind in (FieldType.DATE, FieldType.NEWDATE) and (is_zero or (date_match := _DATE_TEXT.fullmatch(text[:10]))):
        if is_zero or date_match is None:
            return ZeroDate("0000-00-00")
        if literal.kind == "string" and _DATETIME_TEXT.fullmatch(text):
            return _date(*(int(part) for part in date_match.groups()))
    if kind in (FieldType.DATETIME2, FieldType.TIMESTAMP2):
        if is_zero:
            return ZeroDate("0000-00-00 00:00:00")
        matched = _DATETIME_TEXT.fullmatch(text) if literal.kind == "string" else None
        if matched is not None:
            return _datetime(column, matched)
    if kind is FieldType.TIME2:
        if is_zero:
            return 0
        clock = _TIME_TEXT.fullmatch(text) if literal.kind == "string" else None
        if clock is not None:
            return _duration(column, clock)
    raise UnknownLiteral(f"the default {literal.text[:40]!r} of {column.name} is not spelled plainly")


def _year(column: ColumnDefinition, literal: SqlLiteral) -> int:
    text = literal.text.strip(" ")
    if column.column_type == "year(2)" or not re.fullmatch(r"\d{1,2}|\d{4}", text):
        raise UnknownLiteral(f"the default {text[:40]!r} of {column.name} is no year")
    if len(text) == 4 or (int(text) == 0 and literal.kind == "number"):
        return int(text)
    return int(text) + (2000 if int(text) < 70 else 1900)


def _date(year: int, month: int, day: int) -> dt.date | ZeroDate:
    try:
        return dt.date(year, month, day)
    except ValueError:
        return ZeroDate(f"{year:04d}-{month:02d}-{day:02d}")


def _datetime(column: ColumnDefinition, matched: re.Match[str]) -> Any:
    year, month, day, hour, minute, second, fraction = matched.groups()
    microsecond = int((fraction or "").ljust(6, "0") or 0)
    if microsecond % 10 ** (6 - column.meta):
        raise UnknownLiteral(f"the default of {column.name} has more digits than it, and is rounded")
    date = _date(int(year), int(month), int(day))
    clock = (int(hour or 0), int(minute or 0), int(second or 0))
    if isinstance(date, ZeroDate):
        return ZeroDate(f"{date.text} {clock[0]:02d}:{clock[1]:02d}:{clock[2]:02d}")
    if column.type is FieldType.TIMESTAMP2:
        raise UnknownLiteral(f"the default of {column.name} is a time in the session's time zone")
    try:
        return dt.datetime.combine(date, dt.time(*clock, microsecond))
    except ValueError as error:
        raise UnknownLiteral(f"the default {matched[0]!r} of {column.name} is no time") from error


def _duration(column: ColumnDefinition, matched: re.Match[str]) -> int:
    sign, hours, minutes, seconds, fraction = matched.groups()
    microseconds = int((fraction or "").ljust(6, "0") or 0)
    if microseconds % 10 ** (6 - column.meta):
        raise UnknownLiteral(f"the default of {column.name} has more digits than it, and is rounded")
    if int(hours) > _HOURS_MAX or int(minutes) > 59 or int(seconds) > 59:
        raise UnknownLiteral(f"the default {matched[0]!r} of {column.name} is no time")
    total = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + microseconds
    return -total if sign else total
