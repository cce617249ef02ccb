"""What a task imports: a history's stage is sent to a fresh Python as Spark sends it, and run there."""

import json
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from databus.core import SourceCheckpoint
from databus.flow import RangeDecoder, Stage, joined
from databus.link import RelayClient
from databus.pipeline import RunContext, load_pipeline
from databus.pipeline.engine._plan import plan_queries
from databus.pipeline.engine._query_filters import filters_over
from databus.pipeline.engine._staging import Staging
from databus.places import Position
from databus.testing import RelayProcess
from tests.pipeline.cluster import captured
from tests.pipeline.projects import Project

NOBODY_S = (
    "aiohttp",
    "rich",
    "sqlglot",
    "structlog",
    "yaml",
    "databus.cli",
    "databus.client",
    "databus.log",
    "databus.operate",
    "databus.pipeline",
    "databus.plugins",
    "databus.relay",
    "databus.sources",
)
CODE = """
import pickle, sys
stage, part = pickle.load(sys.stdin.buffer)
receipts = list(stage(iter([part])))
pickle.dump((receipts, sorted(sys.modules)), sys.stdout.buffer)
"""
FILE = """
name: shop
relay: {{url: "{relay}"}}
inputs: {{shop: {{type: databus, tables: [shop/main.*]}}}}
{filters}
outputs: {{history: {{type: delta, mode: history, path: lake, from: {last}}}}}
"""
FILTERS = """
filters:
  some: {type: where, from: shop, tables: [orders], where: "id > 10 AND status LIKE '%'"}
  less: {type: project, from: some, tables: [stock], exclude: [weight]}
  other: {type: rename, from: less, tables: [orders], columns: {status: state}}
  hidden: {type: mask, from: other, tables: [customers], hash: [email], salt: sixteen-bytes-of-salt}
"""


class Task:
    """In the place of a batch's rows: its one row is a task's, in another process. `imported`: what that imported."""

    def __init__(self, part: pa.RecordBatch, folder: Path) -> None:
        self._part = part
        self._folder = folder
        self.imported: list[str] = []

    def map(self, stage: Any) -> pa.Table:
        command, sent = [sys.executable, "-c", CODE], cloudpickle.dumps((stage, self._part))
        done = subprocess.run(command, input=sent, capture_output=True, check=False, cwd=self._folder)
        assert done.returncode == 0, done.stderr.decode()
        receipts, self.imported = pickle.loads(done.stdout)  # noqa: S301 - of our own process
        return pa.Table.from_batches(receipts)


@pytest.mark.parametrize(("filters", "last"), [("", "shop"), (FILTERS, "hidden")], ids=["as it is", "filtered"])
def test_a_task_imports_what_reads_and_writes_and_nothing_else(tmp_path: Path, filters: str, last: str) -> None:
    project = Project(tmp_path, "outputs: {}")
    with RelayProcess(tmp_path / "relay", {"shop": {"type": "sqlite", "path": str(project.database)}}) as relay:
        captured(RelayClient(relay.url), project.rows())
        project.path.write_text(FILE.format(relay=relay.url, filters=filters, last=last))
        graph = load_pipeline(project.path)
        (plan,) = plan_queries(graph, ["shop"])
        context = RunContext("shop", "shop", tmp_path, relay.url)
        output = graph.config.nodes["outputs.history"]
        decode = RangeDecoder(relay.url, None, "shop", None, 1_000, 1_000)
        end = RelayClient(relay.url).head("shop").published
        start = json.dumps(SourceCheckpoint().to_json())
        after, until = ((pair[0], pair[1]) for pair in ((0, 0), end.pair))
        names = ("physical", "start", "after_scn", "after_seq", "until_scn", "until_seq", "ranges", "log")
        values = [pa.array([value]) for value in ("shop", start, *after, *until, 1, "")]
        task = Task(pa.RecordBatch.from_arrays(values, names), tmp_path)
        feeds = [(plan.feeds[0], output.plugin(output.config, graph.config.context_of("history")), Position())]
        over = filters_over(graph, plan, context)
        (batch,) = joined(Staging().run(task, partial(Stage, decode), over, feeds), 0)
    assert {item.table.source for item in batch.items} >= {"main.customers", "main.orders", "main.stock"}
    assert list((tmp_path / "lake" / "orders").glob("*.parquet"))
    assert [name for name in task.imported if name.startswith(NOBODY_S)] == []
