"""Conditions over Arrow rows: each comparison exact for the column's type, true, false or unknown as in SQL.

No number is cast through a float, unless the column is one. Where a column's type cannot hold a literal, the nearest
value below takes its place in a comparison that means the same: for an integer, `n < 2.5` is `n <= 2`, and `n = 2.5` is
never true. Text is compared by code point, not by the database's collation. NaN is equal to itself and above all
numbers, as in Spark.
"""

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import partial, reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import ConfigError
from databus.schema._predicate import (
    ColumnName,
    ComparisonNode,
    In,
    IsNull,
    Joined,
    Like,
    LiteralKind,
    LiteralNode,
    Node,
    Not,
    Predicate,
)

Rows: TypeAlias = Any  # a table or a batch: pyarrow has no types to check
Values: TypeAlias = Any  # an array, chunked or not
Test = Callable[[Rows], Values]
"""Makes a boolean for each row, null where it is unknown."""

_SIGNS: Final[Mapping[str, str]] = {
    "=": "equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_EXACT: Final = Context(prec=500, Emax=10_000, Emin=-10_000)
_WIDEST: Final = pa.decimal256(76, 38)
"""Holds each value of an integer and of a decimal of up to 38 digits."""


@dataclass(frozen=True, slots=True)
class BoundPredicate:
    """A condition over rows with known columns."""

    test: Test
    columns: frozenset[str]
    """The columns that the condition reads, by their names in the rows."""

    def holds(self, rows: Rows) -> Values:
        """True for each row that the condition holds for; false where it does not, or is unknown."""
        return pc.fill_null(self.test(rows), False)

    def keep(self, rows: pa.Table) -> pa.Table:
        """The rows that it holds for."""
        return rows.filter(self.holds(rows))


def bind(predicate: Predicate, schema: pa.Schema) -> BoundPredicate:
    """See `Predicate.over`."""
    binder = _Binder(schema)
    return BoundPredicate(binder.test(predicate.root), frozenset(binder.read))


def column_named(name: str, names: Sequence[str]) -> str | None:
    """The column that a name means: the one with this very name, or else the only one in other letter case.

    >>> column_named("ID", ["id", "a"]), column_named("b", ["a"])
    ('id', None)
    """
    if name in names:
        return name
    near = [column for column in names if column.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def _refused(at: int, message: str) -> ConfigError:
    return ConfigError(f"character {at + 1}: {message}")


@dataclass
class _Binder:
    schema: pa.Schema
    read: set[str] = field(default_factory=set)

    def test(self, node: Node) -> Test:  # noqa: PLR0911 - one for each kind of node
        match node:
            case Joined(word, nodes):
                join = pc.and_kleene if word == "AND" else pc.or_kleene
                tests = [self.test(part) for part in nodes]
                return lambda rows: reduce(join, (test(rows) for test in tests))
            case Not(below):
                test = self.test(below)
                return lambda rows: pc.invert(test(rows))
            case IsNull(column):
                name = self._field(column).name
                return lambda rows: pc.is_null(rows.column(name))
            case ColumnName():
                return self._boolean(node)
            case LiteralNode():
                return partial(_always, bool(node.value))
            case Like():
                return self._like(node)
            case In(column, values):
                return self._in(column, values)
            case ComparisonNode(left, sign, right):
                return self._comparison(left, sign, right, node.at)

    def _field(self, column: Any) -> pa.Field:
        name = column_named(column.name, self.schema.names)
        if name is None:
            raise _refused(column.at, f"there is no column {column.name!r}")
        self.read.add(name)
        return self.schema.field(name)

    def _boolean(self, column: ColumnName) -> Test:
        field = self._field(column)
        if not pa.types.is_boolean(field.type):
            raise _refused(column.at, f"column {column.name!r} is {field.type}, which is no condition by itself")
        return lambda rows: rows.column(field.name)

    def _like(self, node: Like) -> Test:
        field = self._field(node.column)
        if not pa.types.is_string(field.type):
            raise _refused(node.at, f"LIKE takes text, and column {node.column.name!r} is {field.type}")
        pattern = _regex_of(node)
        return lambda rows: pc.match_substring_regex(rows.column(field.name), pattern)

    def _in(self, column: ColumnName, values: Sequence[LiteralNode]) -> Test:
        field = self._field(column)
        rounded = [_Floor.of(literal, field, column.name) for literal in values]
        held = [floor.value for floor in rounded if floor.is_exact]
        if not held:
            return partial(_never, field.name)
        wanted = pa.concat_arrays([pa.array([floor.as_py()], floor.type) for floor in held])
        kind = wanted.type

        def test(rows: Rows) -> Values:
            values = _widened(rows.column(field.name), kind)
            if pa.types.is_floating(kind):
                values = pc.add(values, 0.0)  # looked up by its bits, and -0.0 has others than 0.0
            return pc.if_else(pc.is_null(values), None, pc.is_in(values, value_set=wanted))

        return test

    def _comparison(self, left: Any, sign: str, right: Any, at: int) -> Test:
        one = self._field(left)
        if isinstance(right, LiteralNode):
            if pa.types.is_boolean(one.type) and sign not in ("=", "<>"):
                raise _refused(at, f"column {left.name!r} is TRUE or FALSE, of which none is less")
            return _against(one, sign, _Floor.of(right, one, left.name))
        return _columns(one, sign, self._field(right), at)


def _always(value: bool, rows: Rows) -> Values:
    return pa.repeat(pa.scalar(value), rows.num_rows)


def _never(name: str, rows: Rows) -> Values:
    """False, and unknown where there is no value."""
    return _constant(rows.column(name), is_true=False)


def _constant(values: Values, *, is_true: bool) -> Values:
    return pc.if_else(pc.is_null(values), None, is_true)


def _widened(values: Values, kind: pa.DataType) -> Values:
    return values if values.type == kind else values.cast(kind)


# Literals


@dataclass(frozen=True, slots=True)
class _Floor:
    """A literal among the values of a type: the greatest that is not above it."""

    value: Any
    """None where all values are above it, or, with `is_above_all`, where it is above all."""
    is_exact: bool
    is_above_all: bool = False

    @classmethod
    def of(cls, literal: LiteralNode, column: pa.Field, written: str) -> "_Floor":
        """Raises `ConfigError` for a literal that is not of the column's kind."""
        kind = column.type
        if literal.kind is LiteralKind.NUMBER and _is_number(kind):
            assert isinstance(literal.value, Decimal)  # noqa: S101 - the parser's promise
            is_float = pa.types.is_floating(kind)
            return _nearest_float(literal.value, literal.at) if is_float else _floor_of_number(literal.value, kind)
        value = _plain_value(literal, kind)
        if value is None:
            raise _refused(
                literal.at,
                f"column {written!r} is {_type_name(kind)}, and is compared with {literal.kind}{_hint(kind)}",
            )
        return cls(pa.scalar(value, kind), is_exact=True)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind))


