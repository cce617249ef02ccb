"""XA transactions: prepared in one place of the log, committed in another, or rolled back."""

from collections.abc import Iterator

import pytest

from databus.core import PositionPurged, UnsupportedFeature
from databus.testing.servers import Server
from tests.mysql.following import Follower, purge, second_after


class Branch:
    """An XA transaction on a connection of its own."""

    def __init__(self, server: Server, database: str, xid: str) -> None:
        self._server = server
        self._xid = xid
        self._connection = server.connect(database=database, autocommit=True)
        self.run(f"XA START {xid}")

    def run(self, *statements: str) -> "Branch":
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        return self

    def prepare(self, *, leaves: bool = False) -> "Branch":
        """leaves: close the connection, so that any other may decide."""
        self.run(f"XA END {self._xid}", f"XA PREPARE {self._xid}")
        if leaves:
            self._connection.close()
            while (0,) not in self._server.query("SELECT 0") or not self._server.query("XA RECOVER"):
                pass
        return self

    def decide(self, how: str) -> None:
        if self._connection.open:
            self.run(f"XA {how} {self._xid}")
            self._connection.close()
        else:
            self._server.run(f"XA {how} {self._xid}")


def insert(number: int) -> str:
    return f"INSERT INTO a (id, name) VALUES ({number}, 'xa')"


def ids(follower: Follower, database: str) -> list[int]:
    return sorted(key for (key,) in follower.copy().tables.get(f"{database}.a", {}) if key >= 900)


@pytest.fixture(params=["plain", "compressed"])
def log_form(server: Server, request: pytest.FixtureRequest) -> Iterator[None]:
    """How the server writes transactions; MySQL 5.7 compresses nothing."""
    option = {"mariadb-10.11": "log_bin_compress", "mysql-5.7": None}.get(server.kind, "binlog_transaction_compression")
    if request.param == "plain" or option is None:
        yield
        return
    server.run(f"SET GLOBAL {option} = ON")
    yield
    server.run(f"SET GLOBAL {option} = OFF")


def test_a_prepared_transaction_arrives_at_its_commit(server, database, busy, follow) -> None:
    follower = follow(database, server, heartbeat_ms=5_000)
    follower.check(server, database)
    branch = (
        Branch(server, database, "'one','a\\'b',7").run(insert(901), "UPDATE a SET name = 'xa' WHERE id < 4").prepare()
    )
    other = Branch(server, database, "X'00ff80'").run(insert(902)).prepare()
    server.run(f"INSERT INTO {database}.a (id) VALUES (903)")
    follower.catch_up(server, database)
    assert ids(follower, database) == [903]
    branch.decide("COMMIT")
    other.decide("ROLLBACK")
    follower.check(server, database)
    last = next(
        rows for group in reversed(follower.tape.groups) for rows in group.rows if rows.table.source.endswith(".a")
    )
    assert [row["id"] for row in last.batch.to_pylist() if row["id"] >= 900] == [901]
    assert not follower.tried


def test_one_phase_and_an_id_used_again(server, database, busy, follow) -> None:
    follower = follow(database, server)
    follower.check(server, database)
    for number, how in ((901, "COMMIT"), (902, "ROLLBACK"), (903, "COMMIT")):
        Branch(server, database, "'again'").run(insert(number)).prepare().decide(how)
    Branch(server, database, "'again'").run(insert(904), "XA END 'again'").decide("COMMIT 'again' ONE PHASE -- ")
    follower.check(server, database)
    assert ids(follower, database) == [901, 903, 904]


@pytest.mark.usefixtures("log_form")
def test_each_way_to_decide(server, database, busy, follow) -> None:
    follower = follow(database, server)
    follower.check(server, database)
    Branch(server, database, "'p'").run(insert(901), insert(902), "XA END 'p'").decide("COMMIT 'p' ONE PHASE -- ")
    Branch(server, database, "'q'").run(insert(903), insert(904)).prepare().decide("COMMIT")
    Branch(server, database, "'r'").run(insert(905)).prepare().decide("ROLLBACK")
    follower.check(server, database)
    assert ids(follower, database) == [901, 902, 903, 904]


def test_what_is_prepared_outlives_capture_and_the_server(server, database, busy, follow, request) -> None:
    """The server is started anew and its log purged meanwhile."""
    request.addfinalizer(lambda: purge(server))  # other tests read this log from its beginning
    follower = follow(database, server)
    follower.check(server, database)
    kept = Branch(server, database, "'kept'").run(insert(901), "DELETE FROM a WHERE id = 5").prepare()
    gone = Branch(server, database, "'gone'").run(insert(902)).prepare()
    follower.catch_up(server, database)
    follower.kill()
    server.restart()
    server.run("FLUSH BINARY LOGS", f"INSERT INTO {database}.a (id) VALUES (903)")
    follower.catch_up(server, database)
    server.run(f"PURGE BINARY LOGS TO '{server.position()[0]}'")
    follower.kill()
    server.run("XA COMMIT 'kept'", "XA ROLLBACK 'gone'")
    follower.check(server, database)
    assert ids(follower, database) == [901, 903]
    del kept, gone


