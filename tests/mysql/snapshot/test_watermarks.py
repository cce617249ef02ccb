"""Each half of each way in which a view gets its watermarks, under load, on real servers.

The load is such that it would find the wrong ways out, and that is tested too: the log's end is no low watermark, and
executed GTIDs are no high one.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pymysql
import pytest
from pymysql.constants import CLIENT, ER

from databus.sources.mysql.snapshot._read_session import prepare
from databus.sources.mysql.snapshot._read_views import LockBusy, LogWatermark, ReadViews, query, way_of
from databus.testing.servers import Server
from tests.mysql.snapshot.support import Logged, definition_of, log_position, logged, running

WRITERS = 6
VIEWS = 40
ROUNDS = 2
TRIES = 20
SYNCED = ["sync_binlog=1", "innodb_flush_log_at_trx_commit=1"]  # so that a commit takes time between its stages
COPIES, COPIED = "copy to tmp table", "Waiting for table metadata lock"
COPIES_MAX = 5
LOAD = """
CREATE PROCEDURE shop.fill(first BIGINT, number INT)
BEGIN
  DECLARE i INT DEFAULT 0;
  WHILE i < number DO
    INSERT INTO shop.t VALUES (first + i);
    SET i = i + 1;
  END WHILE;
END
"""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def load(server: Server) -> AbstractContextManager[None]:
    """Connections that commit transactions of one row as fast as they can."""

    def write(number: int, stop: threading.Event) -> None:
        connection = server.connect()
        first = number * 10_000_000
        with connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute(f"CALL shop.fill({first}, 20)")
                first += 20
        connection.close()

    return running(write, range(1, WRITERS + 1))


@dataclass
class Seen:
    """A view: what was visible, and its watermarks."""

    visible: Ints
    low: LogWatermark
    high: LogWatermark


class Transactions:
    """What the log holds, to be compared at once."""

    def __init__(self, found: list[Logged]) -> None:
        self.values = np.array([each.value for each in found], np.int64)
        self._places = np.array([(each.file << 40) + each.end for each in found], np.int64)
        self._numbers = np.array([each.gno for each in found], np.int64)

    def upto(self, mark: LogWatermark) -> Bools:
        if mark.gtids is not None:
            return self.among(mark.gtids)
        return self._places <= (int(mark.file.rpartition(".")[2]) << 40) + mark.offset

    def among(self, gtids: str) -> Bools:
        found = np.zeros(len(self.values), np.bool_)
        for part in gtids.replace("\n", "").partition(":")[2].split(":"):
            first, _, last = part.partition("-")
            found |= (self._numbers >= int(first)) & (self._numbers <= int(last or first))
        return found


def wrong_high(connection: "pymysql.Connection[Any]") -> Seen:
    """A view whose high watermark is what had been executed when it was open: rows are visible before that says so."""
    with connection.cursor() as cursor:
        cursor.execute(
            "START TRANSACTION WITH CONSISTENT SNAPSHOT; SELECT @@global.gtid_executed; SELECT id FROM shop.t; COMMIT"
        )
        cursor.nextset()
        ((gtids,),) = cursor.fetchall()
        cursor.nextset()
        visible = np.array([row[0] for row in cursor.fetchall()], np.int64)
        cursor.nextset()
    mark = LogWatermark("", 0, gtids.replace("\n", ""))
    return Seen(visible, mark, mark)


def wrong_low(connection: "pymysql.Connection[Any]", status: str) -> Seen:
    """A view whose low watermark is the log's end before: the log is written before a commit is visible."""
    with connection.cursor() as cursor:
        cursor.execute(f"{status}; START TRANSACTION WITH CONSISTENT SNAPSHOT; SELECT id FROM shop.t; COMMIT")
        file, offset = cursor.fetchall()[0][:2]
        cursor.nextset()
        cursor.nextset()
        visible = np.array([row[0] for row in cursor.fetchall()], np.int64)
        cursor.nextset()
    mark = LogWatermark(file, offset)
    return Seen(visible, mark, mark)


