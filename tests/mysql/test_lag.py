"""How many bytes of a server's log are not captured: none at its end, more while nobody polls, as in a pause."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from databus.sources import Source, SourceLag
from databus.sources.mysql import BinlogConfig, BinlogSource, MysqlSource
from databus.testing._source_suite import Tape
from databus.testing.servers import Server
from tests.mysql.following import ARRIVE_S_MAX, config_of

ROWS, ROW_BYTES = 50, 4_000


def lag_when(source: Source, wanted: Callable[[SourceLag], bool], *, tape: Tape | None = None) -> SourceLag:
    """The lag once it is as wanted. tape: poll into it meanwhile, as the capture loop does; else it is paused."""
    end = time.monotonic() + ARRIVE_S_MAX
    while not wanted(lag := source.lag()):
        assert time.monotonic() < end, lag
        group = None if tape is None else source.poll(20)
        if group is None:
            time.sleep(0.02)
        elif tape is not None:
            tape.append(group)
    return lag


def fill(server: Server, database: str) -> None:
    server.run(*(f"INSERT INTO {database}.t (v) VALUES (REPEAT('x', {ROW_BYTES}))" for _ in range(ROWS)))


def test_bytes_that_wait_in_a_server_s_log_are_counted_also_while_capture_is_paused(
    server: Server, database: str, tmp_path: Path
) -> None:
    server.run(f"CREATE TABLE {database}.t (id INT AUTO_INCREMENT PRIMARY KEY, v TEXT)")
    source, tape = MysqlSource("shop", config_of(database, server)), Tape()
    try:
        source.identify()
        source.tables()
        source.start(replace(tape.resume(), folder=tmp_path))
        lag_when(source, lambda lag: lag.bytes == 0, tape=tape)
        fill(server, database)
        server.run("FLUSH BINARY LOGS")
        fill(server, database)
        behind = lag_when(source, lambda lag: (lag.bytes or 0) >= 2 * ROWS * ROW_BYTES)
        assert behind.behind_ms is not None
        assert behind.behind_ms > 0
        lag_when(source, lambda lag: (lag.bytes, lag.behind_ms) == (0, 0), tape=tape)
    finally:
        source.close()


def test_bytes_of_log_files_that_are_not_read_are_counted(server: Server, database: str, tmp_path: Path) -> None:
    server.run("FLUSH BINARY LOGS")
    first = server.position()[0]
    server.run(f"CREATE TABLE {database}.t (id INT AUTO_INCREMENT PRIMARY KEY, v TEXT)")
    fill(server, database)
    server.run("FLUSH BINARY LOGS")
    logs = tmp_path / "logs"
    logs.mkdir()
    for each in server.binlogs():
        if first <= each.name:
            (logs / each.name).write_bytes(each.read_bytes())
    config = BinlogConfig(path=str(logs), tables=[f"{database}.*"], database_charsets={database: "utf8mb4"})
    source, tape = BinlogSource("old", config), Tape()
    try:
        source.identify()
        source.tables()
        source.start(replace(tape.resume(), folder=tmp_path / "state"))
        assert (source.lag().bytes or 0) >= ROWS * ROW_BYTES
        lag_when(source, lambda lag: lag.bytes == 0, tape=tape)
    finally:
        source.close()
