"""From the relay's start to its first change: with an empty cache of compiled kernels, as the first time on a machine,
and later.

That is the first row that the relay publishes: one that stands in the table, as a first start begins with them, or
one of the server's log, where there is no snapshot. The table has a column of JSON, whose kernel only the log needs.

    python -m benchmarks.start
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks._mysql import source_of, state_of
from benchmarks.figures import Figure, median_of
from databus.core import DatabusError
from databus.link import RelayClient
from databus.testing import RelayProcess
from databus.testing.servers import Server, open_server

KIND = "mysql-8.0"
STARTS = 5
BEGINS_COLD = True  # else the first start finds what this machine has compiled
FIRST_S_MAX, LATER_S_MAX = 15.0, 1.0
WAIT_S_MAX = 300.0
STEP_S = 0.005


def _start_s(server: Server, cache: str, *, reads: bool) -> float:
    """Seconds from the process's start to the first row in a new log. cache: where Numba keeps what it compiled.

    reads: a row of the table, not of the server's log.
    """
    how = {"start": "latest", "snapshot": "initial"} if reads else {"start": "earliest", "snapshot": "never"}
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        relay = RelayProcess(Path(name), {"bench": {**source_of(server), **how}})
        relay.env["NUMBA_CACHE_DIR"] = cache
        began = time.perf_counter()
        with relay:
            client = RelayClient(relay.url)
            while not _has_rows(client):
                state_of(relay.url)
                if time.perf_counter() - began > WAIT_S_MAX:
                    raise RuntimeError(f"nothing came within {WAIT_S_MAX:.0f} s:\n{relay.log_end()}")
                time.sleep(STEP_S)
            return time.perf_counter() - began


def _has_rows(client: RelayClient) -> bool:
    try:
        return client.range("bench", client.position("bench", start="beginning")).rows > 0
    except DatabusError:
        return False  # its log is not open yet


def figures(scale: float = 1.0, server: str = KIND) -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name,
        open_server(server, Path(name) / "server") as found,
    ):
        found.run(
            "CREATE DATABASE bench",
            "CREATE TABLE bench.t (id INT PRIMARY KEY, name VARCHAR(40), at DATETIME(6), body JSON)",
            """INSERT INTO bench.t VALUES (1, 'Åse', '2026-11-21 10:00:00.5', '{"a": [1, 2.5, null]}')""",
        )
        for reads, what in ((True, "a row of the table"), (False, "a row of the log")):
            cache = str(Path(name) / f"cache-{reads}") if BEGINS_COLD else ""
            first = _start_s(found, cache, reads=reads)
            yield Figure(f"first start, nothing compiled yet, to {what}", first, "s", "at most", FIRST_S_MAX)
            starts = max(int(STARTS * scale), 1)
            later = median_of(starts, lambda: _start_s(found, cache, reads=reads))  # noqa: B023 - called at once
            yield Figure(f"later ones, median of {starts}, to {what}", later, "s", "at most", LATER_S_MAX)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
