"""SQLite as a source: how fast a backlog is captured, and what the triggers cost the writer.

    python -m benchmarks.sqlite [SCALE]

The rows have 254 bytes in ten columns, in transactions of 100; half of the changes are inserts, the others updates and
deletes. A change is an insert, an update (two images) or a delete.
"""

import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, median_of
from databus.core import SystemClock
from databus.log import Resume
from databus.sources.sqlite import SqliteConfig, SqliteSource, install

CHANGES = 200_000
TRANSACTION = 100
TABLE = (
    "CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER, code TEXT UNIQUE, state TEXT, total_cents INTEGER,"
    " weight REAL, placed DATETIME, address TEXT, note TEXT, raw BLOB)"
)


def _row(number: int) -> tuple[object, ...]:
    return (
        number,
        number % 10_007,
        f"code-{number:011d}",
        "placed",
        number * 17 % 100_000,
        number / 7,
        "2026-11-21 10:00:00",
        f"{number} some street, some town, some country that is long"[:60],
        "n" * 64,
        b"r" * 40,
    )


def _open(path: Path, *, synchronous: str = "OFF") -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    return db


def _write(db: sqlite3.Connection, changes: int, first: int = 0) -> None:
    """Transactions of 50 inserts, 30 updates and 20 deletes."""
    for start in range(first, first + changes // 2, TRANSACTION // 2):
        ids = range(start, start + TRANSACTION // 2)
        db.execute("BEGIN")
        db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_row, ids))
        db.executemany("UPDATE orders SET state = 'paid' WHERE id = ?", [(i,) for i in ids[:30]])
        db.executemany("DELETE FROM orders WHERE id = ?", [(i,) for i in ids[30:]])
        db.execute("COMMIT")


def _writing_s(changes: int, *, triggers: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        db = _open(path, synchronous="NORMAL")
        db.execute(TABLE)
        if triggers:
            install(str(path), SqliteConfig(path=str(path)))
        began = time.perf_counter()
        _write(db, changes)
        seconds = time.perf_counter() - began
        db.close()
        return seconds


def _capture_s(changes: int, *, into_log: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        db = _open(path)
        db.execute(TABLE)
        source = SqliteSource("shop", SqliteConfig(path=str(path), snapshot="never"))
        identity = source.identify()
        source.start(Resume())
        source.poll(0)
        _write(db, changes)
        append = _nowhere
        if into_log:
            from databus.log import Log

            log = Log.open(Path(folder) / "log", physical="shop", identity=identity, clock=SystemClock())
            append = log.append
        rows = 0
        began = time.perf_counter()
        while (group := source.poll(0)) is not None:
            rows += sum(each.batch.num_rows for each in group.rows)
            append(group)
        seconds = time.perf_counter() - began
        if rows != changes * 130 // 100:
            raise RuntimeError(f"{rows} images came of {changes} changes")
        if into_log:
            log.close()
        source.close()
        db.close()
        return seconds


def _nowhere(group: object) -> None:
    """Where groups go when the source alone is measured."""


def figures(scale: float = 1.0) -> Iterator[Figure]:
    """See this module's first lines."""
    changes = max(int(CHANGES * scale) // TRANSACTION, 1) * TRANSACTION
    yield Figure("sqlite.capture", changes / median_of(3, lambda: _capture_s(changes, into_log=False)), "changes/s")
    yield Figure(
        "sqlite.capture_into_log", changes / median_of(3, lambda: _capture_s(changes, into_log=True)), "changes/s"
    )
    bare = changes / median_of(3, lambda: _writing_s(changes, triggers=False))
    captured = changes / median_of(3, lambda: _writing_s(changes, triggers=True))
    yield Figure("sqlite.write_with_triggers", captured, "changes/s", "the same writer without triggers", bare)


if __name__ == "__main__":
    for figure in figures(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        ratio = "" if figure.ratio is None else f"  {figure.peer}: {figure.peer_value:,.0f}, ratio {figure.ratio:.2f}"
        print(f"{figure.name:30} {figure.value:12,.0f} {figure.unit}{ratio}")
