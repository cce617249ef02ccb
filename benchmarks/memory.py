"""Anonymous memory of the relay, a process of its own, while it captures: a transaction of five million rows, a backlog
of ordinary ones, and large rows.

    python -m benchmarks.memory
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks._mysql import SERVER_LINES, WORKLOADS, backlog, source_of, state_of
from benchmarks._peers import Watch
from benchmarks.figures import Figure
from databus.link import RelayClient
from databus.testing import RelayProcess
from databus.testing.servers import Server, open_server

KIND = "mysql-8.0"
ROWS = 5_000_000
BACKLOG_ROWS = 1_000_000
LARGE_ROWS, LARGE_BYTES = 20, 30_000_000
ANON_MB_MAX = 400.0
ROWS_FACTOR_MAX = 4
WAIT_S_MAX = 1_200.0
STEP_S = 0.05
DOUBLINGS_FROM = 1_000


def _most_mb(source: dict[str, object], scn: int) -> float:
    """The most that a relay holds until it has published this SCN."""
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name,
        RelayProcess(Path(name), {"bench": source}, log={"retention_bytes_max": 1 << 50}) as relay,
    ):
        watch = Watch(relay.pid)
        watch.start()
        client = RelayClient(relay.url)
        deadline = time.monotonic() + WAIT_S_MAX
        while client.head("bench").published.scn < scn:
            state_of(relay.url)
            if time.monotonic() > deadline:
                raise RuntimeError(f"the relay did not come to SCN {scn}:\n{relay.log_end()}")
            time.sleep(STEP_S)
        return watch.end()


def _one_transaction(server: Server, rows: int) -> None:
    """Five million rows, doubled inside one transaction."""
    server.run(
        "CREATE DATABASE bench",
        "CREATE TABLE bench.large (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b DECIMAL(12, 2), c VARCHAR(200))",
    )
    first = min(DOUBLINGS_FROM, rows)
    with closing(server.connect(database="bench", autocommit=False)) as connection:
        cursor = connection.cursor()
        values = [(number, number / 100, f"row {number} " * 12) for number in range(first)]
        cursor.executemany("INSERT INTO large (a, b, c) VALUES (%s, %s, %s)", values)
        there = first
        while there < rows:
            more = min(there, rows - there)
            cursor.execute(f"INSERT INTO large (a, b, c) SELECT a, b, c FROM large LIMIT {more}")
            there += more
        connection.commit()


def _large_rows(server: Server, rows: int, size: int) -> None:
    server.run(
        "CREATE DATABASE IF NOT EXISTS bench", "CREATE TABLE bench.wide (id INT PRIMARY KEY, body LONGBLOB NOT NULL)"
    )
    for number in range(rows):
        server.query(f"INSERT INTO bench.wide VALUES (%s, REPEAT(CHAR({number + 65}), {size}))", number)


def _scn(server: Server) -> int:
    """How many transactions the server has logged: what its GTIDs count."""
    return sum(int(each.rpartition("-")[2].rpartition(":")[2]) for each in server.gtids().split(","))


def figures(scale: float = 1.0, server: str = KIND) -> Iterator[Figure]:
    rows = max(int(ROWS * scale), 10_000)
    lines = [each for each in SERVER_LINES if not each.startswith("expire")]
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        with open_server(server, Path(name) / "one", lines=lines) as found:
            _one_transaction(found, rows)
            most = _most_mb(source_of(found), _scn(found))
        yield Figure(f"one transaction of {rows:,} rows", most, "MB", "at most", ANON_MB_MAX)
        with open_server(server, Path(name) / "wide", lines=lines) as found:
            size = max(int(LARGE_BYTES * min(scale * 10, 1)), 100_000)
            _large_rows(found, LARGE_ROWS, size)
            most = _most_mb(source_of(found), _scn(found))
        limit = ANON_MB_MAX + ROWS_FACTOR_MAX * size / 1e6
        yield Figure(f"rows of {size / 1e6:,.0f} MB", most, "MB", "at most", limit)
    for workload in WORKLOADS:
        with backlog(server, workload, int(BACKLOG_ROWS * scale)) as ordinary:
            most = _most_mb(ordinary.source, _scn(ordinary.server))
        yield Figure(f"a backlog: {ordinary.describe()}", most, "MB", "at most", ANON_MB_MAX)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
