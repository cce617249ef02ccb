"""MySQL and MariaDB keep what every source promises, with GTIDs and without."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.log import Resume
from databus.sources.mysql import MysqlConfig, MysqlSource
from databus.testing import SourceSuite
from databus.testing.servers import Server, ServerMissing, open_server
from databus.wire import Group

_SETTLE_S = 30.0
_numbers = itertools.count(1)


class Patient:
    """The source, asked as the suite asks: what the server has logged by now has come before `poll` answers None."""

    def __init__(self, source: MysqlSource, server: Server, folder: Path) -> None:
        self._source = source
        self._server = server
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def start(self, resume: Resume) -> None:
        self._source.start(replace(resume, folder=self._folder))

    def poll(self, wait_ms: int) -> Group | None:
        end = time.monotonic() + _SETTLE_S
        file, offset = self._server.position()
        while time.monotonic() < end:
            group = self._source.poll(wait_ms)
            if group is not None:
                return group
            session = self._source._session
            assert session is not None
            here = session._scanner.position
            if (here.file, here.offset) >= (file, offset) and not session._bus_groups.is_reading:
                return None
        raise AssertionError(f"the source does not reach {file}:{offset}; it is at {here}")


class Harness:
    is_snapshottable = True
    knows_its_history = True

    def __init__(self, servers: list[Server], folder: Path) -> None:
        self._servers = servers
        self._folder = folder
        self.database = f"suite_{next(_numbers)}"
        for server in servers:
            server.run(
                f"CREATE DATABASE {self.database}",
                f"CREATE TABLE {self.database}.a (id INT PRIMARY KEY, u VARCHAR(40) UNIQUE, v DOUBLE)",
                f"CREATE TABLE {self.database}.b (k VARCHAR(20), n INT, PRIMARY KEY (k, n))",
                # MySQL without GTIDs needs it
                f"GRANT LOCK TABLES ON {self.database}.* TO '{server.capture_user}'@'%'",
            )

    def _source(self, server: Server, physical: str) -> Any:
        config = MysqlConfig(
            type="mysql",
            hosts=[f"{server.host}:{server.port}"],
            user=server.capture_user,
            password=server.capture_password,
            tables=[f"{self.database}.*"],
            # a server ends the dump of a replica when another comes with its id; the suite starts one after the other
            server_id=10_000 + next(_numbers),
            snapshot="never",
            group_bytes_max=1024,
            chunk_rows_max=5,
            # MySQL 8.0.31 may end the dump where something is logged while it sends a heartbeat, and the suite, unlike
            # the capture loop, does not connect anew
            heartbeat_ms=10_000 if server.kind == "mysql-8.0" else 50,
            progress_ms=10,
        )
        return Patient(MysqlSource(physical, config), server, self._folder / physical)

    def make(self) -> Any:
        return self._source(self._servers[0], "shop")

    def another(self) -> Any:
        return self._source(self._servers[1], "other")

    def transact(self, number: int) -> None:
        statements = []
        for i in range(40 if number % 3 == 0 else 3):
            statements += [
                f"REPLACE INTO a VALUES ({number * 10 + i}, 'u{i + number}', {i / 3})",
                f"UPDATE a SET v = v + 1 WHERE id = {number}",
                f"INSERT IGNORE INTO b VALUES ('{'x' * (i % 5)}', {number})",
            ]
        statements.append(f"DELETE FROM b WHERE n = {number - 1} AND k = 'x'")
        for server in self._servers:
            with server.connect(database=self.database, autocommit=False) as connection:
                with connection.cursor() as cursor:
                    for statement in statements:
                        cursor.execute(statement)
                connection.commit()

    def close(self) -> None:
        for server in self._servers:
            server.run(f"DROP DATABASE {self.database}")


@pytest.fixture(scope="module", params=["gtid", "file"])
def pair(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two servers of each kind that know nothing of each other."""
    servers = [open_server(kind, tmp_path_factory.mktemp(kind), gtid=request.param == "gtid") for _ in range(2)]
    try:
        for server in servers:
            server.start()
        yield servers
    except ServerMissing as missing:
        pytest.skip(f"{kind}: {missing}")
    finally:
        for server in servers:
            server.close()


class TestMysql(SourceSuite):
    TRANSACTIONS = 6

    @pytest.fixture
    def harness(self, pair: list[Server], tmp_path: Path) -> Iterator[Harness]:
        made = Harness(pair, tmp_path)
        yield made
        made.close()
