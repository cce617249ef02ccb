"""A direct output for tests, with a SQLite database a bucket as its target: rows and position in one transaction."""

import json
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from databus.core import SourceCheckpoint
from databus.formats import change_lines, control_line
from databus.pipeline import Delivery, DirectOutput, OutputConfig
from databus.tasks import TableControl, batch_above


class ChestConfig(OutputConfig):
    path: str
    buckets: int = 1


@dataclass
class ChestBucket:
    bucket: object
    db: sqlite3.Connection

    def position(self):
        found = self.db.execute("SELECT at FROM position WHERE stream = ?", [self.bucket.stream]).fetchone()
        return None if found is None else SourceCheckpoint.from_json(json.loads(found[0]), "position")

    def write(self, batch):
        with self.db:
            self.db.execute("BEGIN IMMEDIATE")
            position = self.position()
            self.bucket.check(position, batch)
            if position is not None and batch.end.pair <= position.pair:
                return {}
            if position is not None:
                batch = batch_above(batch, position.pair)
            counts = {}
            for item in batch.items:
                name = f"{batch.physical}/{item.table.source}"
                if isinstance(item, TableControl):
                    if self.bucket.takes_controls_of(item.table):
                        lines = [control_line(name, item.body, item.pair)]
                        self.put(lines)
                    continue
                self.put(line.text for part in item.rows.to_batches() for line in change_lines([(name, part)]))
                counts[item.table.source] = counts.get(item.table.source, 0) + item.rows.num_rows
            self.db.execute(
                "REPLACE INTO position VALUES (?, ?)", [self.bucket.stream, json.dumps(batch.end.to_json())]
            )
        return counts

    def put(self, lines):
        self.db.executemany("INSERT INTO lines (line) VALUES (?)", [(line,) for line in lines])


@dataclass(frozen=True)
class ChestWriter:
    folder: Path
    buckets: int

    @contextmanager
    def open(self, bucket):
        self.folder.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.folder / f"{bucket.number}.db", isolation_level=None)
        db.execute("CREATE TABLE IF NOT EXISTS lines (id INTEGER PRIMARY KEY, line TEXT)")
        db.execute("CREATE TABLE IF NOT EXISTS position (stream TEXT PRIMARY KEY, at TEXT)")
        try:
            yield ChestBucket(bucket, db)
        finally:
            db.close()


class Chest(DirectOutput):
    config_model: ClassVar = ChestConfig
    delivery: ClassVar = Delivery.EXACTLY_ONCE

    def direct_writer(self):
        return ChestWriter(self.context.folder / self.config.path, self.config.buckets)


def chest_lines(folder):
    """What stands in a chest, bucket by bucket, in the order in which it was written."""
    found = []
    for path in sorted(Path(folder).glob("*.db")):
        db = sqlite3.connect(path)
        found.append([json.loads(line) for (line,) in db.execute("SELECT line FROM lines ORDER BY id")])
        db.close()
    return found
