"""A consumer in a process of its own that records every change in SQLite, and may be killed at any moment.

    python -m tests.laws.recorder RELAY CHECKPOINT RECORD

What it did before a kill and does again after it is told apart by the pair, so a record that is missing was lost.
"""

import json
import sqlite3
import sys
from pathlib import Path

from databus.client import AnyWindow, Changes, Client, ClientConfig, Consumer, FileCheckpoints
from databus.core import BUS_SEQ_MIN


class Recorder(Consumer):
    """One SQLite transaction a window; `late` counts windows that came after a later one without a rollback."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS seen "
            "(scn INT, seq INT, source TEXT, kind TEXT, row TEXT, PRIMARY KEY (scn, seq))"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS faults (what TEXT)")
        self._last = (0, 0)

    def on_start_window(self, window: AnyWindow) -> None:
        self._db.execute("BEGIN")
        if (window.scn, 0) < (self._last[0], 0):
            self._db.execute("INSERT INTO faults VALUES (?)", (f"window {window.scn} after {self._last}",))

    def on_data_events(self, changes: Changes) -> None:
        for row in changes.rows():
            told = (row.scn, row.seq, row.source, row.change_type.label, json.dumps(row.values, default=str))
            self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?, ?)", told)
            if row.before is not None and row.after is not None:  # an update counts two
                told = (row.scn, row.seq - 1, row.source, "update_preimage", json.dumps(row.before, default=str))
                self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?, ?)", told)
            if row.seq < BUS_SEQ_MIN:
                self._last = max(self._last, row.pair)

    def on_end_window(self, window: AnyWindow) -> None:
        self._db.execute("COMMIT")


def main() -> None:
    relay, checkpoint, record = sys.argv[1:]
    config = ClientConfig(checkpoint_ms=50)
    Client(relay, Recorder(Path(record)), checkpoints=FileCheckpoints(Path(checkpoint)), config=config).run()


if __name__ == "__main__":
    main()
