"""What is read of a table, and how: its key, the server's facts about it, and the shape of the results."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from databus.schema import TableSchema
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.rows import Policies
from databus.sources.mysql.snapshot._keys import KeyColumn, KeyRange, key_columns
from databus.sources.mysql.snapshot._read_session import Facts
from databus.sources.mysql.snapshot._result_shape import ResultShape


@dataclass(frozen=True, slots=True)
class TableTask:
    """A table to read."""

    definition: TableDefinition
    table: TableSchema
    """Its schema, without excluded columns."""
    where: str | None = None
    """A condition in SQL on the rows to read."""
    policies: Policies = field(default_factory=Policies)
    locks: bool = False
    """Read it under a lock. Only for a table without a key that is written too often to be read otherwise."""

    @property
    def source(self) -> str:
        """`db.table`."""
        return self.definition.source


class ReadableTable:
    """See `databus.sources.snapshots.Readable`. facts: what the server says about the table, once it was asked."""

    def __init__(self, task: TableTask) -> None:
        self.task = task
        self.shape = ResultShape(task.definition, task.table, key_columns(task.definition), task.policies)
        self.facts: Facts | None = None

    def unasked(self) -> "ReadableTable":
        """The same table, without facts."""
        return ReadableTable(self.task)

    def learn(self, facts: Facts) -> None:
        """What the server says about the table."""
        self.facts = facts
        if not facts.index:
            self.shape = ResultShape(self.task.definition, self.task.table, (), self.task.policies)

    @property
    def key(self) -> Sequence[KeyColumn]:
        """Its key's columns."""
        return self.shape.key

    @property
    def is_whole(self) -> bool:
        """Whether its rows cannot be read in a key's order."""
        return self.facts is not None and not self.facts.index

    @property
    def index(self) -> str:
        """The index to read it by; empty if there is none, or the server was not asked yet."""
        return "" if self.facts is None else self.facts.index

    @property
    def rows_estimate(self) -> int | None:
        """The server's own, which may be far off."""
        return None if self.facts is None else self.facts.rows_estimate

    def everything(self) -> KeyRange:
        """From the table's beginning to its end."""
        return KeyRange()

    def part_of(self, value: object) -> KeyRange:
        """Read what `json_of` wrote. Raises `CorruptData`."""
        return KeyRange.from_json(self.shape.key, value)

    def json_of(self, part: KeyRange) -> object:
        """The keys between which it is."""
        return part.to_json()
