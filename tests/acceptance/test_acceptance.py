"""Whatever sessions do to a server, what the relay serves is what the server answers to SELECT.

The relay is a process of its own, killed now and then; the mirror is made from its JSON lines by code that shares
nothing with databus. Every refusal of a statement is the server's affair; a relay that stops is a failure.
"""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.sources.mysql._kernels import load_kernels
from databus.testing import RelayProcess
from databus.testing.servers import Server, ServerMissing, open_server
from tests.acceptance.mirror import Mirror, get
from tests.acceptance.workload import TABLES, Workload

ARRIVE_S_MAX = 60
DROP_S_MAX = 20
STATEMENTS = 150
COMPRESSED = ["log_bin_compress=ON", "log_bin_compress_min_len=10"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mariadb-strict": ("mariadb-10.11", {}),
    "mariadb-compressed": ("mariadb-10.11", {"gtid": False, "lines": COMPRESSED, "row_metadata": None}),
    "mysql-8.0": ("mysql-8.0", {"lines": ["binlog_transaction_compression=ON"]}),
    "mysql-8.0-minimal": ("mysql-8.0", {"gtid": False, "row_metadata": None}),
    "mysql-5.7": ("mysql-5.7", {}),
    "mysql-5.7-without-gtids": ("mysql-5.7", {"gtid": False}),
}
TWICE = ("mariadb-strict", "mariadb-compressed", "mysql-8.0", "mysql-8.0-minimal")


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    """One server a variant, started when it is first needed. Relays are forked with the decoder in them."""
    load_kernels("tests")
    running: dict[str, Server] = {}
    yield running
    for each in running.values():
        each.close()


def started(name: str, servers: dict[str, Server], folder: Path) -> Server:
    """The server of a variant."""
    if name not in servers:
        kind, options = VARIANTS[name]
        made = open_server(kind, folder / "server", **options)
        try:
            made.start()
        except ServerMissing as missing:
            pytest.skip(f"{name}: {missing}")
        servers[name] = made
    return servers[name]


class Run:
    """One seed on one server."""

    def __init__(self, server: Server, folder: Path, seed: int) -> None:
        self.server = server
        self.database = f"acceptance_{seed % 1_000_000_007}"
        self.dice = random.Random(seed)
        server.run(
            f"DROP DATABASE IF EXISTS {self.database}",
            f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4",
            f"GRANT LOCK TABLES ON {self.database}.* TO {server.capture_user}",  # engines without transactions need it
        )
        self.work = Workload(server, self.database, seed)
        self.mirror = Mirror(TABLES)
        self.relay = RelayProcess(folder, {"shop": self._source()}, capture={"progress_ms": 100})

    def _source(self) -> dict[str, Any]:
        return {
            "type": "mysql", "hosts": [f"{self.server.host}:{self.server.port}"], "user": self.server.capture_user,
            "password": self.server.capture_password, "tables": [f"{self.database}.*"], "connect_ms_max": 5000,
            "group_bytes_max": self.dice.choice([4096, 65536, 4 << 20]), "chunk_rows_max": self.dice.choice([3, 50]),
            "zero_dates": "null", "exclude": [f"{self.database}.aside", f"{self.database}.made_aside"],
        }  # fmt: skip

    def play(self, statements: int) -> None:
        """Turns of all sessions, with accidents between them."""
        dice = self.dice
        for _ in range(statements // 4):  # rows that a snapshot has to read
            dice.choice(self.work.sessions).turn()
        self.relay.start()
        for number in range(statements):
            dice.choice(self.work.sessions).turn()
            chosen = dice.random()
            if chosen < 0.03:
                self.work.alter()
            elif chosen < 0.04:
                self.work.kill_somebody()
            elif chosen < 0.05:
                self.relay.kill()
                self.relay.start()
            elif number % 40 == 0:
                self._read()
        self.work.settle()

    def _read(self) -> None:
        try:
            self.mirror.read(self.relay.url)
        except ConnectionError:
            self._check_capture()  # 503 while it opens its log is no failure

    def _check_capture(self) -> None:
        said = json.loads(get(f"{self.relay.url}/controlSources/status"))
        problems = [
            f"{each['status']}: {each['error']}: {each['message']}" for each in said if each["status"] == "suspended"
        ]
        assert problems == []

    def arrive(self) -> None:
        """Read until a mark that is set now has come, and no table is being read any more."""
        mark = self.dice.randrange(1 << 30)
        self.server.run(f"REPLACE INTO `{self.database}`.mark VALUES (1, {mark})")
        end = time.monotonic() + ARRIVE_S_MAX
        while not (self.mirror.holds("mark", "n", mark) and not (self.mirror.position or {}).get("snapshots")):
            self._read()
            self._check_capture()
            assert time.monotonic() < end, f"it did not come; the relay says:\n{self.relay.log_end()}"

    def differences(self) -> list[str]:
        """The mirror against the server."""
        with self.server.connect(charset="utf8mb4", init_command="SET time_zone = '+00:00'") as connection:
            return self.mirror.differences(connection, self.database)

    def close(self) -> None:
        self.relay.stop()
        self.work.close()
        with self.server.connect(init_command=f"SET lock_wait_timeout = {DROP_S_MAX}") as connection:
            connection.cursor().execute(f"DROP DATABASE IF EXISTS {self.database}")


def check(server: Server, folder: Path, seed: int, statements: int = STATEMENTS) -> None:
    """The whole of it; what went before shows where it fails."""
    run = Run(server, folder, seed)
    try:
        run.play(statements)
        run.arrive()
        found = run.differences()
        (folder / "statements.txt").write_text("\n".join(run.work.statements))
        assert found == [], "\n".join([*found, "", *run.work.statements[-60:]])
        run.mirror = Mirror(TABLES)  # a second reader, from the beginning of the log
        run.arrive()
        assert run.differences() == []
        assert run.mirror.rows > statements / 4
        assert run.work.taken["COMMIT"] > statements / 100
    finally:
        (folder / "statements.txt").write_text("\n".join(run.work.statements))
        run.close()


@pytest.mark.always
@pytest.mark.parametrize(("variant", "number"), [*((name, 0) for name in VARIANTS), *((name, 1) for name in TWICE)])
def test_what_is_served_is_what_the_server_holds(
    servers: dict[str, Server], variant: str, number: int, tmp_path: Path, seed: int
) -> None:
    check(started(variant, servers, tmp_path), tmp_path, seed + number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(34))
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_the_same_with_two_hundred_seeds(
    servers: dict[str, Server], variant: str, number: int, tmp_path: Path, seed: int
) -> None:
    check(started(variant, servers, tmp_path), tmp_path, seed + number, 6 * STATEMENTS)