def right(server: Server, *, exact: bool, number: int = VIEWS) -> list[Seen]:
    """Views as they are opened for chunks."""
    connection = server.connect()
    prepare(connection)
    views = ReadViews(connection, way_of(connection), server.connect, lock_ms_max=30_000)
    definition = definition_of(server, "shop", "t")
    found = []
    low = None
    for each in range(number):
        if views.need_low and not exact and each % 30 == 0:
            low = views.low_of(definition)
        view = views.open(definition, None, transactional=True, exact=exact, low=low)
        rows = query(connection, "SELECT id FROM shop.t")
        view.close()
        found.append(Seen(np.array([row[0] for row in rows], np.int64), view.low, view.high))
    views.close()
    connection.close()
    return found


def under_load(server: Server, look: Callable[[], list[Seen]]) -> tuple[list[Seen], Transactions]:
    """Views under load, with all transactions that were committed."""
    server.run("TRUNCATE shop.t", "FLUSH BINARY LOGS")
    first = server.position()[0]
    with load(server):
        while server.query("SELECT COUNT(*) FROM shop.t")[0][0] < 10 * WRITERS:
            pass
        seen = look()
    return seen, Transactions([each for path in server.binlogs() if path.name >= first for each in logged([path])])


def prepared(server: Server) -> Server:
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id BIGINT PRIMARY KEY) ENGINE=InnoDB", LOAD)
    return server


def invisible_below_low(seen: list[Seen], log: Transactions) -> int:
    """In how many views something up to the low watermark was not visible."""
    return sum(bool((log.upto(each.low) & ~np.isin(log.values, each.visible)).any()) for each in seen)


def visible_above_high(seen: list[Seen], log: Transactions) -> int:
    """In how many views something beyond the high watermark was visible."""
    return sum(bool((np.isin(log.values, each.visible) & ~log.upto(each.high)).any()) for each in seen)


def check(seen: list[Seen], log: Transactions) -> None:
    assert len(log.values) > 50
    assert any(len(each.visible) > 5 for each in seen)
    assert not invisible_below_low(seen, log)
    assert not visible_above_high(seen, log)


def test_all_up_to_the_low_watermark_is_visible_and_nothing_beyond_the_high(
    new_server: Callable[..., Server], kind: str
) -> None:
    server = prepared(new_server(kind, lines=SYNCED))
    for _ in range(ROUNDS):
        check(*under_load(server, lambda: right(server, exact=False)))


def test_an_exact_view_has_one_watermark_on_mysql(new_server: Callable[..., Server], kind: str) -> None:
    server = prepared(new_server(kind, lines=SYNCED))
    seen, log = under_load(server, lambda: right(server, exact=True, number=5))
    check(seen, log)
    if kind != "mariadb-10.11":  # where each view is as exact as can be
        assert all(each.low == each.high for each in seen)


@pytest.mark.parametrize("mysql", ["mysql-8.0", "mysql-5.7"])
def test_without_gtids_a_guard_gives_the_low_watermark(new_server: Callable[..., Server], mysql: str) -> None:
    server = prepared(new_server(mysql, lines=SYNCED, gtid=False))
    for _ in range(ROUNDS):
        check(*under_load(server, lambda: right(server, exact=False, number=12)))


def test_the_end_of_the_log_is_no_low_watermark(new_server: Callable[..., Server], kind: str) -> None:
    between = [] if kind == "mariadb-10.11" else ["binlog_group_commit_sync_delay=20000"]  # microseconds
    server = prepared(new_server(kind, lines=[*SYNCED, *between]))
    connection = server.connect(client_flag=CLIENT.MULTI_STATEMENTS)
    for _ in range(TRIES):
        seen, log = under_load(server, lambda: [wrong_low(connection, server._status) for _ in range(VIEWS)])
        if invisible_below_low(seen, log):
            return
    pytest.fail("the load is too small to find it out")


@pytest.mark.soak  # the moment between the two is short: about one view in a hundred falls into it
def test_executed_gtids_are_no_high_watermark(new_server: Callable[..., Server]) -> None:
    server = prepared(new_server("mysql-8.0", lines=SYNCED))
    connection = server.connect(client_flag=CLIENT.MULTI_STATEMENTS)
    for _ in range(10 * TRIES):
        seen, log = under_load(server, lambda: [wrong_high(connection) for _ in range(VIEWS)])
        if visible_above_high(seen, log):
            return
    pytest.fail("the load is too small to find it out")


