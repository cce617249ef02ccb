"""A process that forks children which append to a log until a crash point kills them.

Reads lines of JSON: {"folder", "point", "count", "acks"}; answers each with the child's wait status. A child opens the
log, goes on where it ends, and after each append writes to the file `acks` what is published and what is durable.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from databus.core import BUS_SEQ_MIN
from databus.log import LogConfig
from databus.wire import Group
from tests.log.make import group, open_log

CONFIG = LogConfig(
    segment_bytes_max=12 << 10,
    index_bytes_every=1024,
    retention_bytes_max=30 << 10,
    fsync_interval_ms=10,
    free_bytes_min=0,
)
TRANSACTIONS = 21


def transaction(scn: int) -> Iterator[Group]:
    """The groups of transaction `scn`: one to three parts, and after every fifth transaction a snapshot chunk."""
    parts, count = 1 + scn % 3, 1 + scn % 4
    for part in range(parts):
        yield group(scn, count=count, first_seq=1 + part * count, continues=part < parts - 1)
    if scn % 5 == 0:
        yield group(scn, count=2, first_seq=BUS_SEQ_MIN + scn, snapshot=True)


def _run(folder: Path, acks: int) -> None:
    log = open_log(folder, CONFIG)
    first = log.resume().scn + 1
    for scn in range(first, first + TRANSACTIONS):
        for each in transaction(scn):
            log.append(each)
            durable = log.durable()
            ack = {"published": log.head().published.pair, "durable": durable["cut"] if durable else 0}
            os.write(acks, json.dumps(ack).encode() + b"\n")
        if scn % 7 == 0:
            log.sync()
            log.retain()
    log.close()


def main() -> None:
    for line in sys.stdin:
        ask = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                os.environ["DATABUS_CRASH_AT"] = f"{ask['point']}:{ask['count']}"
                _run(Path(ask["folder"]), os.open(ask["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND))
            except BaseException:  # noqa: BLE001 - told by the status, the rest on stderr
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        sys.stdout.write(f"{os.waitpid(child, 0)[1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
