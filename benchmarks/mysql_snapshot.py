"""Reading a table of a MySQL or MariaDB server in chunks, into the relay's log and without one behind it.

    python -m benchmarks.mysql_snapshot [SCALE] [KIND]

The server runs on the same cores. Into the log: in a process of its own, from its log-in to the last row fsynced. Peers
in the same run, on the same rows: a client that reads them over the same protocol and drops them, and PyMySQL's
streaming cursor. Scale 1 is ten million rows of about 200 bytes.
"""

import contextlib
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pymysql.cursors import SSCursor

from benchmarks._mysql import source_of
from benchmarks._peers import run
from benchmarks.figures import Figure, median_of
from databus.sources.mysql.rows import describe
from databus.sources.mysql.snapshot import MysqlSnapshotReader, TableTask
from databus.sources.mysql.tables import ServerKind as Dialect
from databus.sources.mysql.tables import read_catalogue
from databus.sources.snapshots import Placed
from databus.testing.servers import Server, open_server

ROWS = 10_000_000
RUNS = 3
CURSOR_ROWS = 500_000
TABLE = """
CREATE TABLE bench.orders (
  id BIGINT PRIMARY KEY, customer_id INT NOT NULL, product_id INT NOT NULL, quantity INT NOT NULL,
  total DECIMAL(12, 2) NOT NULL, status VARCHAR(20) NOT NULL, city VARCHAR(60), placed_at DATETIME(6) NOT NULL,
  changed_at TIMESTAMP NOT NULL, note TEXT
) DEFAULT CHARSET utf8mb4
"""
FIRST = """
INSERT INTO bench.orders VALUES (1, 17, 23, 3, 1234.56, 'placed', 'S\u00e3o Paulo', '2026-11-21 20:33:40.123456',
  '2026-11-21 20:33:40', 'the quick brown fox jumps over a lazy dog while wizards vex judges')
"""
DOUBLE = """
INSERT INTO bench.orders SELECT id + {rows}, (id * 7919) % 100000, (id * 31) % 5000, 1 + id % 9,
  (id * 104729 % 10000000) / 100,
  ELT(1 + id % 3, 'placed', 'paid', 'shipped'), ELT(1 + id % 4, 'Oslo', '\u0141\u00f3d\u017a', '\u6771\u4eac', NULL),
  placed_at + INTERVAL id % 86400 SECOND, changed_at, REPEAT('the quick brown fox ', 1 + id % 9)
FROM bench.orders WHERE id <= {upto}
"""


def _fill(server: Server, rows: int) -> None:
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(TABLE)
        cursor.execute(FIRST)
        held = 1
        while held < rows:
            more = min(held, rows - held, 250_000)
            for start in range(0, min(held, rows - held), more):
                upto = min(start + more, held, rows - held)
                cursor.execute(DOUBLE.format(rows=held, upto=upto) + f" AND id > {start}")
            held += min(held, rows - held)
    connection.close()


def _task(server: Server) -> TableTask:
    version = tuple(int(part) for part in server.version.split("-")[0].split(".")[:3])
    found = read_catalogue(server.query, Dialect(server.flavor, version), tables=[("bench", "orders")])
    (definition,) = found.definitions()
    return TableTask(definition, describe(definition))


def _ours(server: Server, rows: int) -> float:
    task = _task(server)
    file, offset = server.position()
    position: dict[str, Any] = {"file": file, "offset": offset, "gtids": str(server.gtids()).replace("\n", "")}
    reader = MysqlSnapshotReader(server.connect)
    reader.advance(0, position)
    began_s = time.perf_counter()
    reader.begin(task)
    count, is_last = 0, False
    while not is_last:
        found = reader.take(60)
        if not isinstance(found, Placed):
            raise RuntimeError(f"no chunk came: {reader.progress()}")  # noqa: TRY004 - nothing came
        count, is_last = count + found.rows, found.is_last
    seconds = time.perf_counter() - began_s
    reader.close()
    if count != rows:
        raise RuntimeError(f"{count} rows of {rows} were read")
    return seconds


def _into_log(server: Server, rows: int) -> float:
    source = {**source_of(server), "snapshot": "initial", "start": "latest"}
    told = {"source": source, "rows": rows, "workload": "snapshot", "bytes": 0}
    reading = run("databus", [sys.executable, "-m", "benchmarks._mysql_capture"], told)
    if reading.missing:
        raise RuntimeError(reading.missing)
    return reading.seconds


def _dropped(server: Server, rows: int) -> float:
    """Prepared and executed as ours, then read into one buffer until its end has passed."""
    connection: Any = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET character_set_results = NULL")
    began_s = time.perf_counter()
    connection._execute_command(0x16, f"SELECT * FROM bench.orders LIMIT {rows}")
    statement, columns, _ = struct.unpack_from("<IHH", connection._read_packet().get_all_data(), 1)
    for _ in range(columns + 1):
        connection._read_packet()
    connection._execute_command(0x17, struct.pack("<IBI", statement, 0, 1))
    buffer = np.zeros(1 << 20, np.uint8).data
    tail = b""
    while not (tail[-9:-6] == b"\x05\x00\x00" and tail[-5:-4] == b"\xfe"):
        count = connection._sock.recv_into(buffer)
        tail = (tail + bytes(buffer[max(count - 9, 0) : count]))[-9:]
    seconds = time.perf_counter() - began_s
    connection.close()
    return seconds


def _cursor(server: Server, rows: int) -> float:
    connection = server.connect(cursorclass=SSCursor)
    began_s = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM bench.orders LIMIT {rows}")
        while cursor.fetchmany(1_000):
            pass
    seconds = time.perf_counter() - began_s
    connection.close()
    return seconds


def _cpu_of(measure: Callable[[], float]) -> float:
    began_s = time.process_time()
    measure()
    return time.process_time() - began_s


def figures(scale: float = 1.0, kind: str = "mysql-8.0") -> Iterator[Figure]:
    """See this module's first lines."""
    rows = max(int(ROWS * scale), 1_000)
    lines = ("innodb-buffer-pool-size=3G", "max-binlog-size=1G")
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()))
        server = stack.enter_context(open_server(kind, Path(name), lines=lines))
        _fill(server, rows)
        _ours(server, rows)  # the kernels are compiled, the table is in memory
        ours = rows / median_of(RUNS, lambda: _ours(server, rows))
        logged = rows / median_of(RUNS, lambda: _into_log(server, rows))
        dropped = rows / median_of(RUNS, lambda: _dropped(server, rows))
        few = min(rows, CURSOR_ROWS)
        cursor = few / median_of(RUNS, lambda: _cursor(server, few))
        yield Figure("snapshot.into_log", logged, "rows/s", "a client that drops them", dropped)
        yield Figure("snapshot.into_log_of_cursor", logged, "rows/s", "PyMySQL's streaming cursor", cursor)
        yield Figure("snapshot.read", ours, "rows/s", "a client that drops them", dropped)
        yield Figure("snapshot.read_of_cursor", ours, "rows/s", "PyMySQL's streaming cursor", cursor)
        yield Figure("snapshot.cpu", rows / _cpu_of(lambda: _ours(server, rows)), "rows/s of our processor time")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    for figure in figures(float(arguments[0]) if arguments else 1.0, *arguments[1:2]):
        ratio = "" if figure.ratio is None else f"  {figure.peer}: {figure.peer_value:,.0f}, ratio {figure.ratio:.2f}"
        print(f"{figure.name:30} {figure.value:12,.0f} {figure.unit}{ratio}")
