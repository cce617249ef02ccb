"""The workload as a program: runs until its time is over or a signal stops it; prints what it did."""

import argparse
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from databus.testing.shop import MysqlWorkload, SqliteWorkload, Workload, connect, create_shop, create_shop_on


def _open(options: argparse.Namespace) -> Workload:
    dice = random.Random() if options.seed is None else random.Random(options.seed + 1)
    if options.path.suffix != ".cnf":
        if options.create:
            create_shop(options.path, seed=options.seed or 0)
        return SqliteWorkload(connect(options.path), dice)

    def connected() -> Any:
        import pymysql

        return pymysql.connect(read_default_file=str(options.path), charset="utf8mb4", autocommit=True)

    if options.create:
        create_shop_on(connected, seed=options.seed or 0)
    return MysqlWorkload(connected, dice)


def main(arguments: list[str] | None = None) -> int:
    """Keep the shop busy."""
    parser = argparse.ArgumentParser(prog="python -m databus.testing.shop", description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="a SQLite file, or a server's option file (*.cnf, section [client])")
    parser.add_argument("--create", action="store_true", help="make the tables and fill them first")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0, help="transactions a second at most")
    parser.add_argument("--seed", type=int, help="for the same transactions again; without it, each run is another")
    options = parser.parse_args(arguments)
    shop = _open(options)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    start = time.monotonic()
    while not stopping.is_set() and (now := time.monotonic() - start) < options.seconds:
        if shop.transactions % 50 == 0:
            shop.notice_channel()
        shop.step()
        stopping.wait(max(0.0, shop.transactions / options.rate - now))
    shop.close()
    sys.stdout.write(f"{shop.transactions} transactions in {time.monotonic() - start:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
