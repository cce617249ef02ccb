"""A live server: one-row transactions at several rates, from the row's own statement to a consumer's callback.

Several connections call a procedure that commits one row after the other, so that what limits is the server, not the
writer; the server's clock is in the row. First the writer alone, as quickly as it can; then the relay and one consumer
beside it at each rate, and as quickly as it can: called for each window, and for batches of the windows that wait; then
go-mysql on the same load, which only decodes. The server does not wait for its disk (`sync_binlog=0`,
`innodb_flush_log_at_trx_commit=0`), as it would not with a better one.

The lag is from the row's INSERT, commit included, to the callback, over the second half of each run. It grows where
the last rows wait `GROWTH_MS` longer than those in the middle.

    databus bench live-mysql --server mariadb-10.11
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._mysql import wait_until_it_captures
from benchmarks._peers import GO_MYSQL, built_go_mysql
from benchmarks.figures import Figure
from databus.client import Client, ClientConfig, Consumer
from databus.testing import RelayProcess
from databus.testing.servers import Server, open_server

KIND = "mysql-8.0"
RATES = (1_000, 5_000, 10_000, 20_000)
SHARE = 0.7  # of the rate that the writer reaches alone, at which nothing may grow
SECONDS = 8.0
BATCH_ROWS = 10_000
ALONE_S = 3.0
SHORT = 0.1  # below it: one rate, to see that it runs
WRITERS = 4
STEP_S = 0.01  # what is due since the last step is one call
GROWTH_MS = 250.0
DRAIN_S_MAX = 60.0
P99_MS_MAX = 50.0
LINES = ("sync-binlog=0", "innodb-flush-log-at-trx-commit=0", "innodb-buffer-pool-size=256M")
PROCEDURE = """CREATE PROCEDURE bench.tick(IN count INT) BEGIN
  WHILE count > 0 DO
    INSERT INTO ticks (sent_us, note) VALUES (UNIX_TIMESTAMP(NOW(6)) * 1000000, 'a row like many others');
    SET count = count - 1;
  END WHILE;
END"""


@dataclass(frozen=True)
class Lag:
    """What one run showed. rate: rows written a second. cpu_ms: of the reader's process, a transaction."""

    rate: float
    p50_ms: float
    p99_ms: float
    first_ms: float
    end_ms: float
    cpu_ms: float

    @property
    def grows(self) -> bool:
        return self.end_ms > self.first_ms + GROWTH_MS

    @classmethod
    def of(cls, lags_ms: NDArray[np.float64], rate: float, cpu_s: float) -> "Lag":
        """lags_ms: of each row, in order."""
        quarter = len(lags_ms) // 4
        half, last = lags_ms[2 * quarter :], lags_ms[-max(quarter // 2, 1) :]
        p50, p99 = (float(np.percentile(half, percent)) for percent in (50, 99))
        first_ms = min(float(np.median(lags_ms[at : at + quarter])) for at in (0, quarter))
        return cls(rate, p50, p99, first_ms, float(np.median(last)), cpu_s * 1e3 / len(lags_ms))


class _Clockwatcher(Consumer):
    def __init__(self) -> None:
        self.rows = 0
        self.lags_us: list[NDArray[np.int64]] = []

    def on_data_events(self, changes: Any) -> None:
        now_us = time.time_ns() // 1000
        sent_us = changes.batch.column("sent_us").to_numpy()
        self.lags_us.append(now_us - sent_us)
        self.rows += len(sent_us)


def _write(login: Mapping[str, Any], rate: float, seconds: float) -> tuple[int, float]:
    """Has the server commit rows, at a rate (0: as quickly as it can); returns how many, and the seconds it took."""
    began = time.perf_counter() + 0.2
    with ThreadPoolExecutor(WRITERS) as pool:
        counts = list(pool.map(lambda _: _write_some(login, rate / WRITERS, began, seconds), range(WRITERS)))
    return sum(counts), time.perf_counter() - began


def _write_some(login: Mapping[str, Any], rate: float, began: float, seconds: float) -> int:
    import pymysql

    done = 0
    with closing(pymysql.connect(**login, database="bench", autocommit=True, ssl_disabled=True)) as connection:
        cursor = connection.cursor()
        while True:
            since = time.perf_counter() - began
            if since >= seconds:
                return done
            due = int(max(since, 0.0) * rate) - done if rate else (since >= 0) * 200
            if due > 0:
                cursor.execute(f"CALL tick({due})")
                done += due
            if rate or since < 0:
                time.sleep(STEP_S)


def _writing(server: Server, rate: float, seconds: float) -> tuple[int, float]:
    """The writer, in a process of its own."""
    login = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_write, (login, rate, seconds))


def _databus(server: Server, relay: RelayProcess, rate: float, seconds: float, batch_rows_max: int = 0) -> Lag:
    consumer = _Clockwatcher()
    config = ClientConfig(batch_rows_max=batch_rows_max)
    client = Client(relay.url, consumer, sources=["bench/bench.ticks"], start="latest", config=config)
    client.start()
    try:
        _wait(lambda: all(each.connections for each in client.status().values()), "a connection", lambda: "none")
        cpu_before = _cpu_s_of(relay.pid)
        rows, took_s = _writing(server, rate, seconds)
        _wait(lambda: consumer.rows >= rows, f"{rows:,} rows", lambda: f"{consumer.rows:,} came")
        cpu_s = _cpu_s_of(relay.pid) - cpu_before
    finally:
        client.stop()
    return Lag.of(np.concatenate(consumer.lags_us) / 1e3, rows / took_s, cpu_s)


def _go_mysql(program: Path, server: Server, rate: float, seconds: float) -> Lag:
    """It reads until a row says so, which is the last one."""
    file, offset = server.position()
    told = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "flavor": server.flavor,
        "file": file,
        "offset": offset,
        "live": True,
    }
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None  # noqa: S101 - for mypy
        assert reader.stdout is not None  # noqa: S101 - as above
        reader.stdin.write(json.dumps(told))
        reader.stdin.close()
        said = reader.stdout.readline()  # that it reads, or why not
        if "error" not in said:
            rows, took_s = _writing(server, rate, seconds)
            server.run("INSERT INTO bench.ticks (sent_us, note) VALUES (0, 'end')")
            said = reader.stdout.readline()
    answer = json.loads(said)
    if "error" in answer:
        raise RuntimeError(f"go-mysql: {answer['error']}")
    return Lag.of(np.array(answer["lags_us"]) / 1e3, rows / took_s, answer["cpu_s"])


