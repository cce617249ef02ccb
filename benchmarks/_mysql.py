"""Backlogs: a real server whose log holds a million row changes and more of one workload, made once and kept.

    with backlog("mysql-8.0", "orders", 1_000_000) as found:
        found.server, found.rows, found.bytes

The rows are made by the server itself from a table of twenty thousand different ones that is not in its log. What is
kept, in the servers' cache folder, is the data folder with the log and an empty table; of each server and workload a
few sizes.
"""

import contextlib
import json
import random
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from databus.testing import RelayProcess
from databus.testing.servers import Server, cache_folder, open_server
from databus.testing.servers._fetch import kept

DATABASE = "bench"
TABLE = "orders"
SEEDS = 20_000
SEEDS_A_STATEMENT = 500
KEPT_MAX = 3
CAPTURE_S_MAX = 300.0
CACHE_VERSION = "v3"
SERVER_LINES = (
    "loose-binlog-expire-logs-seconds=0",  # what is kept may be old
    "expire-logs-days=0",
    "innodb-buffer-pool-size=512M",
    "innodb-flush-log-at-trx-commit=0",
    "loose-innodb-redo-log-capacity=1G",  # with the little that tests have, rows of megabytes may wait for ever
    "max-binlog-size=1G",
)
CITIES = ("Oslo", "Łódź", "São Paulo", "東京", "Nürnberg", "Aix-en-Provence")
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "wizards", "vex", "judges")


@dataclass(frozen=True)
class Workload:
    """columns: of the table, in SQL, the key first and apart. rows: at scale 1. a_transaction: rows of each."""

    columns: str
    rows: int
    a_transaction: int = 1_000
    is_update: bool = False


ORDERS = """customer_id INT NOT NULL, product_id INT NOT NULL, quantity INT NOT NULL, total DECIMAL(12, 2) NOT NULL,
  status VARCHAR(20) NOT NULL, city VARCHAR(60), placed_at DATETIME(6) NOT NULL, changed_at TIMESTAMP NOT NULL,
  note TEXT"""
MIXED = """c1 TINYINT, c2 SMALLINT UNSIGNED, c3 MEDIUMINT, c4 INT UNSIGNED, c5 BIGINT UNSIGNED, c6 BIGINT, c7 FLOAT,
  c8 DOUBLE, c9 DECIMAL(12, 2), c10 DECIMAL(30, 10), c11 BIT(12), c12 YEAR, c13 DATE, c14 TIME(3), c15 DATETIME,
  c16 DATETIME(6), c17 TIMESTAMP(3) NULL, c18 CHAR(12), c19 VARCHAR(60), c20 VARCHAR(600), c21 TEXT,
  c22 VARCHAR(40) CHARACTER SET latin1, c23 BINARY(16), c24 VARBINARY(40), c25 BLOB, c26 ENUM('a', 'bb', 'ccc'),
  c27 SET('x', 'y', 'z')"""
WORKLOADS = {
    "orders": Workload(ORDERS, 5_000_000),
    "json": Workload(f"{ORDERS}, body JSON", 2_000_000),
    "single": Workload(ORDERS, 1_000_000, a_transaction=1),
    "mixed": Workload(MIXED, 1_000_000),
    "updates": Workload(ORDERS, 1_000_000, is_update=True),
}


@dataclass(frozen=True)
class Backlog:
    """A running server, and the stretch of its log that holds the workload.

    rows: row changes. bytes: of that stretch. file, offset, gtids: where it begins.
    """

    server: Server
    workload: str
    rows: int
    transactions: int
    bytes: int
    file: str
    offset: int
    gtids: str

    @property
    def source(self) -> dict[str, Any]:
        """Options of a source that captures it from the beginning."""
        return {
            "type": "mysql",
            "hosts": [f"{self.server.host}:{self.server.port}"],
            "user": self.server.capture_user,
            "password": self.server.capture_password,
            "tables": [f"{DATABASE}.{TABLE}"],
            "start": "earliest",
            "snapshot": "never",
        }

    def describe(self) -> str:
        """For people."""
        size = f"{self.rows:,} rows, {self.bytes / 1e6:,.0f} MB of binlog ({self.bytes / self.rows:.0f} B a row)"
        return f"{self.workload}, {size}, {self.server.kind}"


