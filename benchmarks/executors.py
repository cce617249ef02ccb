"""Executors of one core each, one against two: eight tables into Delta, wall and processor time of every part.

python -m benchmarks.executors [SCALE]

Master, workers and executors are Spark's own `local-cluster`: an executor is a JVM of its own with Pythons of its own,
which get their tasks, code and rows over the network. The relay is on the same cores. Wall is from the end of the first
batch that counts to the end of the last; processor time is of the whole run, in which the session was used once before.
"""

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks._changes import TABLE, insert_groups, mixed_groups
from benchmarks.figures import Figure
from benchmarks.spark_delta import COLUMNS, rate_of
from benchmarks.spark_tasks import log_of
from databus.core import SEQ
from databus.pipeline import run
from databus.schema import TableSchema, frame_schema
from databus.spark import tuned_session
from databus.testing import RelayProcess
from databus.wire import Group, Rows

EXECUTORS = (1, 2)
MODES = ("history", "mirror")
MB_OF_AN_EXECUTOR = 1_024
WARMS_UP = True
TABLES = tuple(TableSchema(f"main.events_{number}", TABLE.columns, TABLE.key) for number in range(8))
CONFIG = {"schemas": {each.source: {"columns": COLUMNS, "nulls": True} for each in TABLES}}
HISTORY_ROWS = 3_000_000
ROWS_A_BATCH = 400_000
MIRROR_ROWS = 1_000_000
CHANGES_A_BATCH = 100_000
MIRROR_BATCHES = 8
ROWS_A_TRANSACTION = 8_000
ROWS_A_CHANGE = 1.8  # eight of ten are updates, which are two rows

PIPELINE = """
name: executors-{mode}-{name}
relay: {{url: "{url}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"], max_rows_per_trigger: {rows}}}}}
outputs: {{copy: {{type: delta, from: shop, mode: {mode}, path: "{mode}-{name}"}}}}
"""


@dataclass(frozen=True)
class Work:
    """What is written: rows a batch, the transactions before those that count, rows that the tables have in the end."""

    mode: str
    rows_a_batch: int
    after_scn: int
    rows: int


@dataclass(frozen=True)
class Spent:
    """Seconds of processor time."""

    relay: float
    driver: float
    executors: float

    @property
    def all(self) -> float:
        return self.relay + self.driver + self.executors

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.relay - other.relay, self.driver - other.driver, self.executors - other.executors)