def test_one_that_was_committed_before_the_begin_is_not_looked_for(server, database, busy, follow, request) -> None:
    """Its PREPARE has left the server's log, of which the oldest file that there is has its commit."""
    request.addfinalizer(lambda: purge(server))  # other tests read this log from its beginning
    branch = Branch(server, database, "'before'").run(insert(901)).prepare()
    purge(server)
    branch.decide("COMMIT")
    begin = second_after(server)
    Branch(server, database, "'after'").run(insert(902)).prepare().decide("COMMIT")
    follower = follow(database, server, start=begin)
    follower.catch_up(server, database)
    assert ids(follower, database) == [902]


def test_a_large_prepared_transaction_is_held_in_little_memory(server, database, busy, follow) -> None:
    server.run(f"CREATE TABLE {database}.big (id INT PRIMARY KEY, v TEXT)")
    follower = follow(database, server)
    follower.check(server, database)
    values = [",".join(f"({n}, REPEAT('x', 60000))" for n in range(first, first + 50)) for first in range(0, 300, 50)]
    branch = Branch(server, database, "'big'").run(*(f"INSERT INTO big VALUES {each}" for each in values)).prepare()
    follower.catch_up(server, database)
    branch.decide("COMMIT")
    follower.check(server, database)
    assert len(follower.copy().tables[f"{database}.big"]) == 300


@pytest.mark.usefixtures("log_form")
def test_what_was_prepared_before_capture_began_arrives(server, database, busy, follow) -> None:
    server.run("FLUSH BINARY LOGS")
    early = Branch(server, database, "'early'").run(insert(901)).prepare()
    late = Branch(server, database, "'late'").run(insert(902)).prepare()
    gone = Branch(server, database, "'gone'").run(insert(903)).prepare()
    server.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    follower = follow(database, server, heartbeat_ms=5_000)
    follower.check(server, database)
    gone.decide("ROLLBACK")
    early.decide("COMMIT")
    follower.check(server, database)
    assert ids(follower, database) == [901]
    assert len(follower.tried) == 1
    late.decide("COMMIT")
    follower.check(server, database)
    assert ids(follower, database) == [901, 902]
    assert len(follower.tried) == 1


@pytest.mark.usefixtures("log_form")
def test_a_commit_that_comes_first_of_all_finds_what_was_prepared_in_the_same_file(
    server, database, busy, follow
) -> None:
    branch = Branch(server, database, "'early'").run(insert(901)).prepare()
    follower = follow(database, server)
    follower.start()
    branch.decide("COMMIT")
    follower.check(server, database)
    assert ids(follower, database) == [901]


@pytest.mark.usefixtures("log_form")
def test_what_is_prepared_arrives_where_its_folder_was_lost(server, database, busy, follow, tmp_path) -> None:
    follower = follow(database, server)
    follower.check(server, database)
    branch = Branch(server, database, "'one'").run(insert(901)).prepare()
    follower.catch_up(server, database)
    follower.kill()
    (tmp_path / "source0" / "prepared").unlink()
    branch.decide("COMMIT")
    follower.check(server, database)
    assert ids(follower, database) == [901]


@pytest.mark.parametrize("on_gap", ["stop", "resnapshot"])
def test_a_prepared_transaction_that_the_log_has_no_more_is_a_gap(
    server, database, busy, follow, on_gap, request
) -> None:
    request.addfinalizer(lambda: purge(server))  # other tests read this log from its beginning
    branch = Branch(server, database, "'one'").run(insert(901)).prepare()
    purge(server)
    follower = follow(database, server, on_gap=on_gap)
    follower.check(server, database)
    branch.decide("COMMIT")
    if on_gap == "stop":
        with pytest.raises(PositionPurged, match=r"6f6e65,,1.*on_gap: resnapshot"):
            follower.catch_up(server, database)
    else:
        follower.check(server, database)
        assert "gap" in follower.copy().kinds()
    assert (ids(follower, database) == [901]) == (on_gap == "resnapshot")
    follower.kill()


def test_a_statement_that_changes_nothing_may_stand_between_prepare_and_commit(server, database, busy, follow) -> None:
    """MariaDB lets it pass once the session that prepared has ended."""
    if server.kind != "mariadb-10.11":
        pytest.skip("this server has such statements wait, or lets others pass too")
    follower = follow(database, server)
    follower.check(server, database)
    (column,) = server.query(f"SHOW COLUMNS FROM {database}.a LIKE 'name'")
    Branch(server, database, "'early'").run(insert(901)).prepare(leaves=True)
    server.run(f"USE {database}", f"ALTER TABLE a MODIFY name {column[1]}")
    server.run("XA COMMIT 'early'")
    follower.check(server, database)
    assert ids(follower, database) == [901]


@pytest.mark.parametrize("how", ["TRUNCATE TABLE a", "DROP TABLE a", "RENAME TABLE a TO was_a"])
def test_rows_that_were_prepared_before_a_statement_changed_their_table_stop_capture(
    server, database, busy, follow, how
) -> None:
    """MySQL 5.7 lets go of a prepared transaction's locks when its session ends."""
    if server.kind != "mysql-5.7":
        pytest.skip("this server has such statements wait until the transaction is decided")
    follower = follow(database, server)
    follower.check(server, database)
    Branch(server, database, "'early'").run(insert(901)).prepare(leaves=True)
    server.run(f"USE {database}", "SET SESSION lock_wait_timeout = 10", how)
    follower.catch_up(server, database)
    follower.kill()
    server.run("XA COMMIT 'early'")
    with pytest.raises(UnsupportedFeature, match=r"prepared before a statement changed that table"):
        follower.catch_up(server, database)