@contextlib.contextmanager
def backlog(kind: str, workload: str, rows: int) -> Iterator[Backlog]:
    """A server of a kind with this many row changes of a workload in its log; made if it is not kept."""
    found = WORKLOADS[workload]
    rows = max(rows // found.a_transaction, 1) * found.a_transaction
    prefix = f"backlog-{CACHE_VERSION}-{kind}-{workload}-"
    place = kept(f"{prefix}{rows}", lambda draft: _make(kind, found, rows, draft))
    _remove_oldest(prefix, place)
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        server = open_server(kind, Path(name), lines=_lines(kind))
        shutil.copytree(place / "data", server.data_folder, copy_function=_link)
        with server:
            told = json.loads((place / "backlog.json").read_text())
            yield Backlog(server, workload, **told)


def _lines(kind: str) -> tuple[str, ...]:
    unknown = {"mysql-8.0": "expire-logs-days"}.get(kind)
    return tuple(line for line in SERVER_LINES if unknown is None or not line.startswith(unknown))


def _link(source: str, target: str) -> None:
    """Files of the log are never written again, and are large."""
    if Path(source).name.startswith("binlog.0"):
        with contextlib.suppress(OSError):
            Path(target).hardlink_to(source)
            return
    shutil.copy2(source, target)


def _remove_oldest(prefix: str, in_use: Path) -> None:
    """Keep the few that were made last."""
    there = [each for each in cache_folder().glob(f"{prefix}*") if "." not in each.name[len(prefix) :]]
    for each in sorted(there, key=lambda path: path.stat().st_mtime)[:-KEPT_MAX]:
        if each != in_use:
            shutil.rmtree(each)


def _make(kind: str, workload: Workload, rows: int, draft: Path) -> None:
    server = open_server(kind, draft, lines=_lines(kind))
    try:
        server.start()
        told = _fill(server, workload, rows)
    finally:
        server.stop()
    (draft / "backlog.json").write_text(json.dumps(told))


def _fill(server: Server, workload: Workload, rows: int) -> dict[str, Any]:
    names = [each.split()[0] for each in _split(workload.columns)]
    definition = f"(id BIGINT NOT NULL PRIMARY KEY, {workload.columns})"
    server.run(f"CREATE DATABASE {DATABASE}", f"CREATE TABLE {DATABASE}.{TABLE} {definition}")
    with server.connect(database=DATABASE, init_command="SET sql_log_bin = 0") as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE seeds {definition}")
        for first in range(0, SEEDS, SEEDS_A_STATEMENT):
            seeds = [_seed(number, names) for number in range(first, first + SEEDS_A_STATEMENT)]
            cursor.executemany(f"INSERT INTO seeds VALUES ({', '.join(['%s'] * (len(names) + 1))})", seeds)
        if workload.is_update:
            cursor.execute(f"INSERT INTO {TABLE} SELECT * FROM seeds")
        cursor.execute(_procedure(workload, names))
    (file, offset), gtids = server.position(), server.gtids()
    transactions = rows // workload.a_transaction
    server.query(f"CALL {DATABASE}.fill(%s)", transactions)
    sizes = {path.name: path.stat().st_size for path in server.binlogs() if path.name >= file}
    with server.connect(database=DATABASE, init_command="SET sql_log_bin = 0") as connection:
        for each in (f"TRUNCATE TABLE {TABLE}", "DROP TABLE seeds", "DROP PROCEDURE fill"):
            connection.cursor().execute(each)
    return {
        "rows": rows,
        "transactions": transactions,
        "bytes": sum(sizes.values()) - offset,
        "file": file,
        "offset": offset,
        "gtids": gtids,
    }


def _procedure(workload: Workload, names: list[str]) -> str:
    """Runs inside the server: each of its statements is a transaction of its own."""
    step = workload.a_transaction
    some = f"id > start AND id <= start + {step}"
    statement = f"INSERT INTO {TABLE} SELECT id + base, {', '.join(names)} FROM seeds WHERE {some}"
    if workload.is_update:
        statement = (
            f"UPDATE {TABLE} SET quantity = quantity + 1, total = total + 0.01, status = IF(status = 'paid', 'sent', "
            f"'paid'), placed_at = placed_at + INTERVAL 1 SECOND WHERE {some}"
        )
    return f"""CREATE PROCEDURE fill(IN transactions INT) BEGIN
      DECLARE done INT DEFAULT 0; DECLARE base BIGINT DEFAULT 0; DECLARE start BIGINT DEFAULT 0;
      WHILE done < transactions DO
        SET start = (done * {step}) % {SEEDS}, base = done * {step} - start;
        {statement};
        SET done = done + 1;
      END WHILE;
    END"""


def _split(columns: str) -> list[str]:
    """At the commas outside of brackets."""
    found, depth = [""], 0
    for char in columns:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            found.append("")
        else:
            found[-1] += char
    return found


def _seed(number: int, names: list[str]) -> tuple[Any, ...]:
    dice = random.Random(number)
    at = datetime(2026, 1, 1) + timedelta(microseconds=dice.randrange(25_920_000_000_000))  # noqa: DTZ001 - a DATETIME
    values = _mixed(dice, at) if names[0] == "c1" else _order(dice, at)
    if names[-1] == "body":
        values.append(json.dumps({"channel": dice.choice(["app", "web"]), "lines": _lines_of(dice), "gift": None}))
    return (number + 1, *values)


def _text(dice: random.Random, length: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(length // 5 + 1))[:length]


def _lines_of(dice: random.Random) -> list[dict[str, Any]]:
    return [{"product": dice.randrange(9999), "price": dice.randrange(9999) / 100} for _ in range(2)]


def _order(dice: random.Random, at: datetime) -> list[Any]:
    return [
        dice.randrange(1_000_000),
        dice.randrange(50_000),
        dice.randint(1, 9),
        f"{dice.randrange(10_000_000) / 100:.2f}",
        dice.choice(["open", "paid", "sent"]),
        dice.choice(CITIES),
        at,
        at.replace(microsecond=0),
        _text(dice, dice.randint(90, 150)),
    ]


def _mixed(dice: random.Random, at: datetime) -> list[Any]:
    def maybe(value: Any) -> Any:
        return None if dice.random() < 0.1 else value

    return [
        dice.randint(-128, 127),
        dice.randrange(65_536),
        maybe(dice.randint(-(2**23), 2**23 - 1)),
        dice.randrange(2**32),
        dice.randrange(2**64),
        maybe(dice.randint(-(2**63), 2**63 - 1)),
        dice.random(),
        maybe(dice.random() * 1e9),
        maybe(f"{dice.randrange(10**12) / 100:.2f}"),
        f"{dice.randrange(10**20)}.{dice.randrange(10**10):010d}",
        dice.randrange(4096),
        dice.randint(1990, 2030),
        at.date(),
        maybe(f"{dice.randint(-99, 99)}:10:20.125"),
        at.replace(microsecond=0),
        at,
        maybe(at.replace(microsecond=125_000)),
        maybe(_text(dice, 12).strip()),
        _text(dice, dice.randint(5, 30)),
        maybe(_text(dice, dice.randint(20, 90))),
        maybe(_text(dice, dice.randint(20, 60))),
        "Übergröße"[: dice.randint(2, 9)],
        dice.randbytes(16),
        maybe(dice.randbytes(dice.randint(0, 30))),
        maybe(dice.randbytes(dice.randint(0, 40))),
        dice.choice(["a", "bb", "ccc"]),
        maybe(dice.choice(["x", "x,y", "z", ""])),
    ]


def source_of(server: Server) -> dict[str, object]:
    """All of its tables, from the begin of its log."""
    return {
        "type": "mysql",
        "hosts": [f"{server.host}:{server.port}"],
        "user": server.capture_user,
        "password": server.capture_password,
        "tables": ["bench.*"],
        "start": "earliest",
        "snapshot": "never",
    }


def state_of(url: str) -> str:
    """What the only source of a relay is doing. Raises where it has stopped for good: nothing would ever come."""
    with urllib.request.urlopen(f"{url}/controlSources/status", timeout=10) as answer:  # noqa: S310 - our own relay
        (told,) = json.load(answer)
    if told["state"] == "SUSPENDED_ON_ERROR":
        raise RuntimeError(f"the relay does not capture: {told['message']}")
    return str(told["state"])


def to_json(found: Backlog) -> dict[str, Any]:
    """What a process of its own must know of it."""
    server = found.server
    told = {
        name: getattr(found, name) for name in ("workload", "rows", "transactions", "bytes", "file", "offset", "gtids")
    }
    address = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    return {**told, **address, "flavor": server.flavor, "source": found.source}


def wait_until_it_captures(relay: RelayProcess) -> None:
    """Its first start on a machine compiles; nothing is measured until it follows the server."""
    deadline = time.monotonic() + CAPTURE_S_MAX
    while state_of(relay.url) != "RUNNING":
        if time.monotonic() > deadline:
            raise RuntimeError(f"the relay does not capture:\n{relay.log_end()}")
        time.sleep(0.05)