def _type_name(kind: pa.DataType) -> str:
    return "text" if pa.types.is_string(kind) else str(kind)


def _hint(kind: pa.DataType) -> str:
    if pa.types.is_binary(kind):
        return "; write X'...' with hexadecimal digits"
    if pa.types.is_timestamp(kind):
        return " that is no time; write 2026-01-31 23:59:59.999999"
    return " that is no date; write 2026-01-31" if pa.types.is_date(kind) else ""


def _plain_value(literal: LiteralNode, kind: pa.DataType) -> Any:
    """The value of a literal other than a number, for a column of this type; None if it is not one."""
    value = literal.value
    of = literal.kind
    if pa.types.is_boolean(kind):
        return value if of is LiteralKind.BOOLEAN else None
    if pa.types.is_binary(kind):
        return value if of is LiteralKind.BINARY else None
    if pa.types.is_string(kind):
        return value if of is LiteralKind.TEXT else None
    if pa.types.is_date(kind) and of in (LiteralKind.TEXT, LiteralKind.DATE):
        return _date_of(str(value))
    if pa.types.is_timestamp(kind) and of in (LiteralKind.TEXT, LiteralKind.DATE, LiteralKind.TIMESTAMP):
        return _time_of(str(value), is_zoned=kind.tz is not None)
    return None


_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?")