def test_a_guard_waits_no_longer_than_it_may_and_lets_writers_go(new_server: Callable[..., Server]) -> None:
    server = prepared(new_server("mysql-8.0", gtid=False))
    writer = server.connect(autocommit=False)
    writer.cursor().execute("INSERT INTO shop.t VALUES (1)")
    connection = server.connect()
    prepare(connection)
    views = ReadViews(connection, way_of(connection), server.connect, lock_ms_max=3_000)
    with pytest.raises(LockBusy, match="LOCK TABLES was not had"):
        views.low_of(definition_of(server, "shop", "t"))
    server.query("INSERT INTO shop.t VALUES (2)")
    writer.commit()
    assert views.low_of(definition_of(server, "shop", "t")).contains(log_position(server))
    views.close()


def test_a_table_without_transactions_is_read_under_a_lock(server: Server, database: str) -> None:
    server.run(f"CREATE TABLE {database}.m (id INT PRIMARY KEY) ENGINE=MyISAM", f"INSERT INTO {database}.m VALUES (1)")
    connection = server.connect()
    prepare(connection)
    views = ReadViews(connection, way_of(connection), server.connect, lock_ms_max=30_000)
    view = views.open(definition_of(server, database, "m"), log_position(server), transactional=False)
    writer = threading.Thread(target=server.query, args=(f"INSERT INTO {database}.m VALUES (2)",))
    writer.start()
    writer.join(0.2)
    assert query(connection, f"SELECT id FROM {database}.m") == [(1,)]
    assert view.low == view.high
    assert writer.is_alive()
    view.close()
    writer.join()
    connection.close()


@pytest.mark.parametrize("exact", [False, True])
def test_a_table_that_is_altered_while_a_view_is_open_is_seen_whole_or_not_at_all(
    kind: str, exact: bool, new_server: Callable[..., Server]
) -> None:
    """MySQL 5.7 shows an older view what an ALTER had copied by then, and says nothing."""
    server = new_server(kind)
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY AUTO_INCREMENT, v CHAR(200))")
    server.run("INSERT INTO shop.t (v) VALUES (''), (''), (''), ('')")
    server.run(*["INSERT INTO shop.t (v) SELECT v FROM shop.t"] * 14)
    for number in range(COPIES_MAX):
        seen = seen_during_alter(server, f"n{number}", exact=exact)
        if seen is not None:
            ((rows,),) = server.query("SELECT COUNT(*) FROM shop.t")
            assert seen in ([(rows,)], [ER.TABLE_DEF_CHANGED])
            return
        server.run("INSERT INTO shop.t (v) SELECT v FROM shop.t")  # so that copying takes longer
    pytest.fail("no view was open before the copy was made")


def seen_during_alter(server: Server, column: str, *, exact: bool) -> list[object] | None:
    """What a view sees that was opened while the table was being copied, read once it was; None if it came too late."""
    other, connection = server.connect(autocommit=False), server.connect()
    prepare(connection)
    views = ReadViews(connection, way_of(connection), server.connect, lock_ms_max=3_000)
    definition = definition_of(server, "shop", "t")
    assert query(other, "SELECT 1 FROM shop.t LIMIT 1")  # it may copy, but not put the copy in place
    alter = threading.Thread(target=server.run, args=(f"ALTER TABLE shop.t ADD COLUMN {column} INT, ALGORITHM=COPY",))
    alter.start()

    def state_among(*states: str) -> str:
        """The first of these that the ALTER comes to, and the last where it is that."""
        end = time.monotonic() + 60
        while True:
            found = {each for (each,) in query(other, "SELECT state FROM information_schema.processlist") if each}
            for state in reversed(states):
                if any(each.startswith(state) for each in found):
                    return state
            assert time.monotonic() < end, query(other, "SHOW PROCESSLIST")

    seen: list[object] = []

    def read() -> None:
        try:
            seen.extend(query(connection, "SELECT COUNT(*) FROM shop.t"))
        except pymysql.OperationalError as error:
            seen.append(error.args[0])

    reads = threading.Thread(target=read)
    try:
        if state_among(COPIES, COPIED) == COPIED:
            return None
        try:
            views.open(definition, None, transactional=True, exact=exact)
        except LockBusy:  # it waits behind the ALTER
            return None
        state_among(COPIED)
        reads.start()
        reads.join(0.5)
    finally:
        other.rollback()
        if reads.ident is not None:
            reads.join()
        connection.close()  # with what it holds of the table
        alter.join()
    return seen
