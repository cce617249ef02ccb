"""Changes of a table's schema, one after the other, and where each column of the last schema comes from.

A `schema` control says what became of the rows before it: columns renamed, added with a value, widened. Readers and
mirrors both follow it by `origins`, so that a row means the same whether it was copied before the change or is read
after it. Nothing here looks at a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from databus.core import Pair
from databus.schema._table import TableSchema

NEEDS_SNAPSHOT: Final = 3
"""The class of changes after which the table is read again: what became of the values is unknown."""


@dataclass(frozen=True)
class SchemaChange:
    """One `schema` control."""

    pair: Pair
    """Where the control stands in the log."""
    before: TableSchema | None
    """The definition before; None where the table was unknown."""
    after: TableSchema
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Old name to new name."""
    fill: Mapping[str, Any] = field(default_factory=dict)
    """By column, in JSON form: the value that rows from before the change hold in it now."""
    number: int = 1
    """The change's class: 1, 2 or 3."""

    @property
    def needs_snapshot(self) -> bool:
        """Whether the table is read again after it."""
        return self.number >= NEEDS_SNAPSHOT

    @classmethod
    def of_control(cls, pair: Pair, body: Mapping[str, Any], before: TableSchema | None, after: TableSchema) -> Self:
        """What a control's body says. after: the definition that it brings; one given in the body may be narrower."""
        is_exact = body.get("exact", True)  # not where the relay's filter judged rows before it by other values
        number = int(body.get("class", 1)) if is_exact else NEEDS_SNAPSHOT
        return cls(pair, before, after, dict(body.get("renamed") or {}), dict(body.get("fill") or {}), number)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "pair": list(self.pair),
            "before": None if self.before is None else self.before.to_json(),
            "after": self.after.to_json(),
            "renamed": dict(self.renamed),
            "fill": dict(self.fill),
            "class": self.number,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        scn, seq = value["pair"]
        before = None if value["before"] is None else TableSchema.from_json(value["before"])
        return cls(
            (scn, seq), before, TableSchema.from_json(value["after"]), value["renamed"], value["fill"], value["class"]
        )


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """Where a column of the last schema comes from in rows of the first."""

    column: str | None
    """The column's name in the first schema; None where it did not exist there, so that each row holds `value`."""
    types: tuple[str, ...]
    """All types that the column has had since then, in order."""
    value: Any = None
    """In the JSON form of `types[0]`."""
    is_known: bool = True
    """Whether the column's value is known."""

    def is_still(self, name: str) -> bool:
        """Whether it is the column that has always had this name."""
        return self.column == name

    def become(self, type_name: str) -> "ColumnOrigin":
        """The same with a type that it has now."""
        if self.types[-1] == type_name:
            return self
        return ColumnOrigin(self.column, (*self.types, type_name), self.value, self.is_known)


def origins(first: Mapping[str, str], changes: Sequence[SchemaChange]) -> dict[str, ColumnOrigin]:
    """Follow the columns `first` (name to type) through changes, in order.

    >>> from databus.schema import Column
    >>> old = TableSchema("main.t", (Column("id", "int32"), Column("a", "string")), ("id",))
    >>> new = TableSchema("main.t", (Column("id", "int64"), Column("b", "string"), Column("n", "int32")), ("id",))
    >>> now = origins({"id": "int32", "a": "string"}, [SchemaChange((3, 1), old, new, {"a": "b"}, {"n": 7}, 2)])
    >>> now["id"].types, now["b"].column, now["n"].value
    (('int32', 'int64'), 'a', 7)
    """
    now = {name: ColumnOrigin(name, (type_name,)) for name, type_name in first.items()}
    for change in changes:
        now = _after(now, change)
    return now


def _after(now: Mapping[str, ColumnOrigin], change: SchemaChange) -> dict[str, ColumnOrigin]:
    old_names = {new: old for old, new in change.renamed.items() if old in now}
    origins: dict[str, ColumnOrigin] = {}
    for column in change.after.columns:
        name = column.name
        old = old_names.get(name, name if name in now and name not in change.renamed else None)
        if name in change.fill:
            origins[name] = ColumnOrigin(None, (column.type,), change.fill[name])
        elif old is not None:
            origins[name] = now[old].become(column.type)
        else:
            origins[name] = ColumnOrigin(None, (column.type,), None, is_known=not change.needs_snapshot)
    return origins
