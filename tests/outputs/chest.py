"""A direct output for tests, with a SQLite database a bucket as its target: rows and position in one transaction."""

import json
import sqlite3
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from databus.flow import TableControl
from databus.formats import change_lines, control_line
from databus.pipeline import Delivery, Output, OutputConfig
from databus.places import Position


class ChestConfig(OutputConfig):
    path: str
    buckets: int = 1


@dataclass
class ChestBucket:
    bucket: object
    db: sqlite3.Connection
    already: Counter = field(default_factory=Counter)

    def own(self):
        found = self.db.execute("SELECT record FROM records WHERE physical = ?", [self.bucket.physical]).fetchone()
        return self.bucket.own(None if found is None else Position.from_json(json.loads(found[0]), "record"))

    def write(self, batch):
        with self.db:
            self.db.execute("BEGIN IMMEDIATE")
            own = self.own()
            self.bucket.check(own, batch)
            record = json.dumps(self.bucket.after(own, batch).to_json(is_record=True))
            given = batch.rows_by_source()
            if own is not None:
                batch = batch.above(own.done)
            self.already = given - batch.rows_by_source()
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
            self.db.execute("REPLACE INTO records VALUES (?, ?)", [self.bucket.physical, record])
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
        db.execute("CREATE TABLE IF NOT EXISTS records (physical TEXT PRIMARY KEY, record TEXT)")
        try:
            yield ChestBucket(bucket, db)
        finally:
            db.close()


class Chest(Output):
    config_model: ClassVar = ChestConfig
    delivery: ClassVar = Delivery.EXACTLY_ONCE

    def part_writer(self):
        return ChestWriter(self.context.folder / self.config.path, self.config.buckets)

    def commit(self, batch, tasks):
        """Nothing is left to do."""


def chest_lines(folder):
    """What stands in a chest, bucket by bucket, in the order in which it was written."""
    found = []
    for path in sorted(Path(folder).glob("*.db")):
        db = sqlite3.connect(path)
        found.append([json.loads(line) for (line,) in db.execute("SELECT line FROM lines ORDER BY id")])
        db.close()
    return found
