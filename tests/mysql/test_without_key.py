"""Tables without a key that are never left in peace: read once, under a lock, while writers wait."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

import pymysql
import pytest

from databus.core import ChangeType, ControlKind, InputError
from databus.testing._source_suite import Tape
from databus.testing.servers import Server
from tests.mysql.following import ARRIVE_S_MAX

ROWS = 5_000
OF_ROWS = ", ".join(f"({number}, 'first')" for number in range(ROWS))


class Writer:
    """Inserts, updates and deletes rows of `t` without a pause, on a connection of its own."""

    def __init__(self, server: Server, database: str) -> None:
        self.done = 0
        self._connection = server.connect(database=database, autocommit=True)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(ARRIVE_S_MAX)
        self._connection.close()

    def _run(self) -> None:
        with self._connection.cursor() as cursor, suppress(pymysql.err.InterfaceError):
            while not self._stopping.is_set():
                number = ROWS + self.done
                cursor.execute(f"INSERT INTO t VALUES ({number}, 'new')")
                cursor.execute(f"UPDATE t SET v = 'changed' WHERE n = {self.done % ROWS}")
                cursor.execute(f"DELETE FROM t WHERE n = {number - 7}")
                self.done += 1


@pytest.fixture
def written(server: Server, database: str) -> Iterator[tuple[Server, str]]:
    """A table without a key, whose rows a test can tell from each other, and the grant to lock it."""
    server.run(
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (n INT, v VARCHAR(20)) ENGINE=InnoDB",
        f"INSERT INTO {database}.t VALUES {OF_ROWS}",
        f"GRANT LOCK TABLES ON {database}.* TO '{server.capture_user}'@'%'",
    )
    yield server, database
    server.run(f"REVOKE LOCK TABLES ON {database}.* FROM '{server.capture_user}'@'%'")


def controls(tape: Tape, kind: ControlKind) -> list[Any]:
    return [
        group.control
        for group in tape.groups
        if group.control is not None and group.control.kind is kind and group.control.table.source.endswith(".t")
    ]


def rows_by_number(tape: Tape) -> dict[int, str]:
    """The copy that an output with `key: n` would have."""
    held: dict[int, str] = {}
    for group in tape.groups:
        for rows in group.rows:
            for row in rows.batch.to_pylist() if rows.table.source.endswith(".t") else []:
                if row["_change_type"] in (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE):
                    held[row["n"]] = row["v"]
                else:
                    held.pop(row["n"], None)
    return held


def test_a_table_that_is_always_written_is_read_once_and_right(written, follow) -> None:
    server, database = written
    follower = follow(database, server, lock_tables_without_key=True)
    with Writer(server, database) as writer:
        follower.until(lambda: bool(controls(follower.tape, ControlKind.SNAPSHOT_END)))
        done, end = writer.done, time.monotonic() + ARRIVE_S_MAX
        while writer.done < done + 20:  # they go on
            follower.step()
            assert time.monotonic() < end
    follower.catch_up(server, database)
    assert len(controls(follower.tape, ControlKind.SNAPSHOT_BEGIN)) == 1
    assert rows_by_number(follower.tape) == dict(server.query(f"SELECT n, v FROM {database}.t"))


def test_writers_wait_until_the_last_row_has_its_place(written, follow) -> None:
    server, database = written
    follower = follow(database, server, lock_tables_without_key=True)
    follower.until(lambda: any(group.snapshot and group.rows for group in follower.tape.groups))
    waiting = server.connect(database=database, autocommit=True)
    thread = threading.Thread(target=waiting.query, args=("INSERT INTO t VALUES (-1, 'late')",))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()  # chunks wait for their places, and nobody steps
    follower.catch_up(server, database)
    thread.join(ARRIVE_S_MAX)
    assert not thread.is_alive()
    follower.catch_up(server, database)
    waiting.close()
    assert rows_by_number(follower.tape) == {-1: "late", **dict.fromkeys(range(ROWS), "first")}


@pytest.mark.parametrize("locks", [True, False], ids=["locked", "not"])
def test_a_connection_that_is_lost_leaves_no_table_unread(written, follow, locks) -> None:
    server, database = written
    follower = follow(database, server, lock_tables_without_key=locks)
    follower.until(lambda: any(group.snapshot and group.rows for group in follower.tape.groups))
    for row in server.query("SHOW PROCESSLIST"):
        if row[1] == server.capture_user and "inlog" not in str(row[4]):
            with suppress(pymysql.err.OperationalError):  # it has gone by itself
                server.query(f"KILL {row[0]}")
    if locks:  # which others may do again
        server.run(f"UPDATE {database}.t SET v = 'changed'", f"DELETE FROM {database}.t WHERE n < 100")
    follower.catch_up(server, database)
    assert not locks or len(controls(follower.tape, ControlKind.SNAPSHOT_BEGIN)) > 1  # else all may have come already
    assert rows_by_number(follower.tape) == dict(server.query(f"SELECT n, v FROM {database}.t"))


def test_without_the_grant_a_start_says_so(written, follow) -> None:
    server, database = written
    server.run(f"REVOKE LOCK TABLES ON {database}.* FROM '{server.capture_user}'@'%'")
    with pytest.raises(InputError, match=rf"may not lock {database}\.t.*GRANT LOCK TABLES ON `{database}`"):
        follow(database, server, lock_tables_without_key=True).start()
    server.run(f"GRANT LOCK TABLES ON {database}.* TO '{server.capture_user}'@'%'")


def equal_rows(tape: Tape, source: str) -> list[tuple[Any, ...]]:
    """The rows of a table without a key, by the rule of docs/mysql.md: its consumers have equal rows as often."""
    held: list[tuple[tuple[int, int], bool, tuple[Any, ...]]] = []
    for group in tape.groups:
        control = group.control
        if control is not None and control.table.source == source and control.kind is ControlKind.SNAPSHOT_END:
            held = [each for each in held if each[1] and each[0] >= tuple(control.body["begin"])]
        for rows in group.rows:
            if rows.table.source != source:
                continue
            for row in rows.batch.to_pylist():
                values = tuple(value for name, value in row.items() if not name.startswith("_"))
                if row["_change_type"] in (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE):
                    held.append(((row["_commit_version"], row["_seq"]), row["_snapshot"], values))
                else:
                    held.remove(max(each for each in held if each[2] == values))
    return sorted(values for _, _, values in held)


def test_rows_that_are_read_again_take_the_place_of_those_before(written, follow) -> None:
    server, database = written
    source = f"{database}.t"
    server.run(f"DELETE FROM {source} WHERE n >= 40", f"INSERT INTO {source} SELECT * FROM {source} WHERE n < 20")
    follower = follow(database, server)
    follower.catch_up(server, database)
    for number in range(4):
        server.run(f"INSERT INTO {source} SELECT * FROM {source} WHERE n < 10")
        assert follower.source is not None
        follower.source.request_snapshot([source])
        server.run(f"DELETE FROM {source} WHERE n = {number} LIMIT 2", f"UPDATE {source} SET v = 'x' WHERE n % 7 = 1")
        follower.step()
        server.run(f"UPDATE {source} SET n = n + 1 WHERE n = 30", f"INSERT INTO {source} VALUES (1, 'x'), (1, 'x')")
        follower.catch_up(server, database)
        assert equal_rows(follower.tape, source) == sorted(server.query(f"SELECT n, v FROM {source}"))
    assert len(controls(follower.tape, ControlKind.SNAPSHOT_END)) > 4


@pytest.mark.parametrize("limit", ["sql_select_limit", "max_join_size"])
def test_a_limit_that_the_server_sets_on_selects_cuts_nothing(
    written: tuple[Server, str], follow: Any, limit: str
) -> None:
    server, database = written
    server.run(f"SET GLOBAL {limit} = 3")
    try:
        follower = follow(database, server)
        follower.catch_up(server, database)
    finally:
        server.run(f"SET GLOBAL {limit} = 18446744073709551615")
    rows = [rows for group in follower.tape.groups for rows in group.rows if rows.table.source == f"{database}.t"]
    assert sum(each.batch.num_rows for each in rows) == ROWS
