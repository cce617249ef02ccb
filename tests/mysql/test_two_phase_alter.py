"""MariaDB's `binlog_alter_two_phase`: an ALTER TABLE is logged when it starts, and again when it ends."""

import itertools
import threading

import pymysql
import pytest

from databus.testing.servers import Server
from tests.mysql.following import create

_ROWS_MAX = 3_200_000


@pytest.fixture
def two_phase(new_server) -> Server:
    server: Server = new_server("mariadb-10.11", row_metadata=None, lines=["binlog_alter_two_phase=ON"])
    server.run("CREATE DATABASE shop")
    create(server, "shop")
    return server


def test_an_alter_takes_effect_where_it_commits_and_not_where_it_is_undone(two_phase, follow) -> None:
    follower = follow("shop", two_phase)
    follower.check(two_phase, "shop")
    two_phase.run("ALTER TABLE shop.b ADD COLUMN more INT DEFAULT 5", "INSERT INTO shop.b VALUES ('k', 1, 1, 7)")
    two_phase.run("ALTER TABLE shop.a MODIFY price DOUBLE", "INSERT INTO shop.b VALUES ('k', 2, 1, 7)")
    with pytest.raises(pymysql.err.IntegrityError):
        two_phase.run("ALTER TABLE shop.b ADD UNIQUE (x), DROP COLUMN more")
    two_phase.run("INSERT INTO shop.b VALUES ('k', 3, 1, 7)", "CREATE INDEX i ON shop.b (x)", "DROP INDEX i ON shop.b")
    follower.check(two_phase, "shop")
    assert follower.copy().kinds("shop.b") == ["schema"]
    assert follower.copy().kinds("shop.a") == ["schema"]


def test_rows_between_the_start_of_an_alter_and_its_commit_have_the_old_form(two_phase, follow) -> None:
    follower = follow("shop", two_phase)
    follower.check(two_phase, "shop")
    count = 50_000
    while not _writes_while_altered(two_phase, f"big_{count}", count):
        count *= 2
        assert count <= _ROWS_MAX, "no row was ever written while the table was altered"
    follower.check(two_phase, "shop")


def _writes_while_altered(server: Server, name: str, count: int) -> bool:
    """Whether a row came into the log between an ALTER's start and its end."""
    server.run(
        f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO shop.{name} SELECT seq, seq FROM shop.seq_1_to_{count}",
    )
    statement = f"ALTER TABLE shop.{name} ADD COLUMN w INT FIRST, ENGINE=InnoDB, ALGORITHM=INPLACE, LOCK=NONE"
    file, offset = server.position()
    altering = threading.Thread(target=server.run, args=(statement,))
    with server.connect(database="shop", autocommit=True) as session, session.cursor() as cursor:
        altering.start()
        for number in itertools.count(1):
            cursor.execute(f"INSERT INTO {name} (id, v) VALUES (-{number}, 4)")
            altering.join(0.01)
            if not altering.is_alive():
                break
    events = [str(row[5]) for row in server.query(f"SHOW BINLOG EVENTS IN '{file}' FROM {offset}")]
    first, last = (at for at, said in enumerate(events) if "ALTER TABLE" in said)
    return any("INSERT" in said for said in events[first:last])
