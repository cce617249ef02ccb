"""The texts of a package with a plugin, for `databus init --plugin`; @NAME@, @MODULE@ and @CLASS@ are put in."""

from typing import Final

_PYPROJECT: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "databus-@NAME@"
version = "0.1.0"
description = "@CLASS@, for pipelines of databus."
requires-python = ">=3.11"
dependencies = ["databus-cdc[spark]"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.entry-points."databus.@KIND@s"]  # by this, `type: @NAME@` in a pipeline's file finds the class
@NAME@ = "@MODULE@:@CLASS@"

[tool.hatch.build.targets.wheel]
packages = ["src/@MODULE@"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["src"]
"""

_README: Final = """\
# databus-@NAME@

An @KIND@ for pipelines of databus.

    pip install -e '.[test]'                # into the Python that has databus
    pytest                                  # its tests; change them with it
    databus plugins show @NAME@             # its options, as users see them

In a pipeline's file:

    @SECTION@

What each method has to promise: docs/plugins.md of databus.
"""

_IGNORED: Final = "__pycache__/\ndist/\n"

_OUTPUT: Final = '''\
"""Output `@NAME@`: a folder of files of Arrow, one for each table of each batch. Put your target in its place."""

import os
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from databus.pipeline import ChangeBatch, Delivery, Output, OutputConfig, TableRows
from pydantic import Field


class @CLASS@Config(OutputConfig):
    """Options of the output."""

    path: str = Field(description="Folder for the files; made if it is not there.", examples=["changes"])


class @CLASS@(Output):
    """Every change, as it comes."""

    config_model: ClassVar = @CLASS@Config
    delivery: ClassVar = Delivery.AT_LEAST_ONCE  # what comes again is written again

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.context.folder / self.config.path

    def open(self) -> None:
        """Called before the first batch, and again after each failure."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, batch: ChangeBatch) -> None:
        """When this returns, the batch must be in the target, so that it survives a kill."""
        for number, item in enumerate(batch.items):
            if isinstance(item, TableRows):  # else a control, such as `truncate`: changes are kept, so nothing is due
                (scn, seq), source = batch.end.pair, item.table.source
                name = f"{batch.physical}.{source}.{scn:020d}.{seq:020d}.{number:06d}.arrow"
                self._put(self.folder / name, item.rows)

    def _put(self, path: Path, rows: pa.Table) -> None:
        """Write a file that is whole or absent for every reader, and survives a power failure."""
        half = path.with_suffix(".half")
        with half.open("wb") as out:
            with pa.ipc.new_file(out, rows.schema) as writer:
                writer.write_table(rows)
            out.flush()
            os.fsync(out.fileno())
        half.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Let go of what `open` took; callable twice."""
'''

_OUTPUT_TEST: Final = '''\
"""The output passes the conformance suite of databus: repeats, kills, gaps, schema changes, values of every type."""

import pyarrow as pa
import pytest
from databus.pipeline import OutputContext
from databus.testing import OUTPUT_CHECKS

from @MODULE@ import @CLASS@, @CLASS@Config

KINDS = {1: "insert", 2: "update_preimage", 3: "update_postimage", 4: "delete"}


class Harness:
    """How the suite reaches the output and its target; see databus.testing.OutputHarness."""

    keeps = "changes"  # or "mirror", where the target holds the rows that the source has now

    def __init__(self, folder):
        self.folder = folder

    def make(self):
        """The output, as a process that has just started makes it, on what the one before has left."""
        config = @CLASS@Config.model_validate({"type": "@NAME@", "from": "shop", "path": "out"})
        return @CLASS@(config, OutputContext(pipeline="shop", output="out", folder=self.folder))

    def read(self, physical, table):
        """The rows of a table in the target, as Python values."""
        rows = []
        for path in sorted((self.folder / "out").glob(f"{physical}.{table.source}.*.arrow")):
            with pa.ipc.open_file(path) as file:
                rows += file.read_all().to_pylist()
        return [{**row, "_change_type": KINDS.get(row["_change_type"], row["_change_type"])} for row in rows]

    def full(self):
        """Within it, the target has no room; None where that cannot be had."""
        return None


@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
def test_it_conforms(check, tmp_path):
    check(Harness(tmp_path))
'''

_FILTER: Final = '''\
"""Filter `@NAME@`: rows of one table whose column is at least a number. Put what you need in its place."""

from typing import TYPE_CHECKING, ClassVar

from databus.pipeline import Filter, FilterConfig
from pydantic import Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class @CLASS@Config(FilterConfig):
    """Options of the filter."""

    table: str | None = Field(None, description="The table, as `db.table`.", examples=["main.orders"])
    column: str = Field(description="The column that is compared.")
    least: int = Field(description="Rows with less do not pass.")


class @CLASS@(Filter):
    """Works on typed rows of one table. A module of a plugin imports pyspark inside functions only."""

    config_model: ClassVar = @CLASS@Config

    @property
    def table(self) -> str | None:
        """Which table it is about; needed after an input that gives many."""
        return self.config.table

    def columns_read(self) -> list[tuple[str, str]]:
        """The columns that its options name, so that a column that is not there is an error of the file."""
        return [("column", self.config.column)]

    def apply(self, rows: "DataFrame", branch: str | None) -> "DataFrame":
        """The rows that go on. The bus's columns, and the rows of controls, always do."""
        from pyspark.sql import functions as F

        return rows.where(F.col("_control").isNotNull() | (F.col(self.config.column) >= self.config.least))
'''

_FILTER_PIPELINE: Final = """\
# Tests of the filter: rows, and what is to come out. `databus test tests/databus.yml` runs them too.
relay: {url: "http://127.0.0.1:11115"}
inputs: {shop: {type: databus}}
filters:
  large: {type: "@MODULE@:@CLASS@", from: shop, table: main.orders, column: total_cents, least: 100}
outputs:
  shown: {type: console, from: large}
tests:
  small_orders_do_not_pass:
    table: main.orders
    columns: {id: int64, total_cents: int64}
    to: large
    rows:
      - {id: 1, total_cents: 99}
      - {id: 2, total_cents: 100}
    expect:
      - {id: 2, total_cents: 100}
"""

_FILTER_TEST: Final = '''\
"""The filter lets through what databus.yml beside this file says."""

from pathlib import Path

from databus.pipeline import load_pipeline, run_filter_tests, validate

FILE = Path(__file__).parent / "databus.yml"


def test_its_options_are_right():
    assert validate(FILE, offline=True) == []


def test_it_passes_what_it_should():
    results = list(run_filter_tests(load_pipeline(FILE)))
    assert results
    assert [result.differences for result in results if not result.is_passed] == []
'''

_INPUT: Final = '''\
"""Input `@NAME@`: numbers, counted up. Put your source in its place."""

from typing import TYPE_CHECKING, Any, ClassVar

from databus.core import SourceCheckpoint
from databus.pipeline import Input, InputConfig, RunContext, Shape
from databus.schema import Column, TableSchema
from pydantic import Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PHYSICAL = "@MODULE@"
TABLE = TableSchema("@MODULE@.numbers", (Column("id", "int64", nullable=False),), key=("id",))


class @CLASS@Config(InputConfig):
    """Options of the input."""

    rows_total: int = Field(1_000, ge=1, description="Rows until its end.")


class @CLASS@(Input):
    """Gives typed rows of one table, as a stream of Spark."""

    config_model: ClassVar = @CLASS@Config
    emits: ClassVar = Shape.TYPED

    def typed(self, spark: "SparkSession", context: RunContext) -> "DataFrame":
        """The rows, with the bus's columns. A module of a plugin imports pyspark inside functions only."""
        from @MODULE@._source import Numbers

        spark.dataSource.register(Numbers)
        return spark.readStream.format(Numbers.name()).option("rows_total", str(self.config.rows_total)).load()

    def schema_of(self, context: RunContext, table: str | None) -> tuple[str, TableSchema]:
        """The physical source, and the definition of the table."""
        return PHYSICAL, TABLE

    def position_of(self, offset: dict[str, Any], physical: str, log: str) -> SourceCheckpoint:
        """An offset of its stream as a position; rows of one SCN are one transaction."""
        return SourceCheckpoint(scn=int(offset["rows"]), log=log)
'''

_INPUT_SOURCE: Final = '''\
"""Where Spark gets the rows: a data source in Python. Spark's documentation: "Python Data Source API"."""

from collections.abc import Iterator

import pyarrow as pa
from databus.spark import arrow_schema, typed_schema
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from @MODULE@ import TABLE


class Numbers(DataSource):
    """A table whose rows are made up."""

    @classmethod
    def name(cls) -> str:
        return "databus_@MODULE@"

    def schema(self) -> StructType:
        return typed_schema(TABLE, meta_full=True)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Reader(int(self.options["rows_total"]), schema)


class Range(InputPartition):
    def __init__(self, first: int, end: int) -> None:
        super().__init__(None)
        self.first, self.end = first, end


class Reader(DataSourceStreamReader):
    """An offset is how many rows there were: the same offsets must give the same rows, whenever they are read."""

    def __init__(self, rows_total: int, schema: StructType) -> None:
        self.rows_total = rows_total
        self.arrow = arrow_schema(schema)

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"rows": self.rows_total}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Range(start["rows"], end["rows"])]

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        numbers = range(partition.first + 1, partition.end + 1)
        made = {
            "id": pa.array(numbers, pa.int64()),
            "_change_type": pa.array(["insert"] * len(numbers)),
            "_commit_version": pa.array(numbers, pa.int64()),
            "_seq": pa.array([0] * len(numbers), pa.int64()),
            "_commit_timestamp": pa.array([number * 1_000 for number in numbers], pa.timestamp("us", "UTC")),
            "_txid": pa.array([str(number) for number in numbers]),
            "_snapshot": pa.array([False] * len(numbers)),
        }
        columns = [
            made[field.name].cast(field.type) if field.name in made else pa.nulls(len(numbers), field.type)
            for field in self.arrow
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=self.arrow)
'''

_INPUT_TEST: Final = '''\
"""The input in a pipeline: all rows once, and none again after a restart."""

