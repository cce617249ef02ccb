"""Benchmarks run, from their first line to their last, and print nothing but figures; of runs this small, these say
nothing.
"""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from databus.testing.servers import KINDS, ServerMissing, open_server

ROOT = Path(__file__).parents[2]
SCALE = 0.0002
SMALLER = {
    "capture": {"RUNS": 1},
    "catchup": {"BYTES": 6_000_000 / SCALE, "RUNS": 1, "CROWDS": ((1, 0.45), (2, 0.45))},
    "crowd": {"CROWDS": [[3, 100, 25.0]], "JSON_RATE": 100, "SECONDS_MIN": 1.0},
    "dashboard": {"OPENINGS": 1, "NUMBERS": 2, "SETTLE_S": 0.1, "TABS": 3, "FAULTS": 2},
    "decode": {"NAMES": ["mixed"]},
    "dry_run": {"ROWS_A_BATCH": 20_000},
    "executors": {"EXECUTORS": [2], "MODES": ["mirror"], "MIRROR_BATCHES": 2, "WARMS_UP": False},
    "fifty": {"OUTPUTS": 3, "LANES": 2, "TABLES": 1, "SETTLE_S": 0.5, "IDLE_S": 1.0},
    "kafka": {"RUNS": 0, "WARM_UP": 4, "CHANGES_A_SECOND": 20},
    "kafka_mirror": {"RUNS": 0},
    "latency": {"RATE": 100, "RATES": [200], "RATE_SECONDS": 1},
    "latency_mysql": {"RATE": 100},
    "live_mysql": {"RATES": [200]},
    "log_append": {"RUNS": 1},
    "memory": {"WORKLOADS": ["orders"], "LARGE_ROWS": 2},
    "mysql_snapshot": {"RUNS": 1},
    "readers": {"BYTES": 6_000_000 / SCALE, "READERS": [1, 2], "RUNS": 1},
    "many_tables": {"WARM_UP": 2, "EVERY_S": 0.2},
    "run_start": {"CASES": [[2, 1]]},
    "relay": {"STARTS": 1, "IDLE_SECONDS_MIN": 0.2},
    "search": {"RUNS": 1, "WARM_UP": 1},
    "spark_delta": {
        "MIRROR_ROWS": 2_000,
        "CHANGES_A_BATCH": 1_000,
        "BATCHES": 2,
        "HISTORY_ROWS_MIN": 12_000,
        "HISTORY_ROWS_A_BATCH": 2_000,
    },
    "spark_latency": {"WARM_UP": 4, "WARM": 8, "CHANGES_A_SECOND": 20, "DELTA_CHANGES_A_SECOND": 20},
    "spark_read": {"RUNS": 1},
    "spark_tasks": {"MIRROR_BATCHES": 2, "HISTORY_BATCHES_MIN": 2, "KEYS": ["text"]},
    "start": {"BEGINS_COLD": False},
    "task_memory": {"FACTORS": [1], "ROWS": 1, "MIRROR_BATCHES": 1},
    "trace": {"RUNS": 1},
    "watched": {"ROUNDS": 1, "SETTLE_S": 0.1, "ROW_COUNT": 10},
    "windows": {"RUNS": 1},
}
"""What else is smaller than at scale 1, by module: its own constants."""

SPARK = {
    "dry_run",
    "executors",
    "fifty",
    "kafka",
    "kafka_mirror",
    "many_tables",
    "run_start",
    "search",
    "spark_delta",
    "spark_latency",
    "spark_read",
    "spark_tasks",
    "task_memory",
    "two_day",
    "watched",
}

CHEAP = {"log_append", "windows", "decode"}
"""The log, the client, the decoder: some seconds each, so that what all benchmarks share stays tried."""

NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
NAMES = [name for name in NAMES if name != "figures"]
PROGRAM = """
import importlib, json, sys
import benchmarks._peers
from databus.cli import main
name, scale, smaller = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
benchmarks._peers.built_go_mysql = lambda: (None, "not built for a run this small")
benchmarks._peers.PEER_S_MAX = 2.0
module = importlib.import_module(f"benchmarks.{name}")
for constant, value in smaller.items():
    setattr(module, constant, value)
sys.argv = ["databus", "bench", name.replace("_", "-"), "--scale", scale, "--json"]
main()
"""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    is_spark, is_cheap = name in SPARK, name in CHEAP
    return [pytest.mark.spark] * is_spark + [pytest.mark.nightly] * (not is_cheap)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_has_the_constants_that_its_small_run_sets(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    assert [constant for constant in SMALLER.get(name, {}) if not hasattr(module, constant)] == []


@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in NAMES])
def test_a_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    if "KIND" in (ROOT / "benchmarks" / f"{name}.py").read_text() or name in {"decode", "mysql_snapshot"}:
        try:
            open_server(KINDS[1], tmp_path / "unused").prepare()
        except ServerMissing as missing:
            pytest.skip(str(missing))  # which says why it cannot be had here
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(SCALE), json.dumps(SMALLER.get(name, {}))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=400,  # ends what hangs: beside others on a slow machine one takes minutes
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = [json.loads(line) for line in done.stdout.splitlines()]  # also where a pipeline logs in that process
    assert {each["bench"] for each in figures} == {name.replace("_", "-")}
    assert not [each for each in figures if math.isnan(each["value"])]
