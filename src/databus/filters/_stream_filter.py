"""StreamFilter: which rows and columns of a stream a reader wants, as a value that can be compared, hashed and sent.

    StreamFilter.parse(where="total >= 100", columns="id,total", partition="3/8")

It is a list of rules, each about the tables of a pattern, and all that match a table hold together. Nothing here knows
a table's columns: `databus.filters._table_cut` fits a filter to a table.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Self

from databus.core import ConfigError, MalformedRequest, split_names, split_physical
from databus.filters._choice import matches
from databus.schema import Predicate

WHERE_BYTES_MAX: Final = 16 << 10
"""The longest condition, in UTF-8: a relay parses it for each reader."""
PARTITIONS_MAX: Final = 1024
_RULES_MAX: Final = 1000
_PARTITION: Final = re.compile(r"(\d{1,9})/(\d{1,9})")
_OPTIONS: Final = ("where", "columns")

Columns = str | Iterable[str]
"""Names of columns: a list, or one text with commas between them."""


@dataclass(frozen=True, slots=True)
class TableRule:
    """What a reader wants of the tables that match a pattern."""

    tables: str = "*"
    where: str | None = None
    columns: tuple[str, ...] | None = None
    """The columns that are sent, besides the key; None for all."""
    hide: tuple[str, ...] = ()
    """Columns that do not exist for the reader."""


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """The rows whose key is in bucket `index` among `count`; see docs/key-bytes.md.

    >>> str(StreamPartition.parse("3/8"))
    '3/8'
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `i/n`. Raises `MalformedRequest`."""
        match = _PARTITION.fullmatch(text)
        index, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not index < count <= PARTITIONS_MAX:
            raise MalformedRequest(
                f"partition: {text[:100]!r} is not i/n, with i from 0 to n - 1 and n up to {PARTITIONS_MAX}; the first "
                "of eight is 0/8"
            )
        return cls(index, count)

    def holds(self, key_hash: int) -> bool:
        """Whether a key is in it, by its hash of 31 bits."""
        return key_hash % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """What a reader gets of a stream."""

    rules: tuple[TableRule, ...] = ()
    """What the reader asks for."""
    forced: tuple[TableRule, ...] = ()
    """What the relay imposes on the reader: for `rules`, what these hide does not exist."""
    partition: StreamPartition | None = None
    seen: tuple[str, ...] | None = None
    """Patterns of the tables that are there for the reader; None for all."""

    @classmethod
    def parse(
        cls,
        where: str | None = None,
        columns: Columns | None = None,
        filters: str | Mapping[str, Any] | None = None,
        partition: str | StreamPartition | None = None,
    ) -> Self:
        """Read what a reader wrote. Raises `MalformedRequest` that names the parameter, and the place in a condition.

        where, columns: for all tables. filters: by name or pattern, where tables differ, or as JSON. What is given for
        all holds for these too.
        """
        rules: list[TableRule] = []
        if where is not None or columns is not None:
            rules.append(_rule("*", "", where, columns))
        for tables, options in _by_table(filters).items():
            name = f"filters: {tables[:200]}"
            if not isinstance(options, Mapping) or not {*options} <= {*_OPTIONS}:
                raise MalformedRequest(
                    f"{name}: expected an object of `where` and `columns`, found {str(options)[:100]}"
                )
            if any(value is not None for value in options.values()):
                rules.append(_rule(tables, f"{name}: ", options.get("where"), options.get("columns")))
        if len(rules) > _RULES_MAX:
            raise MalformedRequest(f"filters: {len(rules)} tables and patterns; at most {_RULES_MAX} are taken")
        part = StreamPartition.parse(partition) if isinstance(partition, str) else partition
        return cls(tuple(rules), (), None if part is None or part.count == 1 else part)

    @property
    def is_nothing(self) -> bool:
        """Whether everything passes as it is."""
        return self.partition is None and not self.rules and not self.conceals

    @property
    def conceals(self) -> bool:
        """Whether parts of the source are hidden from the reader. If so, answers mention its own tables only."""
        return bool(self.forced) or self.seen is not None

    def sees(self, name: str) -> bool:
        """Whether the table of a full name is there."""
        return self.seen is None or matches(name, self.seen)

    def behind(self, other: "StreamFilter") -> "StreamFilter":
        """This filter over what another lets through: that one's conditions hold too, and its hidden columns are not
        there for this one's rules.
        """
        seen = self.seen if other.seen is None else other.seen
        return replace(self, forced=(*self.forced, *other.rules, *other.forced), seen=seen)

    def within(self, physical: str) -> "StreamFilter":
        """What it says of the tables of one physical source."""

        def may_be_there(rule: TableRule) -> bool:
            owner = split_physical(rule.tables)[0]
            return not owner or fnmatchcase(physical, owner)

        return replace(
            self, rules=tuple(filter(may_be_there, self.rules)), forced=tuple(filter(may_be_there, self.forced))
        )

    def about(self, name: str) -> tuple[tuple[TableRule, ...], tuple[TableRule, ...]]:
        """The rules, and those that are forced, for the table of a full name, `physical/db.table`."""

        def match(rules: tuple[TableRule, ...]) -> tuple[TableRule, ...]:
            return tuple(rule for rule in rules if matches(name, [rule.tables]))

        return match(self.rules), match(self.forced)

    def form(self, name: str) -> dict[str, Any]:
        """What decides the rows and columns of the table of a full name, as JSON; empty where nothing does."""
        rules, forced = self.about(name)
        members: dict[str, Any] = {}
        if conditions := [rule.where for rule in (*rules, *forced) if rule.where is not None]:
            members["where"] = conditions
        if chosen := [list(rule.columns) for rule in rules if rule.columns is not None]:
            members["columns"] = chosen
        if self.partition is not None:
            members["partition"] = str(self.partition)
        return members

    def query(self) -> dict[str, str]:
        """The parameters by which a relay is asked for it; what is forced is not among them."""
        parameters: dict[str, str] = {}
        if len(self.rules) == 1 and self.rules[0].tables == "*":
            (rule,) = self.rules
            if rule.where is not None:
                parameters["where"] = rule.where
            if rule.columns is not None and not any("," in name or "`" in name for name in rule.columns):
                parameters["columns"] = ",".join(rule.columns)
        if self.rules and StreamFilter.parse(**parameters).rules != self.rules:
            parameters = {"filters": json.dumps(self._filters(), separators=(",", ":"), ensure_ascii=False)}
        if self.partition is not None:
            parameters["partition"] = str(self.partition)
        return parameters

    def _filters(self) -> dict[str, Any]:
        by_table: dict[str, dict[str, Any]] = {}
        for rule in self.rules:
            if rule.tables in by_table:  # `where` for all, and `*` in `filters`
                raise ConfigError(f"filters: {rule.tables} is given twice; write both conditions in one, with AND")
            by_table[rule.tables] = {
                **({} if rule.where is None else {"where": rule.where}),
                **({} if rule.columns is None else {"columns": list(rule.columns)}),
            }
        return by_table


def _rule(tables: str, name: str, where: object, columns: object) -> TableRule:
    if where is not None:
        _check_condition(f"{name}where", where)
    return TableRule(tables, None if where is None else str(where), _column_names(f"{name}columns", columns))


def _check_condition(name: str, where: object) -> None:
    if not isinstance(where, str):
        raise MalformedRequest(f"{name}: expected a condition, found {str(where)[:100]}")
    size = len(where.encode("utf-8", "surrogatepass"))
    if size > WHERE_BYTES_MAX:
        raise MalformedRequest(f"{name}: a condition of {size} bytes; at most {WHERE_BYTES_MAX} are taken")
    try:
        Predicate.parse(where)
    except ConfigError as error:
        raise MalformedRequest(f"{name}: {error}") from error


def _column_names(name: str, columns: object) -> tuple[str, ...] | None:
    if columns is None:
        return None
    written = split_names(columns) if isinstance(columns, str) else columns
    if not isinstance(written, Iterable) or isinstance(written, Mapping):
        raise MalformedRequest(f"{name}: expected names of columns, found {str(columns)[:100]}")
    names = tuple(written)
    if not names or not all(isinstance(column, str) and column for column in names):
        raise MalformedRequest(f"{name}: expected names of columns, found {str(columns)[:100]}")
    return tuple(dict.fromkeys(names))


def _by_table(filters: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(filters, str):
        try:
            value = json.loads(filters)
        except (ValueError, RecursionError) as error:
            raise MalformedRequest(f"filters: not JSON: {error}") from None
    else:
        value = filters
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MalformedRequest(f"filters: expected an object with a filter for each table, found {str(value)[:100]}")
    return value
