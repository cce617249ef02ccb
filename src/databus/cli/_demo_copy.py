"""The demo's callback: what a user's own consumer may look like."""

import time
from typing import Any

from databus.cli._screen import Meter
from databus.client import AnyWindow, Changes, Consumer, ControlEvent, Window
from databus.core import ChangeType, FatalError, SourceCheckpoint
from databus.testing.shop import TABLES


class Copy(Consumer):
    """The callback: a copy in memory, a dictionary a table, kept by the mirror rule from transaction to transaction."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {name: {} for name in TABLES}
        self.meter = Meter()
        self.changes = 0
        self._rows = 0

    def on_data_events(self, changes: Changes) -> None:
        """Rows of one table, in order."""
        held = self.tables[changes.source.rpartition(".")[2]]
        rows = changes.rows()
        for row in rows:
            if row.before is not None:
                held.pop(tuple(row.before[name] for name in row.table.key), None)
            if row.change_type is not ChangeType.DELETE and row.after is not None:
                held[row.key] = {**row.after, "_pair": row.pair}
        self._rows += len(rows)

    def on_control(self, control: ControlEvent) -> None:
        """Columns came or have other names, or a snapshot ended."""
        held, body = self.tables[control.source.rpartition(".")[2]], control.body
        if body["kind"] == "schema":
            names = [column["name"] for column in body["table"]["columns"]]
            old = {new: old for old, new in body.get("renamed", {}).items()}
            for row in held.values():
                pair = row["_pair"]
                was = {name: row.get(old.get(name, name), body["fill"].get(name)) for name in names}
                row.clear()
                row.update(was | {"_pair": pair})
        elif body["kind"] == "snapshot_end" and body["complete"]:
            begin = tuple(body["begin"])
            for key in [key for key, row in held.items() if row["_pair"] < begin]:
                del held[key]

    def on_end_window(self, window: AnyWindow) -> None:
        """A transaction is complete."""
        is_logged = isinstance(window, Window) and not window.is_snapshot
        self.changes += self._rows if is_logged else 0
        self.meter.add(self._rows, time.time() * 1e3 - window.commit_us / 1e3 if is_logged else None)
        self._rows = 0

    def on_rollback(self, physical: str, position: SourceCheckpoint) -> None:
        """Nothing in here fails, so nothing comes again."""
        raise FatalError(f"{physical}: the callback was rolled back to SCN {position.scn}")

    def has(self, name: str, column: str, value: Any) -> bool:
        """Whether a row has this value. The dictionary is kept by another thread, so a copy of it is looked at."""
        return any(row.get(column) == value for row in self.tables[name].copy().values())

    def rows(self, name: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The rows by key; of a copy, as in `has`."""
        return {
            key: tuple(value for column, value in row.copy().items() if column != "_pair")
            for key, row in self.tables[name].copy().items()
        }
