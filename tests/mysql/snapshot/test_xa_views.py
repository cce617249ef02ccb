"""Tables that XA transactions write while they are read: MariaDB's log has a commit before a view shows it."""

import re
import threading
from bisect import bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from databus.sources.mysql.snapshot import MysqlSnapshotReader, XaHistory, _read_views
from databus.sources.mysql.snapshot._read_session import prepare
from databus.sources.mysql.snapshot._read_views import ReadViews, prepared_xids, query, way_of
from databus.sources.snapshots import Placed
from databus.testing.servers import Server
from tests.mysql.following import Follower, config_of, create
from tests.mysql.snapshot.support import definition_of, log_position, running, task_of

MARIADB = "mariadb-10.11"
XID, ID = "X'00ff80','b',7", "00ff80,62,7"
WRITERS = 3
VIEWS = 150


@pytest.fixture
def mariadb(plain_server: Callable[[str], Server]) -> Server:
    return plain_server(MARIADB)


def test_a_chunk_that_may_lack_what_the_log_calls_committed_is_read_again(mariadb: Server) -> None:
    mariadb.run("DROP DATABASE IF EXISTS xa", "CREATE DATABASE xa", "CREATE TABLE xa.t (id INT PRIMARY KEY, n INT)")
    mariadb.run("INSERT INTO xa.t VALUES (1, 0)")
    reader = MysqlSnapshotReader(mariadb.connect)
    reader.advance(5, log_position(mariadb))
    with mariadb.connect(database="xa", autocommit=True) as branch, branch.cursor() as cursor:
        for statement in (f"XA START {XID}", "UPDATE t SET n = 1", f"XA END {XID}", f"XA PREPARE {XID}"):
            cursor.execute(statement)
        reader.xa.committed(ID, 5)  # as where the engine is late
        reader.begin(task_of(mariadb, "xa", "t"))
        while reader.progress()[0].rereads < 3:
            reader.advance(5, log_position(mariadb))
            assert reader.take(0.05) is None
        cursor.execute(f"XA COMMIT {XID}")
    found = None
    while found is None:
        reader.advance(6, log_position(mariadb))
        found = reader.take(0.05)
    reader.close()
    assert isinstance(found, Placed)
    assert found.arrays[1].to_pylist() == [1]


def test_those_that_are_prepared_are_named_as_the_log_names_them(mariadb: Server) -> None:
    with mariadb.connect(autocommit=True) as branch, branch.cursor() as cursor:
        for statement in (f"XA START {XID}", f"XA END {XID}", f"XA PREPARE {XID}"):
            cursor.execute(statement)
        with mariadb.connect() as connection:
            assert ID in prepared_xids(connection)
        cursor.execute(f"XA ROLLBACK {XID}")


def test_the_last_event_up_to_an_scn_counts() -> None:
    history = XaHistory(events_max=3)
    history.prepared("a", 1)
    history.committed("a", 3)
    history.prepared("a", 5)
    assert [history.is_any_committed({"a"}, scn) for scn in range(7)] == [False, False, False, True, True, False, False]
    history.committed("b", 6)
    history.committed("b", 7)
    assert not history.is_any_committed({"a"}, 4)  # forgotten
    assert history.is_any_committed({"a", "b"}, 6)


def commits(server: Server) -> AbstractContextManager[None]:
    """XA transactions that each raise the number of a row of their own by one."""

    def write(key: int, stop: threading.Event) -> None:
        number = 0
        with server.connect(database="xa", autocommit=True) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                number += 1
                xid = f"'{key}-{number}'"
                for statement in (
                    f"XA START {xid}", f"REPLACE INTO t VALUES ({key}, {number})", f"XA END {xid}",
                    f"XA PREPARE {xid}", f"XA COMMIT {xid}",
                ):  # fmt: skip
                    cursor.execute(statement)

    return running(write, range(1_000, 1_000 + WRITERS))


def test_a_view_lacks_only_those_that_it_names(mariadb: Server) -> None:
    mariadb.run("DROP DATABASE IF EXISTS xa", "CREATE DATABASE xa", "CREATE TABLE xa.t (id INT PRIMARY KEY, n INT)")
    definition = definition_of(mariadb, "xa", "t")
    mariadb.run("FLUSH BINARY LOGS")
    first = mariadb.position()[0]
    found = []
    with commits(mariadb), mariadb.connect() as connection:
        prepare(connection)
        views = ReadViews(connection, way_of(connection), mariadb.connect, lock_ms_max=30_000)
        for _ in range(VIEWS):
            view = views.open(definition, None, transactional=True)
            found.append((view, dict(query(connection, "SELECT id, n FROM xa.t"))))
            view.close()
    logged = committed_after(mariadb, first)
    assert len(logged) > VIEWS / 2
    places = [place for place, _, _ in logged]
    for view, rows in found:
        upto = bisect_right(places, (view.low.file, view.low.offset))
        last = {key: number for _, key, number in logged[:upto]}
        lacking = [f"{key}-{number}" for key, number in last.items() if rows.get(key, 0) < number]
        assert {f"{xid.encode().hex()},,1" for xid in lacking} <= view.prepared


def committed_after(server: Server, file: str) -> list[tuple[tuple[str, int], int, int]]:
    """The place of each XA COMMIT in the log from a file on, with key and number."""
    found = []
    for name, *_ in server.query("SHOW BINARY LOGS"):
        for event in server.query(f"SHOW BINLOG EVENTS IN '{name}'") if str(name) >= file else ():
            said = re.match(r"XA COMMIT X'(\w+)'", str(event[5]))
            if said:
                key, number = bytes.fromhex(said[1]).decode().split("-")
                found.append(((str(name), int(event[4])), int(key), int(number)))
    return found


def test_capture_tells_the_reader_what_is_committed(
    mariadb: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.run("DROP DATABASE IF EXISTS xa", "CREATE DATABASE xa CHARACTER SET utf8mb4")
    create(mariadb, "xa")
    follower = Follower(config_of("xa", mariadb), tmp_path)
    follower.catch_up(mariadb, "xa")
    with mariadb.connect(database="xa", autocommit=True) as branch, branch.cursor() as cursor:
        for statement in ("START", "END", "PREPARE", "COMMIT"):
            cursor.execute(f"XA {statement} {XID}")
    follower.catch_up(mariadb, "xa")
    assert follower.source is not None
    late = [True] * 3
    monkeypatch.setattr(_read_views, "prepared_xids", lambda _: frozenset({ID} if late and late.pop() else ()))
    follower.source.request_snapshot(["xa.a"])
    follower.catch_up(mariadb, "xa")
    assert not late
    assert follower.copy().differences(mariadb, "xa") == []
    follower.kill()
