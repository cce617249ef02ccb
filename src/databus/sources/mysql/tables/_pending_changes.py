"""What statements change in a history: what one does until all of it is understood, and what a store must keep."""

import base64
import json
import zlib
from dataclasses import dataclass, field, replace

from databus.sources.mysql.tables._apply import Outcome
from databus.sources.mysql.tables._table_state import TableState
from databus.sources.mysql.tables._unknown_tables import Note, TableName


@dataclass(slots=True)
class HistoryChanges:
    """What a store must keep."""

    tables: dict[TableName, bytes | None] = field(default_factory=dict)
    """Tables with their text; None for a table that is gone."""
    databases: dict[str, str | None] = field(default_factory=dict)
    """Databases with their default character sets; None for one that is gone."""
    others: dict[TableName, bool] = field(default_factory=dict)
    """Names of views and sequences, and whether they are there."""
    notes: dict[Note, bool] = field(default_factory=dict)
    """What `Presence` notes of tables that are not known."""

    def __bool__(self) -> bool:
        return bool(self.tables or self.databases or self.others or self.notes)


@dataclass(slots=True)
class Work:
    """What a statement does, until all of it is understood."""

    tables: dict[TableName, TableState | None] = field(default_factory=dict)
    origin: dict[TableName, TableName | None] = field(default_factory=dict)
    """Where the table of a name comes from: the name that it had before; None for a table that the statement made."""
    outcomes: dict[TableName, Outcome] = field(default_factory=dict)
    filled: set[TableName] = field(default_factory=set)
    """Tables that got rows that no log entry shows."""
    truncated: set[TableName] = field(default_factory=set)
    databases: dict[str, str | None] = field(default_factory=dict)
    others: dict[TableName, bool] = field(default_factory=dict)
    notes: dict[Note, bool] = field(default_factory=dict)

    def move(self, old: TableName, new: TableName, state: TableState) -> None:
        """Give a table another name."""
        origin = self.origin.get(old, old)
        self.tables[new], self.origin[new] = replace(state, database=new[0], name=new[1]), origin
        self.tables[old], self.origin[old] = None, None
        if origin is None and old in self.filled:
            self.filled.add(new)


def text_of(state: TableState) -> bytes:
    """A table as one line of text, compressed: thousands of tables stay in memory, captured or not."""
    raw = json.dumps(state.to_json(), separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(raw, 1))


def is_same(left: TableState | None, right: TableState | None) -> bool:
    """Whether two tables are the same to the store, which keeps more than a comparison of columns looks at."""
    return left == right and (left is None or right is None or left.to_json() == right.to_json())


def state_of(name: TableName, text: bytes) -> TableState:
    return TableState.from_json(*name, json.loads(zlib.decompress(base64.b64decode(text))))
