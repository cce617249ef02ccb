"""`databus trace`: what became of a row, looked for in a long log, by the command from its start to its end.

The log is of a day, with as many bytes in each hour. All but the last hour is one group of rows of other keys, which
gets new numbers each time it is appended. The last hour has inserts of rows of keys of their own; the key in question
is in its middle. The outputs have written nothing yet: what is measured is the search, not the targets.

    python -m benchmarks.trace
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks._changes import TABLE, insert_groups
from benchmarks.figures import Figure, median_of
from benchmarks.relay import frames_of, numbered
from benchmarks.spark_delta import CONFIG
from databus.log import Log, LogConfig
from databus.sources.mock import MockConfig, MockSource
from databus.testing import RelayProcess
from databus.wire import encode_group

LOG_BYTES = 5_000_000_000
HOURS = 24
ROW_BYTES = 287  # in the log
ROWS_A_GROUP = 10_000
RUNS = 3
TRACE_S_MAX = 10.0
KEY_FIRST = 1_000_000_000
PIPELINE = """
name: benchmark
relay: {{url: "{url}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"]}}}}
filters: {{few: {{type: where, from: shop, where: "source = 0"}}}}
outputs:
  copy: {{type: delta, from: shop, mode: mirror, path: copy}}
  few: {{type: delta, from: few, mode: history, path: few}}
"""


def make_log(folder: Path, bytes_total: int) -> tuple[int, int]:
    """The log; returns its last transaction, and the key to look for."""
    source, now_us = MockSource("shop", MockConfig(**CONFIG)), time.time_ns() // 1000
    rows = max(int(bytes_total / HOURS / ROW_BYTES), 2 * ROWS_A_GROUP)
    config = LogConfig(retention_bytes_max=1 << 50)
    with Log.open(folder, physical="shop", identity=source.identify(), config=config) as log:
        log.schemas.number_of(TABLE)
        (group,) = insert_groups(0, ROWS_A_GROUP, 1, ROWS_A_GROUP)
        encoded = encode_group(group, log.schemas, now_us)
        frames, scn = frames_of(encoded), 0
        groups = max(int(bytes_total * (HOURS - 1) / HOURS / encoded.bytes_total), 1)
        for number in range(groups):
            ago_us = round((HOURS - (HOURS - 1) * number / groups) * 3_600e6)
            scn += 1
            log.append_encoded(numbered(encoded, frames, scn, 1, now_us - ago_us))
        for each in insert_groups(KEY_FIRST, rows, scn + 1, ROWS_A_GROUP):
            scn = each.commit.scn
            log.append(replace(each, commit=replace(each.commit, commit_us=time.time_ns() // 1000)))
    return scn, KEY_FIRST + rows // 2


def _trace_s(folder: Path, key: int, since: str) -> float:
    command = [sys.executable, "-m", "databus.cli", "trace", "databus.yml", TABLE.source, f"id={key}"]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--since", since, "--json"], cwd=folder, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    found = json.loads(done.stdout) if done.stdout else []
    if done.returncode or [each["after"]["id"] for each in found] != [key]:
        raise RuntimeError(f"it was not found: {done.stdout[-500:]} {done.stderr[-1000:]}")
    return seconds


def figures(scale: float = 1.0) -> Iterator[Figure]:
    """See this module's first lines."""
    log_bytes = int(LOG_BYTES * scale)
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        total, key = make_log(folder / "relay" / "shop", log_bytes)
        sources = {"shop": {"type": "mock", "transactions_total": total, **CONFIG}}
        with RelayProcess(folder, sources, log={"retention_bytes_max": 1 << 50}) as relay:
            (folder / "databus.yml").write_text(PIPELINE.format(url=relay.url))
            what = f"trace of a key in a log of {log_bytes / 1e9:.1f} GB, of {HOURS} h"
            recent = median_of(RUNS, lambda: _trace_s(folder, key, "1h"))
            yield Figure(f"{what}: in its last hour", recent, "s", "at most", TRACE_S_MAX)
            yield Figure(f"{what}: in all of it", median_of(RUNS, lambda: _trace_s(folder, key, "earliest")), "s")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
