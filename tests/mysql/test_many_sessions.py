"""Random sessions beside each other: transactions, savepoints, temporary tables, tables without transactions, XA.

Nothing here knows what a log holds: what a mirror makes of it must be what the server's own SELECT shows at the end.
The seed is printed; give it as DATABUS_SEED to see the same again.
"""

import random
from pathlib import Path
from typing import Any

import pymysql
import pytest

from databus.testing.servers import Server, open_server
from tests.mysql.following import Follower, config_of, create

_SESSIONS = 3
_KEYS = 1_000  # of each session: none waits for a lock of another
_KINDS = {
    "mariadb-10.11": ("mariadb-10.11", {}),
    "mariadb-10.11, not strict, compressed": (
        "mariadb-10.11",
        {"gtid": False, "lines": ["log_bin_compress=ON", "log_bin_compress_min_len=10"]},
    ),
    "mysql-5.7": ("mysql-5.7", {}),
    "mysql-5.7, without GTIDs": ("mysql-5.7", {"gtid": False}),
    "mysql-8.0, without GTIDs, compressed": (
        "mysql-8.0",
        {"gtid": False, "lines": ["binlog_transaction_compression=ON"]},
    ),
}


class Session:
    """One connection at a time, and what it may do next."""

    def __init__(self, server: Server, database: str, number: int, dice: random.Random) -> None:
        self._server = server
        self._database = database
        self._number = number
        self._dice = dice
        self._xids = 0
        self._connect()

    def _connect(self) -> None:
        self._connection = self._server.connect(database=self._database, autocommit=True)
        self._xid = ""
        self._is_prepared = False
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def run(self, statement: str) -> None:
        """What a server refuses here, it refuses."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement)
        except pymysql.MySQLError:
            return

    def step(self) -> None:
        """One statement, or the end of a connection."""
        if self._is_prepared:
            self._decide()
            return
        dice = self._dice
        roll = dice.random()
        if roll < 0.55:
            self.run(self._change())
        elif roll < 0.75:
            self.run(self._mark())
        elif roll < 0.83:
            self.run(
                dice.choice(["CREATE TEMPORARY TABLE x (a INT)", "DROP TEMPORARY TABLE x", "INSERT INTO x VALUES (1)"])
            )
        elif roll < 0.86:
            self._leave()
        elif self._xid:
            self._end_xa()
        elif roll < 0.90:
            self._xids += 1
            self._xid = f"'{self._number}-{dice.randrange(4)}','b'"
            self.run(f"XA START {self._xid}")
        else:
            self.run(dice.choice(["BEGIN", "BEGIN", "COMMIT", "ROLLBACK", "ROLLBACK AND CHAIN"]))

    def _mark(self) -> str:
        name = self._dice.choice(["s", "S", "`a b`", "\xe9", "E"])
        return self._dice.choice(
            [f"SAVEPOINT {name}", f"SAVEPOINT {name}", f"ROLLBACK TO {name}", f"RELEASE SAVEPOINT {name}"]
        )

    def _change(self) -> str:
        dice, table = self._dice, self._dice.choice(["t", "t", "u", "m"])
        key = self._number * _KEYS + dice.randrange(40)
        match dice.randrange(6):
            case 0:
                return f"DELETE FROM {table} WHERE id = {key}"
            case 1:
                return f"UPDATE {table} SET v = CONCAT(LEFT(v, 20), '{dice.randrange(100)}') WHERE id = {key}"
            case 2:
                values = ",".join(f"({key + n}, REPEAT('x', 400))" for n in range(dice.choice([1, 5, 30])))
                return f"REPLACE INTO {table} VALUES {values}"
            case 3:
                return f"INSERT INTO {table} VALUES ({key}, 'a'), ({key + 1}, 'b')"
            case 4:
                return f"UPDATE t, m SET t.v = 'both', m.v = 'both' WHERE t.id = {key} AND m.id = {key}"
            case _:
                return f"REPLACE INTO {table} VALUES ({key}, '{dice.random()}')"

    def _leave(self) -> None:
        self._connection.close()
        self._connect()

    def _end_xa(self) -> None:
        self.run(f"XA END {self._xid}")
        match self._dice.randrange(4):
            case 0:
                self.run(f"XA COMMIT {self._xid} ONE PHASE")
                self._xid = ""
            case 1:
                self.run(f"XA ROLLBACK {self._xid}")
                self._xid = ""
            case _:
                self.run(f"XA PREPARE {self._xid}")
                self._is_prepared = True

    def _decide(self) -> None:
        if self._dice.random() < 0.7:
            return
        self.run(f"XA {self._dice.choice(['COMMIT', 'ROLLBACK'])} {self._xid}")
        self._leave()

    def close(self) -> None:
        """The connection's end is that of its transaction."""
        self._connection.close()


def _decide_all(server: Server, dice: random.Random) -> None:
    """What is prepared and nobody's any more."""
    end = 0
    while rows := server.query("XA RECOVER"):
        for _, length, _, data in rows:
            text = data.encode() if isinstance(data, str) else bytes(data)
            gtrid, bqual = text[:length].hex(), text[length:].hex()
            try:
                server.run(f"XA {dice.choice(['COMMIT', 'ROLLBACK'])} X'{gtrid}',X'{bqual}'")
            except pymysql.MySQLError:
                end += 1
                assert end < 1_000


def _play(server: Server, database: str, folder: Path, seed: int, steps: int) -> None:
    dice = random.Random(seed)
    follower = Follower(config_of(database, server), folder)
    try:
        follower.check(server, database)  # without sessions, which would keep each other waiting for locks
        sessions = [Session(server, database, number, dice) for number in range(_SESSIONS)]
        for number in range(steps):
            dice.choice(sessions).step()
            if number % 5 == 0:
                follower.step()
            if dice.random() < 0.01:
                follower.kill()
            if dice.random() < 0.005:
                server.run("FLUSH BINARY LOGS")
        for session in sessions:
            session.close()
        _decide_all(server, dice)
        follower.check(server, database)
    finally:
        follower.kill()


@pytest.fixture(scope="module", params=_KINDS)
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind, options = _KINDS[request.param]
    with open_server(kind, tmp_path_factory.mktemp("writer"), **options) as server:
        yield server


def _shop(writer: Server) -> str:
    writer.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    create(writer, "shop")
    for name, engine in (("t", "InnoDB"), ("u", "InnoDB"), ("m", "MyISAM")):
        writer.run(f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, v VARCHAR(500)) ENGINE = {engine}")
    writer.run(f"GRANT LOCK TABLES ON shop.* TO '{writer.capture_user}'@'%'")
    return "shop"


def test_what_arrives_is_what_the_server_holds(writer: Server, tmp_path: Path, seed: int) -> None:
    for number in range(2):
        _play(writer, _shop(writer), tmp_path / str(number), seed + number, 400)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(40))
def test_the_same_for_long(writer: Server, tmp_path: Path, seed: int, number: int) -> None:
    _play(writer, _shop(writer), tmp_path, seed + number, 3_000)