def figures(scale: float = 1.0) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-", dir=Path.cwd()))
    try:
        for mode in MODES:
            yield from _compared(folder / mode, *(_history(scale) if mode == "history" else _mirror(scale)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _history(scale: float) -> tuple[Iterator[Group], Work]:
    rows = max(int(HISTORY_ROWS * scale), 20_000)
    groups = map(_spread, insert_groups(0, rows, 1, ROWS_A_TRANSACTION))
    return groups, Work("history", min(ROWS_A_BATCH, rows // 5), 0, rows)


def _mirror(scale: float) -> tuple[Iterator[Group], Work]:
    rows = max(int(MIRROR_ROWS * scale), 20_000)
    a_batch = CHANGES_A_BATCH * rows // MIRROR_ROWS // 1_000 * 1_000
    rng, live = np.random.default_rng(7), np.arange(rows)
    inserts = list(insert_groups(0, rows, 1, ROWS_A_TRANSACTION))
    changes = (
        group
        for number in range(MIRROR_BATCHES)
        for group in mixed_groups(rng, live, a_batch, len(inserts) + 1 + number * a_batch // 1_000, number + 1)
    )
    groups = map(_spread, itertools.chain(inserts, changes))
    return groups, Work("mirror", int(a_batch * ROWS_A_CHANGE), len(inserts), rows)


def _spread(group: Group) -> Group:
    """The same transaction over eight tables: each key is of one of them."""
    (rows,) = group.rows
    table_of = rows.batch.column(0).to_numpy() % len(TABLES)
    parts, seq = [], 1
    for number, table in enumerate(TABLES):
        part = rows.batch.filter(pa.array(table_of == number))
        seqs = pa.array(np.arange(seq, seq + part.num_rows))
        columns = [seqs if name == SEQ else part.column(name) for name in part.schema.names]
        parts.append(Rows(table, pa.RecordBatch.from_arrays(columns, schema=frame_schema(table))))
        seq += part.num_rows
    return replace(group, rows=tuple(each for each in parts if each.batch.num_rows))


def _compared(folder: Path, groups: Iterator[Group], work: Work) -> Iterator[Figure]:
    folder.mkdir()
    with RelayProcess(folder, log_of(folder, groups, CONFIG)) as relay:
        one = None
        for executors in EXECUTORS:
            rate, spent = _measure(folder, relay, executors, work)
            one = one or (rate, spent.all)
            name = f"executors, {work.mode} of {len(TABLES)} tables, {executors} of one core"
            yield Figure(name, rate, "rows/s", "one", one[0])
            yield Figure(f"{name}: processor time of all", spent.all, "s", "one", one[1])
            yield Figure(f"{name}: of the executors", spent.executors, "s")
            yield Figure(f"{name}: of the driver", spent.driver, "s")
            yield Figure(f"{name}: of the relay", spent.relay, "s")


def _measure(folder: Path, relay: RelayProcess, executors: int, work: Work) -> tuple[float, Spent]:
    master = f"local-cluster[{executors},1,{MB_OF_AN_EXECUTOR}]"
    settings = {"spark.executor.memory": f"{MB_OF_AN_EXECUTOR}m", "spark.driver.host": "127.0.0.1"}
    spark = tuned_session("executors", master, folder=folder / "spark", settings=settings)
    try:
        if WARMS_UP:
            _run(spark, folder, relay, f"warm-{executors}", work)
        before = _spent(relay)
        batches = _run(spark, folder, relay, str(executors), work)
        spent = _spent(relay) - before
    finally:
        spark.stop()
    missing = work.rows - _rows_of(folder / f"{work.mode}-{executors}")
    if missing:
        raise RuntimeError(f"{missing} rows are missing of {work.rows} with {executors} executors")
    return rate_of([each for each in batches if each["position"]["scn"] > work.after_scn]), spent


def _run(spark: SparkSession, folder: Path, relay: RelayProcess, name: str, work: Work) -> list[dict[str, Any]]:
    file = folder / f"{name}.yml"
    file.write_text(PIPELINE.format(url=relay.url, mode=work.mode, name=name, rows=work.rows_a_batch))
    events: list[dict[str, Any]] = []
    code = run(file, once=True, on_event=events.append, session=spark)
    if code:
        raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
    return [event for event in events if event["event"] == "batch" and event["rows"]]


def _spent(relay: RelayProcess) -> Spent:
    """Until now. Executors are the JVMs that the driver's JVM has started, with all below them."""
    me = psutil.Process()
    below = [each for each in me.children(recursive=True) if each.pid != relay.pid]
    theirs = {pid for each in below if _is_executor(each) for pid in (each.pid, *_pids_below(each))}
    return Spent(
        _seconds(psutil.Process(relay.pid)),
        sum(_seconds(each) for each in (me, *below) if each.pid not in theirs),
        sum(_seconds(each) for each in below if each.pid in theirs),
    )


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it ends just now, and its time is its parent's
        return "ExecutorBackend" in " ".join(process.cmdline())
    return False


def _pids_below(process: psutil.Process) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [each.pid for each in process.children(recursive=True)]
    return []


def _seconds(process: psutil.Process) -> float:
    """Its processor time, and that of those it has started and seen end."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _rows_of(folder: Path) -> int:
    """What another reader finds, key by key: rows of a mirror, and of a history of inserts, have one each."""
    keys = [DeltaTable(each.parent).to_pyarrow_dataset().to_table(["id"]) for each in folder.rglob("_delta_log")]
    return len(pa.concat_tables(keys)["id"].unique())


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
