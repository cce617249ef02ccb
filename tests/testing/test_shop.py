"""The shop's application goes on where every application has to: after deadlocks and locks that it did not get."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databus.testing.servers import KINDS, Server, ServerMissing, open_server
from databus.testing.shop import MysqlWorkload, create_shop, create_shop_on

WAIT_S_MAX = 30


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    found = open_server(request.param, tmp_path)
    try:
        found.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with found:
        create_shop_on(found.connect, customers=20, products=200, orders=20)
        yield found


def test_the_application_can_be_started_again_on_the_same_shop(tmp_path):
    create_shop(tmp_path / "shop.db", customers=20, products=200, orders=20)
    for _ in range(2):
        again = [sys.executable, "-m", "databus.testing.shop", "shop.db", "--seconds", "2", "--rate", "1000"]
        done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr


class _OneAction(MysqlWorkload):
    """Does nothing but `action`, whose number of calls is `tries`."""

    def __init__(self, connect: Callable[[], Any], action: Callable[["_OneAction"], None]) -> None:
        super().__init__(connect, random.Random(1))
        self.tries = 0
        self._action = action

    def _actions(self) -> list[tuple[Callable[[], None], float]]:
        return [(self._counted, 1)]

    def _counted(self) -> None:
        self.tries += 1
        self._action(self)


def _wait_for_lock(server: Server, connection: Any) -> None:
    """Until the server shows that this connection waits for a lock of a row. The server shows to everybody who asks
    within a tenth of a second what it found for the first.
    """
    query = (
        "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = "
    )
    end = time.monotonic() + WAIT_S_MAX
    while server.query(f"{query}{connection.thread_id()}")[0][0] == 0:
        assert time.monotonic() < end, "it never waited"
        time.sleep(0.15)


def test_the_same_transaction_runs_again_after_a_deadlock(server: Server) -> None:
    other = server.connect(database="shop", autocommit=False)
    others: list[threading.Thread] = []

    def crossing(shop: _OneAction) -> None:
        drawn.append(shop._dice.random())
        if shop.tries == 2:
            others[0].join(WAIT_S_MAX)
            other.commit()
        shop._run("UPDATE stock SET quantity = quantity + 1 WHERE product_id = 1")
        if shop.tries == 1:  # the other one has done more, so it is not the one that the server undoes
            cursor = other.cursor()
            cursor.execute("UPDATE stock SET quantity = quantity + 10 WHERE product_id BETWEEN 2 AND 150")
            sql = "UPDATE stock SET quantity = quantity + 10 WHERE product_id = 1"
            others.append(threading.Thread(target=cursor.execute, args=(sql,)))
            others[0].start()
            _wait_for_lock(server, other)
        shop._run("UPDATE stock SET quantity = quantity + 1 WHERE product_id = 2")

    drawn: list[float] = []
    before = server.query("SELECT product_id, quantity FROM shop.stock WHERE product_id < 3 ORDER BY 1")
    shop = _OneAction(server.connect, crossing)
    with closing(other), closing(shop):
        shop.step()
    after = server.query("SELECT product_id, quantity FROM shop.stock WHERE product_id < 3 ORDER BY 1")
    assert (shop.tries, shop.transactions, len(set(drawn))) == (2, 1, 1)
    assert [new - old for (_, old), (_, new) in zip(before, after, strict=True)] == [0, 11, 11]


def test_a_transaction_that_waited_too_long_for_a_lock_is_undone_whole_and_runs_again(server: Server) -> None:
    other = server.connect(database="shop", autocommit=False)

    def waiting(shop: _OneAction) -> None:
        shop._run("UPDATE stock SET quantity = quantity + 1 WHERE product_id = 1")
        if shop.tries == 2:
            other.commit()
        shop._run("UPDATE stock SET quantity = quantity + 1 WHERE product_id = 2")

    other.cursor().execute("UPDATE stock SET quantity = quantity + 10 WHERE product_id = 2")
    before = server.query("SELECT quantity FROM shop.stock WHERE product_id = 1")
    shop = _OneAction(lambda: server.connect(init_command="SET innodb_lock_wait_timeout = 1"), waiting)
    with closing(other), closing(shop):
        shop.step()
    assert (shop.tries, shop.transactions) == (2, 1)
    assert server.query("SELECT quantity FROM shop.stock WHERE product_id = 1")[0][0] == before[0][0] + 1


def test_a_transaction_that_began_before_an_alter_table_runs_again(server: Server) -> None:
    def altered(shop: _OneAction) -> None:
        shop._run("SELECT count(*) FROM customers").fetchall()  # its view of the database is of this moment
        if shop.tries == 1:
            server.run("ALTER TABLE shop.stock ADD COLUMN place INT NOT NULL DEFAULT 0, FORCE")
        shop._run("SELECT count(*) FROM stock").fetchall()

    shop = _OneAction(server.connect, altered)
    with closing(shop):
        shop.step()
    assert (shop.tries, shop.transactions) == (2, 1)
