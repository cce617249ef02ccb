"""The relay's capture of a backlog into its log, in a process of its own: `python -m benchmarks._mysql_capture`.

Is told of the backlog and answers as a peer is and does (see `_mysql_peers`). A first capture into another log, stopped
at its first groups, loads what is loaded once a process; the measured one is timed from its start, log-in included, to
the last row published and fsynced.
"""

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks._peers import Watch
from databus.log import LogConfig
from databus.operate import configure_logs
from databus.relay._capture import Capture
from databus.relay._capture_state import State
from databus.relay._config import CaptureConfig
from databus.relay._copying import LogCopy
from databus.sources import RelayHop, open_source, parse_source

STEP_S = 0.005
SILENT_S_MAX = 120.0


def capture(source: dict[str, Any], folder: Path, rows: int) -> tuple[float, float, int]:
    """Capture until so many rows are durable. Returns seconds, CPU seconds and the log's bytes."""
    published = threading.Event()
    begun = Capture(
        "bench",
        parse_source(source, "bench"),
        folder,
        open_source=open_source,
        options=CaptureConfig(),
        log_config=LogConfig(retention_bytes_max=1 << 50),
        published=published.set,
        log_ended=published.set,
        copy=LogCopy(lambda: RelayHop("bench", "")),
    )
    began, cpu = time.perf_counter(), time.process_time()
    begun.start()
    seen, seen_at = 0, began
    while begun.counters.rows < rows or begun.log is None or begun.log.head().unsynced_bytes:
        published.wait(STEP_S)
        published.clear()
        now = time.perf_counter()
        if begun.counters.rows != seen:
            seen, seen_at = begun.counters.rows, now
        if begun.status.state is State.SUSPENDED_ON_ERROR or now - seen_at > SILENT_S_MAX:
            raise RuntimeError(f"{begun.counters.rows:,} of {rows:,} rows: {begun.describe()}")
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    size = begun.counters.bytes
    begun.stop()
    return seconds, cpu_s, size


def main() -> None:
    configure_logs(level="error", style="text")
    told = json.load(sys.stdin)
    images = told["rows"] * (2 if told["workload"] == "updates" else 1)
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        capture(told["source"], Path(name) / "warm", 1)
        watch = Watch(os.getpid())
        watch.start()
        seconds, cpu_s, log_bytes = capture(told["source"], Path(name) / "log", images)
        anon_mb = watch.end()
    answer = {"rows": told["rows"], "seconds": seconds, "cpu_s": cpu_s, "bytes": told["bytes"], "anon_mb": anon_mb}
    print(json.dumps(answer), flush=True)
    print(f"log of {log_bytes / 1e6:,.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
