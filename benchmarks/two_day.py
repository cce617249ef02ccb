"""Two days of load as one backlog: how long until they are in the log, and how fast the mirror behind it follows.

The load is the seed's own figure, 1,500 rows a second on average: 259 million rows. A part of it is measured, on a
real server's log, and the rest is extrapolated from the part's rate; the output says how much was measured.

    python -m benchmarks.two_day
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks._mysql import WORKLOADS, Backlog, backlog, state_of, to_json
from benchmarks._peers import run
from benchmarks.figures import Figure
from databus.link import RelayClient
from databus.testing import RelayProcess

KIND = "mysql-8.0"
ROWS_PER_S = 1_500
DAYS = 2
CAPTURE_MINUTES_MAX = 10.0
MIRROR_ROWS = 1_000_000
WAIT_S_MAX = 1_800.0
STEP_S = 0.1
PIPELINE = """\
name: two-day
relay: {{url: "{url}"}}
inputs:
  bench: {{type: databus, tables: [bench/bench.orders]}}
outputs:
  copy: {{type: delta, from: bench, mode: mirror, path: lake}}
"""


def _mirror_rows_per_s(found: Backlog) -> float:
    """From the start of a pipeline's run over a log that holds everything, to its end; Spark's start included."""
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name,
        RelayProcess(Path(name), {"bench": found.source}, log={"retention_bytes_max": 1 << 50}) as relay,
    ):
        client = RelayClient(relay.url)
        deadline = time.monotonic() + WAIT_S_MAX
        while client.range("bench", client.position("bench", start="beginning"), bytes_max=1 << 50).rows < found.rows:
            state_of(relay.url)
            if time.monotonic() > deadline:
                raise RuntimeError(f"the relay did not capture everything:\n{relay.log_end()}")
            time.sleep(STEP_S)
        path = Path(name) / "databus.yml"
        path.write_text(PIPELINE.format(url=relay.url))
        began = time.perf_counter()
        command = [sys.executable, "-m", "databus.cli", "run", str(path), "--once", "--log-format", "json"]
        done = subprocess.run(command, cwd=name, capture_output=True, text=True, check=False, timeout=WAIT_S_MAX)
        if done.returncode != 0:
            raise RuntimeError((done.stdout + done.stderr)[-2000:])
        return found.rows / (time.perf_counter() - began)


def figures(scale: float = 1.0, server: str = KIND) -> Iterator[Figure]:
    total = ROWS_PER_S * 86_400 * DAYS
    with backlog(server, "orders", int(WORKLOADS["orders"].rows * scale)) as found:
        reading = run("databus", [sys.executable, "-m", "benchmarks._mysql_capture"], to_json(found))
        if reading.missing:
            raise RuntimeError(reading.missing)
        what = f"{total / 1e6:,.0f} million rows, extrapolated from {found.rows:,} ({found.rows / total:.1%})"
        minutes = total / reading.rows_per_s / 60
        yield Figure(f"into the log: {what}", minutes, "minutes", "at most", CAPTURE_MINUTES_MAX)
        yield Figure("that is", reading.rows_per_s, "rows/s")
    with backlog(server, "orders", int(MIRROR_ROWS * scale)) as found:
        rate = _mirror_rows_per_s(found)
        yield Figure(f"mirror to Delta, {found.rows:,} rows, Spark's start included", rate, "rows/s")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