def _date_of(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def _time_of(text: str, *, is_zoned: bool) -> dt.datetime | None:
    """A time; UTC where a zone is needed and none is written, nothing where one is written and none can be."""
    try:
        moment = dt.datetime.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        return None
    if moment is None or (moment.tzinfo is not None and not is_zoned):
        return None
    if is_zoned:
        return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
    return moment


def _floor_of_number(value: Decimal, kind: pa.DataType) -> _Floor:
    if pa.types.is_integer(kind):
        scale, bits = 0, kind.bit_width
        low, high = (
            (-(1 << bits - 1), (1 << bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, (1 << bits) - 1)
        )
    else:
        scale = kind.scale
        high = 10**kind.precision - 1
        low = -high
    scaled = _EXACT.scaleb(value, scale)
    number = math.floor(scaled)
    if number < low:
        return _Floor(None, is_exact=False)
    if number > high:
        return _Floor(None, is_exact=False, is_above_all=True)
    held = number if pa.types.is_integer(kind) else _EXACT.scaleb(Decimal(number), -scale)
    return _Floor(pa.scalar(held, kind), is_exact=number == scaled)


def _nearest_float(value: Decimal, at: int) -> _Floor:
    """What a number stands for beside floats, in a database as here: the nearest one of 64 bits."""
    near = float(value) + 0.0  # no -0.0
    if math.isinf(near):
        raise _refused(at, "this number is beyond those of a float")
    return _Floor(pa.scalar(near, pa.float64()), is_exact=True)


def _against(column: pa.Field, sign: str, floor: _Floor) -> Test:
    """A comparison with a literal, which may lie between two values of the column's type."""
    name = column.name
    if not floor.is_exact and sign in ("=", "<>"):
        return lambda rows: _constant(rows.column(name), is_true=sign == "<>")
    if floor.value is None:
        is_true = (sign in ("<", "<=")) is floor.is_above_all
        return lambda rows: _constant(rows.column(name), is_true=is_true)
    if not floor.is_exact:
        sign = "<=" if sign in ("<", "<=") else ">"
    compare = getattr(pc, _SIGNS[sign])
    is_float = pa.types.is_floating(column.type)

    def test(rows: Rows) -> Values:
        values = rows.column(name)
        if not is_float:
            return compare(values, floor.value)
        values = _widened(values, pa.float64())
        result = compare(values, floor.value)
        return pc.or_(result, pc.is_nan(values)) if sign in (">", ">=") else result

    return test


# Columns with columns


def _columns(one: pa.Field, sign: str, other: pa.Field, at: int) -> Test:
    kind = _common(one.type, other.type)
    if kind is None or (pa.types.is_boolean(kind) and sign not in ("=", "<>")):
        raise _refused(
            at,
            f"{one.name!r} is {_type_name(one.type)} and {other.name!r} is {_type_name(other.type)}, "
            "which are not compared",
        )
    compare = _compare_floats if pa.types.is_floating(kind) else getattr(pc, _SIGNS[sign])
    signs = (sign,) if pa.types.is_floating(kind) else ()

    def test(rows: Rows) -> Values:
        left, right = (_widened(rows.column(field.name), kind) for field in (one, other))
        return compare(left, right, *signs)

    return test


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type that holds every value of both types exactly; None where no type does, or they are of two kinds."""
    if one == other:
        return one
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return pa.float64()
    if pa.types.is_floating(one) or pa.types.is_floating(other) or not (_is_number(one) and _is_number(other)):
        return None
    if pa.uint64() not in (one, other) and pa.types.is_integer(one) and pa.types.is_integer(other):
        return pa.int64()
    return _WIDEST


def _compare_floats(left: Values, right: Values, sign: str) -> Values:
    """With NaN above all numbers and equal to itself."""
    if sign in ("<>", "<", ">"):
        return pc.invert(_compare_floats(left, right, {"<>": "=", "<": ">=", ">": "<="}[sign]))
    if sign == "<=":
        left, right = right, left
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if sign == "=":
        return pc.or_(pc.equal(left, right), pc.and_(left_nan, right_nan))
    return pc.or_(pc.greater_equal(left, right), left_nan)


# LIKE


def _regex_of(node: Like) -> str:
    r"""The pattern in RE2's language; `_` is one code point.

    >>> _regex_of(Like(ColumnName("a", 0), "50\\%_", "\\", 0))
    '(?s)\\A50%.\\z'
    """
    parts: list[str] = []
    at = 0
    while at < len(node.pattern):
        char = node.pattern[at]
        if char == node.escape:
            at += 1
            if at == len(node.pattern):
                raise _refused(node.at, f"the pattern ends with {node.escape!r}, which takes a character after it")
            parts.append(_quoted(node.pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(char) or _quoted(char))
        at += 1
    return rf"(?s)\A{''.join(parts)}\z"


def _quoted(char: str) -> str:
    return f"\\{char}" if char in r"\.+*?()|[]{}^$" else char