import json

from databus.pipeline import run

FILE = """\\
name: numbers
spark: {master: "local[1]"}
inputs: {numbers: {type: "@MODULE@:@CLASS@", rows_total: 100}}
outputs: {kept: {type: files, format: json, from: numbers, path: out}}
"""


def rows_in(folder):
    files = [path for path in folder.rglob("*.json*") if not path.name.startswith(".")]  # one is the ledger
    lines = [line for path in files for line in path.read_text().splitlines()]
    return sorted(row["id"] for row in map(json.loads, lines) if "id" in row)


def test_each_row_comes_once(tmp_path):
    path = tmp_path / "databus.yml"
    path.write_text(FILE)
    for _ in range(2):
        assert run(path, once=True) == 0
        assert rows_in(tmp_path / "out") == list(range(1, 101))
'''

_SECTIONS: Final = {
    "output": "outputs: {kept: {type: @NAME@, from: shop, path: changes}}",
    "filter": "filters: {large: {type: @NAME@, from: shop, table: main.orders, column: total_cents, least: 100}}",
    "input": "inputs: {numbers: {type: @NAME@, rows_total: 100}}",
}
_MODULES: Final = {
    "output": {"src/@MODULE@/__init__.py": _OUTPUT, "tests/test_@MODULE@.py": _OUTPUT_TEST},
    "filter": {
        "src/@MODULE@/__init__.py": _FILTER,
        "tests/databus.yml": _FILTER_PIPELINE,
        "tests/test_@MODULE@.py": _FILTER_TEST,
    },
    "input": {
        "src/@MODULE@/__init__.py": _INPUT,
        "src/@MODULE@/_source.py": _INPUT_SOURCE,
        "tests/test_@MODULE@.py": _INPUT_TEST,
    },
}


def plugin_files(kind: str, name: str) -> dict[str, str]:
    """The texts of a package, by path. name: of the type, in small letters with `-` or `_`."""
    module = f"databus_{name.replace('-', '_')}"
    put = {
        "@SECTION@": _SECTIONS[kind],
        "@KIND@": kind,
        "@NAME@": name,
        "@MODULE@": module,
        "@CLASS@": "".join(part.capitalize() for part in module.removeprefix("databus_").split("_")),
    }
    texts = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        ".gitignore": _IGNORED,
        **_MODULES[kind],
    }
    return {_put(path, put): _put(text, put) for path, text in texts.items()}


def _put(text: str, put: dict[str, str]) -> str:
    for mark, value in put.items():
        text = text.replace(mark, value)
    return text
