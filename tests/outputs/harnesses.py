"""Harnesses of the built-in outputs, for the conformance suite."""

import json
import resource
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from databus.formats import from_json_value
from databus.pipeline import OutputContext
from databus.places import Noted
from databus.schema import forms_of
from databus.sinks import DeltaConfig, DeltaOutput
from databus.sinks._console import ConsoleConfig, ConsoleOutput
from databus.sinks.delta._table import DeltaTarget, Upkeep
from databus.sinks.files._output import FilesConfig, FilesOutput
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_by_tasks, write_here
from tests.outputs.chest import Chest, ChestConfig, chest_lines

FROM = {"from": ["shop"]}


def context(folder: Path, pipeline="shop", output="copy"):
    return OutputContext(pipeline, output, folder)


@contextmanager
def room_for_files_of(size):
    """Files of at most so many bytes, as on a disk that is full; the process may have its room back."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class ByTasks(DeltaOutput):
    """Whose `write` has tasks do it, as a run has."""

    def write(self, batch):
        return write_by_tasks(self, batch, self.commit, self.discard)


class ByTask(FilesOutput):
    """Whose `write` has one task do it."""

    def write(self, batch):
        return write_here(self, batch)


class DeltaHarness:
    def __init__(self, folder, mode, **options):
        self.folder = folder
        self.keeps = "mirror" if mode == "mirror" else "changes"
        self.options = {"mode": mode, "path": f"lake/{mode}", **options}

    def make(self):
        return ByTasks(DeltaConfig(**self.options, **FROM), context(self.folder))

    def target(self, physical, table):
        path = self.make().table_path(physical, table.source)
        application = f"databus/shop/copy/{table.source}/{physical}"
        return DeltaTarget(
            path,
            f"{physical}/{table.source}",
            application,
            Upkeep(),
            ("delta.mirror.before_commit", "delta.mirror.after_commit"),
        )

    def read(self, physical, table):
        return self.target(physical, table).read().to_pylist()

    def full(self):
        return room_for_files_of(256)


class FilesHarness:
    keeps = "changes"

    def __init__(self, folder, kind, **options):
        self.folder = folder
        self.options = {"format": kind, "path": "out", **options}

    def full(self):
        return room_for_files_of(256)

    def make(self):
        return ByTask(FilesConfig(**self.options, **FROM), context(self.folder))

    def files(self, table):
        name = table.source.rpartition(".")[2]
        return sorted((self.folder / "out" / name).glob("*"), key=lambda path: path.name.lstrip("_"))

    def read(self, physical, table):
        if self.options["format"] == "parquet":
            parts = [pq.read_table(path) for path in self.files(table) if path.suffix == ".parquet"]
            return [row for part in parts for row in part.to_pylist()]
        lines = [
            line for path in self.files(table) if path.suffix == ".jsonl" for line in path.read_text().splitlines()
        ]
        return [parsed(json.loads(line), table) for line in lines]


class ConsoleHarness:
    keeps = "changes"

    def __init__(self, folder, capture):
        self.folder = folder
        self.capture = capture

    def full(self):
        return None

    def make(self):
        return ConsoleOutput(ConsoleConfig(rows_max=10_000, **FROM), context(self.folder))

    def read(self, physical, table):
        self.text = getattr(self, "text", "") + self.capture.readouterr().out
        rows = [json.loads(line) for line in self.text.split("\n") if line]
        mine = [row for row in rows if row["_source"] == f"{physical}/{table.source}" and "_control" not in row]
        return [parsed(row, table) for row in mine]


def parsed(row, table):
    """A row of JSON as the values that were written; a column that a row lacks is null."""
    values = {**row}
    for column in table.columns:
        sink = forms_of(column.type).sink
        kind = "decimal(20,0)" if column.type == "uint64" else column.type
        value = row.get(column.name)
        if value is not None and pa.types.is_decimal(sink):
            value = str(value)
        values[column.name] = from_json_value(value, kind)
    return values


def order(number, note="x"):
    return {"id": number, "note": note, "total": None}


def log_of(*numbers, uuid="log-1"):
    log = ChangeLog(uuid=uuid)
    for number in numbers:
        log.begin().insert(ORDERS, order(number))
    return log


def versions(harness, table=ORDERS):
    return harness.target("shop", table).table.version()


def ids(harness, table=ORDERS):
    return sorted(row["id"] for row in harness.read("shop", table))


class ChestHarness:
    keeps = "changes"

    def __init__(self, folder, buckets):
        self.folder = folder
        self.buckets = buckets

    def full(self):
        return None

    def make(self):
        return Chest(ChestConfig(type="chest", path="chest", buckets=self.buckets, **FROM), context(self.folder))

    def read(self, physical, table):
        lines = [line for bucket in chest_lines(self.folder / "chest") for line in bucket]
        mine = [row for row in lines if row["_source"] == f"{physical}/{table.source}" and "_control" not in row]
        return [parsed(row, table) for row in mine]


def noted_of(output, name):
    """What a ledger would note of a table."""
    word = output.held({name: None}).get(name)
    return None if word is None or word.place is None else Noted(word.place.pair, word.mark)


def still_has(output, name, noted):
    """Whether an output says that its target has what was noted."""
    word = output.held({name: noted}).get(name)
    return word is not None and word.mark == noted.mark and (word.place is None or word.place.pair >= noted.pair)
