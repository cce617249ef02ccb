"""Others that read a server's log, each in a process of its own: `python -m benchmarks._mysql_peers NAME`.

Each is told of the backlog as JSON on its standard input, counts row changes, and prints {"rows", "seconds", "cpu_s",
"bytes"} as JSON: from its first row to its last, except the bare dump, which is measured from the connection on. It
stops after `seconds_max`: what it has done by then is its part of the backlog. Nobody encrypts.
"""

import json
import logging
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

Told = dict[str, Any]

DUMP = 0x12
SEND_ANNOTATIONS = 0x02  # without it MariaDB leaves events out, and fewer bytes come than the log has
SILENT_S_MAX = 10.0
RECEIVE_BYTES = 1 << 20
SERVER_ID = 4_000_000


class Count:
    """Rows as they come; ends itself."""

    def __init__(self, told: Told) -> None:
        self.rows = 0
        self._told = told
        self._first: tuple[float, float, int] | None = None
        self._last = (0.0, 0.0, 0)

    def add(self, rows: int) -> bool:
        """Take note of a batch; whether to go on. The first batch starts the clock and does not count."""
        now, cpu = time.perf_counter(), time.process_time()
        self.rows += rows
        if self._first is None:
            self._first = (now, cpu, self.rows)
        self._last = (now, cpu, self.rows)
        return self.rows < self._told["rows"] and now - self._first[0] < self._told["seconds_max"]

    def result(self) -> Told:
        if self._first is None or self._last[2] == self._first[2]:
            return {"error": f"{self.rows} rows came"}
        (began, cpu_before, before), (ended, cpu, rows) = self._first, self._last
        count = rows - before
        share = count / self._told["rows"]
        seconds = ended - began
        return {"rows": count, "seconds": seconds, "cpu_s": cpu - cpu_before, "bytes": share * self._told["bytes"]}


def _login(told: Told) -> dict[str, Any]:
    return {name: told[name] for name in ("host", "port", "user", "password")}


def bare_dump(told: Told) -> Told:
    """COM_BINLOG_DUMP, received into one buffer that nobody looks at."""
    import pymysql

    connection = pymysql.connect(**_login(told), autocommit=True, ssl_disabled=True)
    cursor = connection.cursor()
    cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
    if told["flavor"] == "mariadb":
        cursor.execute("SET @mariadb_slave_capability = 4")
    sock = connection._sock
    sock.settimeout(SILENT_S_MAX)
    began, cpu = time.perf_counter(), time.process_time()
    flags = SEND_ANNOTATIONS if told["flavor"] == "mariadb" else 0
    payload = struct.pack("<BIHI", DUMP, told["offset"], flags, SERVER_ID) + told["file"].encode()
    sock.sendall(struct.pack("<I", len(payload))[:3] + b"\0" + payload)
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    received = 0
    while received < told["bytes"]:
        count = sock.recv_into(buffer)
        if not count:
            return {"error": f"the server closed the connection after {received} bytes"}
        received += count
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    connection._force_close()
    return {"rows": told["rows"], "seconds": seconds, "cpu_s": cpu_s, "bytes": told["bytes"]}


def mysql_replication(told: Told) -> Told:
    """BinLogStreamReader, every row of every event."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    count = Count(told)
    stream = BinLogStreamReader(
        connection_settings={**_login(told), "ssl_disabled": True},
        server_id=SERVER_ID,
        resume_stream=True,
        blocking=False,
        log_file=told["file"],
        log_pos=told["offset"],
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=["bench"],
        is_mariadb=told["flavor"] == "mariadb",
        enable_logging=False,
    )
    for event in stream:
        if not count.add(len(event.rows)):
            break
    stream.close()
    return count.result()


def mysql_event_stream(told: Told) -> Told:
    """CdcStream, an asynchronous iterator of events of one row."""
    import asyncio

    from mysql_event_stream import CdcStream

    count = Count(told)
    batch = 1_000

    async def follow() -> None:
        async with CdcStream(
            **_login(told),
            ssl_mode=0,
            allow_public_key_retrieval=True,
            server_id=SERVER_ID,
            start_binlog_file=told["file"],
            start_binlog_position=told["offset"],
            include_databases=["bench"],
        ) as stream:
            rows = 0
            async for _ in stream:
                rows += 1
                if rows % batch == 0 and not count.add(batch):
                    return

    asyncio.run(follow())
    return count.result()


PEERS: dict[str, Callable[[Told], Told]] = {
    "bare dump": bare_dump,
    "mysql-replication": mysql_replication,
    "mysql-event-stream": mysql_event_stream,
}


def main() -> None:
    logging.disable(logging.CRITICAL)
    told = json.load(sys.stdin)
    out = sys.stdout
    sys.stdout = sys.stderr
    try:
        result = PEERS[sys.argv[1]](told)
    except Exception as error:  # noqa: BLE001 - whatever a peer does is told, and the others are measured
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), file=out, flush=True)
    os._exit(0)  # some leave threads behind that nobody can end


if __name__ == "__main__":
    main()
