"""What changed between two definitions of a table, and what a copy must do about it."""

from dataclasses import dataclass

from databus.schema._table import Column, TableSchema
from databus.schema._types import widens


@dataclass(frozen=True, slots=True)
class SchemaDiff:
    """The difference of two definitions, by column name. `narrowed`: their old values may not fit any more."""

    added: tuple[Column, ...]
    dropped: tuple[str, ...]
    widened: tuple[str, ...]
    narrowed: tuple[str, ...]
    key_changed: bool

    @property
    def is_empty(self) -> bool:
        """Whether only words that copies do not hold (database type, charset, order) differ."""
        return not (self.added or self.dropped or self.widened or self.narrowed or self.key_changed)


def diff(old: TableSchema, new: TableSchema) -> SchemaDiff:
    """Compare two definitions of one table, column by column.

    >>> a = TableSchema("main.t", (Column("id", "int32"),), ("id",))
    >>> b = TableSchema("main.t", (Column("id", "int64"), Column("name", "string")), ("id",))
    >>> changes = diff(a, b)
    >>> changes.widened, [column.name for column in changes.added]
    (('id',), ['name'])
    """
    before = {column.name: column for column in old.columns}
    after = {column.name: column for column in new.columns}
    changed = [name for name in before if name in after and before[name].type != after[name].type]
    return SchemaDiff(
        added=tuple(column for name, column in after.items() if name not in before),
        dropped=tuple(name for name in before if name not in after),
        widened=tuple(name for name in changed if widens(before[name].type, after[name].type)),
        narrowed=tuple(name for name in changed if not widens(before[name].type, after[name].type)),
        key_changed=old.key != new.key,
    )
