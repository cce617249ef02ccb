"""From the relay's start to its capture: with an empty cache of compiled kernels, as the first time on a machine, and
later.

Ready is when the source follows the server's log: its first transaction is published.

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


def _start_s(server: Server, cache: str) -> float:
    """Seconds from the process's start to the first row in a new log. cache: where Numba keeps what it compiled."""
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        relay = RelayProcess(Path(name), {"bench": source_of(server)})
        relay.env["NUMBA_CACHE_DIR"] = cache
        began = time.perf_counter()
        with relay:
            client = RelayClient(relay.url)
            while not _is_published(client):
                state_of(relay.url)
                if time.perf_counter() - began > WAIT_S_MAX:
                    raise RuntimeError(f"nothing came within {WAIT_S_MAX:.0f} s:\n{relay.log_end()}")
                time.sleep(STEP_S)
            return time.perf_counter() - began


def _is_published(client: RelayClient) -> bool:
    try:
        return client.head("bench").published.scn > 0
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
        cache = str(Path(name) / "cache") if BEGINS_COLD else ""
        first = _start_s(found, cache)
        yield Figure("first start, nothing compiled yet", first, "s", "at most", FIRST_S_MAX)
        starts = max(int(STARTS * scale), 1)
        later = median_of(starts, lambda: _start_s(found, cache))
        yield Figure(f"later ones, median of {starts}", later, "s", "at most", LATER_S_MAX)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