def _cpu_s_of(pid: int) -> float:
    """What a process has used, all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait(is_done: Callable[[], bool], what: str, told: Callable[[], str]) -> None:
    deadline = time.monotonic() + DRAIN_S_MAX
    while not is_done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {DRAIN_S_MAX:.0f} s for {what}: {told()}")
        time.sleep(0.01)


def figures(scale: float = 1.0, server: str = KIND) -> Iterator[Figure]:
    seconds = max(SECONDS * scale, 0.5)
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name,
        open_server(server, Path(name) / "server", lines=LINES) as found,
    ):
        found.run(
            "CREATE DATABASE bench",
            "CREATE TABLE bench.ticks (id INT PRIMARY KEY AUTO_INCREMENT, sent_us BIGINT NOT NULL, note VARCHAR(60))",
            PROCEDURE,
        )
        rows, took_s = _writing(found, 0, min(ALONE_S, seconds))
        alone = rows / took_s
        yield Figure(f"the writer alone, {WRITERS} connections, {server}", alone, "transactions/s")
        rates = sorted({rate for rate in RATES if rate < SHARE * alone} | {int(SHARE * alone)})
        if scale < SHORT:
            rates = rates[:1]
        yield from _of_databus(found, Path(name), rates, seconds, alone)
        program, missing = built_go_mysql()
        if program is None:
            yield Figure(f"go-mysql {GO_MYSQL}: not measured: {missing}", 0.0, "")
            return
        for rate in (*rates, 0) if len(rates) > 1 else rates:
            yield from _told(f"go-mysql {GO_MYSQL}", rate, _go_mysql(program, found, rate, seconds))


def _of_databus(server: Server, folder: Path, rates: list[int], seconds: float, alone: float) -> Iterator[Figure]:
    source = {
        "type": "mysql",
        "hosts": [f"{server.host}:{server.port}"],
        "user": server.capture_user,
        "password": server.capture_password,
        "tables": ["bench.ticks"],
        "snapshot": "never",
    }
    how = {"databus": 0, "databus, in batches": BATCH_ROWS}
    most = dict.fromkeys(how, 0.0)
    with RelayProcess(folder, {"bench": source}) as relay:
        wait_until_it_captures(relay)
        _databus(server, relay, 200, 1.0)  # what is loaded with the first rows is no lag of the others
        for rate in (*rates, 0) if len(rates) > 1 else rates:
            for who, batch_rows_max in how.items():
                lag = _databus(server, relay, rate, seconds, batch_rows_max)
                yield from _told(who, rate, lag)
                most[who] = most[who] if lag.grows else max(most[who], lag.rate)
    for who, highest in most.items():
        yield Figure(
            f"{who}, the highest rate at which the lag does not grow", highest, "transactions/s", "alone", alone
        )


def _told(who: str, rate: int, lag: Lag) -> Iterator[Figure]:
    """rate: as asked for; 0: as quickly as the writer can."""
    grows = ", and it GROWS" if lag.grows else ""
    what = f"{who} at {lag.rate:,.0f} transactions/s{'' if rate else ' (all that the writer can)'}"
    limit = ("at most", P99_MS_MAX) if who.startswith("databus") and rate in RATES[:2] else (None, None)
    yield Figure(f"{what}, p50", lag.p50_ms, "ms")
    yield Figure(f"{what}, p99", lag.p99_ms, "ms", *limit)
    yield Figure(f"{what}, lag of the last rows{grows}", lag.end_ms, "ms")
    yield Figure(f"{what}, CPU a transaction", lag.cpu_ms, "ms")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
