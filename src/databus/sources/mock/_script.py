"""Exact transactions, written down.

A script is a list of transactions, each `{"changes": [...]}` with the changes in their order:

    {"table": "main.t", "insert": {"id": 1, "name": "a"}}
    {"table": "main.t", "update": {"id": 1, "name": "b"}, "before": {"id": 1, "name": "a"}}
    {"table": "main.t", "delete": {"id": 1, "name": "b"}}
    {"control": {"kind": "truncate", "source": "main.t"}}
    {"schema": {"source": "main.t", "columns": [{"name": "id", "type": "int64"}], "key": ["id"]}, "class": 1}

Values are in the JSON form of `databus.formats`. A table is known from its first `schema`, which, alone in the list
before any row of it, makes no control; a later one changes it and is a `schema` control with the other keys beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from databus.core import BUS_COLUMNS, ChangeType, ConfigError, ControlKind
from databus.formats import from_json_value
from databus.schema import TableSchema, frame_schema
from databus.wire import Commit, Control, Group, Rows


@dataclass
class _ScriptPiece:
    """A part of a transaction that makes a group of its own: a control, then rows."""

    control: tuple[TableSchema, ControlKind, int, Mapping[str, Any]] | None = None
    rows: dict[tuple[str, int], tuple[TableSchema, list[dict[str, Any]]]] = field(default_factory=dict)
    last_seq: int = 0


class Script:
    """A parsed script: `start` at a transaction, then take groups. Errors name transaction and change."""

    def __init__(self, lines: Sequence[Mapping[str, Any]], selects: Callable[[str], bool]) -> None:
        self._current: dict[str, TableSchema] = {}
        self._first: dict[str, TableSchema] = {}
        self._selects = selects
        self._transactions = [self._parse(number, line) for number, line in enumerate(lines, 1)]
        self._next = (1, 0)

    def __len__(self) -> int:
        return len(self._transactions)

    @property
    def tables(self) -> list[TableSchema]:
        """The tables as they are at first, by name."""
        return [self._first[name] for name in sorted(self._first)]

    def start(self, ordinal: int) -> None:
        """Continue with this transaction."""
        self._next = (ordinal, 0)

    def _parse(self, number: int, line: Mapping[str, Any]) -> list[_ScriptPiece]:
        pieces = [_ScriptPiece()]
        seq = 0
        for at, change in enumerate(line.get("changes", ())):
            where = f"script: transaction {number}, change {at + 1}"
            if "schema" in change:
                table = TableSchema.from_json(change["schema"])
                previous = self._current.get(table.source)
                self._current[table.source] = table
                if previous is None:
                    self._first[table.source] = table
                    continue
                body = {
                    "kind": ControlKind.SCHEMA,
                    "source": table.source,
                    "ddl": change.get("ddl"),
                    "class": change.get("class", 1),
                    "table": table.to_json(),
                    "previous": f"{previous.fingerprint:016x}",
                    "renamed": change.get("renamed", {}),
                    "fill": change.get("fill", {}),
                }
                seq = self._add_control(pieces, table, ControlKind.SCHEMA, body, seq)
            elif "control" in change:
                body = dict(change["control"])
                table = self._table(body.get("source", ""), where)
                seq = self._add_control(pieces, table, ControlKind(body["kind"]), body, seq)
            else:
                seq = self._add_rows(pieces, change, where, seq)
        return pieces

    def _table(self, name: str, where: str) -> TableSchema:
        if name not in self._current:
            raise ConfigError(f"{where}: table {name!r} has no schema yet; put a `schema` for it first")
        return self._current[name]

    def _add_control(
        self, pieces: list[_ScriptPiece], table: TableSchema, kind: ControlKind, body: Mapping[str, Any], seq: int
    ) -> int:
        if not self._selects(table.source):
            return seq
        if pieces[-1].rows or pieces[-1].control:
            pieces.append(_ScriptPiece())
        pieces[-1].control = (table, kind, seq + 1, body)
        pieces[-1].last_seq = seq + 1
        return seq + 1

    def _add_rows(self, pieces: list[_ScriptPiece], change: Mapping[str, Any], where: str, seq: int) -> int:
        table = self._table(change.get("table", ""), where)
        if "insert" in change:
            images = [(ChangeType.INSERT, change["insert"])]
        elif "update" in change:
            before = change.get("before", change["update"])
            images = [(ChangeType.UPDATE_PREIMAGE, before), (ChangeType.UPDATE_POSTIMAGE, change["update"])]
        elif "delete" in change:
            images = [(ChangeType.DELETE, change["delete"])]
        else:
            raise ConfigError(f"{where}: expected insert, update, delete, schema or control, got {sorted(change)}")
        if not self._selects(table.source):
            return seq
        _, rows = pieces[-1].rows.setdefault((table.source, table.fingerprint), (table, []))
        for kind, image in images:
            seq += 1
            unknown = sorted(set(image) - set(table.names))
            if unknown:
                raise ConfigError(f"{where}: {table.source} has no column {unknown[0]!r}")
            values = {c.name: from_json_value(image.get(c.name), c.type) for c in table.columns}
            rows.append({**values, "_change_type": int(kind), "_seq": seq})
        pieces[-1].last_seq = seq
        return seq

    def group(
        self,
        count: int,
        scn: Callable[[int], int],
        txid: Callable[[int], str],
        position: Callable[[int], dict[str, Any]],
        commit_us: Callable[[int], int],
    ) -> Group:
        """Up to `count` whole transactions as one group, or one piece of a transaction that has several."""
        first, piece = self._next
        pieces = self._transactions[first - 1]
        if len(pieces) > 1:
            last, taken, is_last = first, [(first, pieces[piece])], piece == len(pieces) - 1
            self._next = (first + 1, 0) if is_last else (first, piece + 1)
        else:
            last = first
            while last < first + count - 1 and self._joins(last + 1):
                last += 1
            taken, is_last = [(n, self._transactions[n - 1][0]) for n in range(first, last + 1)], True
            self._next = (last + 1, 0)
        tables: dict[tuple[str, int], tuple[TableSchema, list[dict[str, Any]]]] = {}
        for number, content in taken:
            stamp = {"_commit_version": scn(number), "_commit_timestamp": commit_us(number), "_txid": txid(number)}
            for key, (table, rows) in content.rows.items():
                into = tables.setdefault(key, (table, []))[1]
                into.extend({**row, **stamp, "_snapshot": False} for row in rows)
        head = taken[0][1].control
        control = None if head is None else Control(head[1], head[0], scn(first), head[2], head[3])
        end = taken[-1][1].last_seq
        commit = Commit(scn(last), end, txid(last), position(last), commit_us(last), continues=not is_last)
        return Group(commit, tuple(_rows(table, rows) for table, rows in tables.values()), control)

    def _joins(self, ordinal: int) -> bool:
        pieces = self._transactions[ordinal - 1] if ordinal <= len(self._transactions) else []
        return len(pieces) == 1 and pieces[0].control is None


def _rows(table: TableSchema, rows: list[dict[str, Any]]) -> Rows:
    schema = frame_schema(table)
    names = [*table.names, *BUS_COLUMNS]
    arrays = []
    for name in names:
        kind = schema.field(name).type
        values = [row[name] for row in rows]
        if pa.types.is_dictionary(kind):
            arrays.append(pa.array(values, pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(values, kind))
    return Rows(table, pa.RecordBatch.from_arrays(arrays, schema=schema))
