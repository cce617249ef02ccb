"""Harnesses of the built-in outputs, for the conformance suite."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from databus.formats import from_json_value
from databus.pipeline import OutputContext
from databus.pipeline.outputs import (
    ConsoleConfig,
    ConsoleOutput,
    DeltaConfig,
    DeltaOutput,
    FilesConfig,
    FilesOutput,
)
from databus.pipeline.outputs._delta_table import DeltaTarget, Upkeep
from databus.schema import forms_of

FROM = {"from": ["shop"]}


def context(folder: Path, pipeline="shop", output="copy"):
    return OutputContext(pipeline, output, folder)


class DeltaHarness:
    def __init__(self, folder, mode, **options):
        self.folder = folder
        self.keeps = "mirror" if mode == "mirror" else "changes"
        self.options = {"mode": mode, "path": f"lake/{mode}", **options}

    def make(self):
        return DeltaOutput(DeltaConfig(**self.options, **FROM), context(self.folder))

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


class FilesHarness:
    keeps = "changes"

    def __init__(self, folder, kind, **options):
        self.folder = folder
        self.options = {"format": kind, "path": "out", **options}

    def make(self):
        return FilesOutput(FilesConfig(**self.options, **FROM), context(self.folder))

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

    def __init__(self, capture):
        self.capture = capture

    def make(self):
        return ConsoleOutput(ConsoleConfig(rows_max=10_000, **FROM), context(Path()))

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
