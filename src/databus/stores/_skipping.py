"""Which row groups can be left unread: those of which the footer proves that no row meets a condition. Pure.

A bound may be below, or above, all values there are: text is cut. NaN stands in none, so of floats nothing is proved.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from databus.schema import (
    ColumnName,
    ComparisonNode,
    In,
    IsNull,
    Joined,
    LiteralNode,
    Node,
    Predicate,
    column_named,
)

_TURNED: Final[Mapping[str, str]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What a footer says of a column in a row group. least, greatest: None where it does not say."""

    least: Any
    greatest: Any
    nulls: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class RowsWanted:
    """What of a table's rows is wanted: those that meet all conditions, and some columns."""

    schema: pa.Schema
    """Of the rows, as the conditions see them."""
    conditions: tuple[Predicate, ...] = ()
    columns: frozenset[str] | None = None
    """In small letters; None for all."""

    def may_hold(self, bounds: Mapping[str, ColumnBounds]) -> bool:
        """Whether a row that these bounds allow may be among them."""
        return all(may_hold(condition, self.schema, bounds) for condition in self.conditions)

    @property
    def tested(self) -> frozenset[str]:
        """The columns whose bounds matter."""
        names = (column_named(name, self.schema.names) for where in self.conditions for name in where.columns)
        return frozenset(name for name in names if name is not None)


def may_hold(predicate: Predicate, schema: pa.Schema, bounds: Mapping[str, ColumnBounds]) -> bool:
    """Whether a row that these bounds allow may meet a condition. schema: of the rows that the condition is over.
    bounds: by name; of columns that are not there nothing is known.
    """
    return _Group(predicate, schema, bounds).may_hold(predicate.root)


@dataclass(frozen=True, slots=True)
class _Group:
    predicate: Predicate
    schema: pa.Schema
    bounds: Mapping[str, ColumnBounds]

    def may_hold(self, node: Node) -> bool:
        match node:
            case Joined(word, nodes):
                return (all if word == "AND" else any)(map(self.may_hold, nodes))
            case ComparisonNode(ColumnName() as column, sign, LiteralNode() as literal):
                return self._may_compare(column, sign, literal)
            case ComparisonNode(LiteralNode() as literal, sign, ColumnName() as column):
                return self._may_compare(column, _TURNED[sign], literal)
            case In(column, values):
                return any(self._may_compare(column, "=", value) for value in values)
            case IsNull(column):
                known = self._known(column)
                return known is None or known[1].nulls != 0
        return True

    def _known(self, column: ColumnName) -> tuple[pa.Field, ColumnBounds] | None:
        name = column_named(column.name, self.schema.names)
        return None if name is None or name not in self.bounds else (self.schema.field(name), self.bounds[name])

    def _may_compare(self, column: ColumnName, sign: str, literal: LiteralNode) -> bool:
        known = self._known(column)
        if known is None:
            return True
        field, bound = known
        if bound.nulls == bound.rows:
            return False  # a comparison with NULL is never true
        if bound.least is None or bound.greatest is None or sign == "<>" or not _is_ordered(field.type):
            return True
        if sign == "=":
            return self._may_compare(column, "<=", literal) and self._may_compare(column, ">=", literal)
        return self._holds_for(field, bound.least if sign in ("<", "<=") else bound.greatest, column, sign, literal)

    def _holds_for(self, field: pa.Field, value: Any, column: ColumnName, sign: str, literal: LiteralNode) -> bool:
        try:
            row = pa.table({field.name: pa.array([value], field.type)})
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return True  # the column had another type when the file was written
        one = replace(self.predicate, root=ComparisonNode(column, sign, literal, literal.at))
        return bool(one.over(row.schema).holds(row)[0].as_py())


def _is_ordered(kind: pa.DataType) -> bool:
    """Whether values of a type are ordered alike in a footer and in a condition."""
    types = pa.types
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        types.is_integer,
        types.is_decimal,
        types.is_string,
        types.is_date,
        types.is_timestamp,
    )
    return any(test(kind) for test in tests)
