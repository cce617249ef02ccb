"""What happens to servers and networks, and what capture makes of it: nothing lost, nothing double, nothing guessed."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest

from databus.core import (
    Corrupt,
    DatabusError,
    PositionPurged,
    SourceChanged,
    Stop,
    Unavailable,
    Unrepresentable,
    Unsupported,
    make_scn,
    timeline_of,
)
from databus.sources.mysql._kernels import load_kernels
from databus.sources.mysql.binlog import DumpEnded
from databus.testing import TcpProxy
from databus.testing.servers import Server
from tests.mysql.following import Follower, Load, config_of, create, hosts, purge

MakeServer = Callable[..., Server]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    load_kernels("tests")


@pytest.fixture
def seed(record_property: Callable[[str, object], None]) -> int:
    """Another one in each run; `DATABUS_SEED` repeats one."""
    chosen = int(os.environ.get("DATABUS_SEED", random.SystemRandom().randrange(1 << 30)))
    record_property("seed", chosen)
    sys.stdout.write(f"seed {chosen}\n")
    return chosen


@pytest.fixture
def busy(server: Server, database: str, seed: int) -> Iterator[Load]:
    """The shared server with the load's tables; the load is to be started by the test."""
    create(server, database)
    load = Load(server, database, seed)
    yield load
    load.stop() if load._thread.ident else None


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    """Make followers; they let go at the end."""
    made: list[Follower] = []

    def make(database: str, *servers: Server, **options: object) -> Follower:
        made.append(Follower(config_of(database, *servers, **options), tmp_path / f"source{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.kill()


# The server dies, restarts, turns its log.


def test_server_killed_under_load_loses_and_doubles_nothing(server, database, busy, follow) -> None:
    follower = follow(database, server)
    with busy as load:
        for _ in range(3):
            load.wait_for(20, follower)
            server.kill()
            for _ in range(3):
                follower.step()
            server.start()
        load.wait_for(20, follower)
        load.stop()
        assert follower.tried, "the source did not notice"
        assert all(isinstance(error, Unavailable) for error in follower.tried)
        follower.check(server, database)


def test_server_restarted_under_load_loses_and_doubles_nothing(server, database, busy, follow) -> None:
    follower = follow(database, server)
    with busy as load:
        load.wait_for(20, follower)
        server.restart()
        load.wait_for(20, follower)
        load.stop()
        follower.check(server, database)


def test_dumps_that_end_without_an_error_lose_and_double_nothing(server, database, busy, follow) -> None:
    follower = follow(database, server)
    with busy as load:
        for _ in range(3):
            load.wait_for(10, follower)
            dumps = [row[0] for row in server.query("SHOW PROCESSLIST") if str(row[4]).startswith("Binlog Dump")]
            with suppress(pymysql.MySQLError):  # it may have ended by itself
                server.query(f"KILL QUERY {max(dumps)}")
            load.wait_for(10, follower)
        load.stop()
        assert follower.tried, "the source did not notice"
        assert all(isinstance(error, Unavailable) for error in follower.tried)
        follower.check(server, database)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["mysql-8.0"])
def test_heartbeats_that_end_the_dump_lose_and_double_nothing(server, database, busy, follow) -> None:
    """MySQL 8.0.31 takes something that is logged while it sends a heartbeat for the end, and says so without an error.

    Other releases do not. With heartbeats as rare as they are in practice it takes hours to see it.
    """
    follower = follow(database, server)
    follower.config = follower.config.model_copy(update={"heartbeat_ms": 1})
    with busy as load:
        while sum(isinstance(error, DumpEnded) for error in follower.tried) < 5:
            load.wait_for(1, follower)
            time.sleep(0.002)
        load.stop()
        follower.check(server, database)


def test_the_log_is_turned_under_load(server, database, busy, follow) -> None:
    follower = follow(database, server)
    with busy as load:
        for _ in range(6):
            load.wait_for(8, follower)
            server.run("FLUSH BINARY LOGS")
        load.stop()
        follower.check(server, database)


def test_the_source_killed_again_and_again_under_load(server, database, busy, follow, seed) -> None:
    follower, dice = follow(database, server), random.Random(seed)
    with busy as load:
        for _ in range(12):
            for _ in range(dice.randint(1, 25)):
                follower.step()
            follower.kill()
        load.stop()
        follower.check(server, database)


# What we need is gone.


def test_a_purge_beyond_what_we_have_stops_naming_what_is_missing(server, database, busy, follow) -> None:
    follower = follow(database, server)
    follower.check(server, database)
    follower.kill()
    server.run(f"DELETE FROM {database}.a WHERE id < 50")
    purge(server)
    server.run(f"DELETE FROM {database}.a WHERE id < 60")
    with pytest.raises(PositionPurged) as raised:
        follower.start()
    assert server.position()[0] in str(raised.value)
    assert "on_gap: resnapshot" in str(raised.value)


def test_a_purge_is_survived_by_reading_the_tables_again(server, database, busy, follow) -> None:
    follower = follow(database, server, on_gap="resnapshot")
    follower.check(server, database)
    follower.kill()
    last = follower.tape.groups[-1].commit.scn
    server.run(f"DELETE FROM {database}.a WHERE id < 50", f"INSERT INTO {database}.b VALUES ('lost', 1, 2)")
    purge(server)
    with busy as load:
        load.wait_for(10, follower)
        load.stop()
        copy = follower.check(server, database)
    gaps = [control for control in copy.controls if control["kind"] == "gap"]
    assert {gap["source"] for gap in gaps} == {f"{database}.{name}" for name in ("a", "b", "mark")}
    assert all(gap["from"] == last and gap["to"] > last and gap["resnapshot"] for gap in gaps)
    assert "purged" in gaps[0]["reason"]


def test_a_reset_server_is_not_followed(server, database, busy, follow) -> None:
    follower = follow(database, server)
    follower.check(server, database)
    follower.kill()
    server.reset_logs()
    server.run(f"DELETE FROM {database}.a WHERE id < 60")
    with pytest.raises(SourceChanged, match="RESET MASTER"):
        follower.start()


def test_a_reset_server_is_followed_on_a_new_timeline(server, database, busy, follow) -> None:
    follower = follow(database, server, on_gap="resnapshot")
    follower.check(server, database)
    follower.kill()
    last = follower.tape.groups[-1].commit.scn
    server.reset_logs()
    server.run(f"DELETE FROM {database}.a WHERE id < 60")
    with busy as load:
        load.wait_for(10, follower)
        load.stop()
        copy = follower.check(server, database)
    assert timeline_of(follower.tape.groups[-1].commit.scn) == timeline_of(last) + 1
    (gap,) = [control for control in copy.controls if control["kind"] == "gap" and control["source"] == f"{database}.a"]
    assert gap["from"] == last
    assert gap["to"] >= make_scn(timeline_of(last) + 1, 0)


def test_a_reset_while_following_stops_at_once(server, database, busy, follow) -> None:
    follower = follow(database, server)
    follower.check(server, database)
    server.reset_logs()
    server.run(f"DELETE FROM {database}.a WHERE id < 60")
    with pytest.raises(SourceChanged, match="RESET MASTER"):
        follower.until(lambda: False, 20)


def test_a_reset_server_that_has_grown_beyond_us_is_not_followed(server, database, busy, follow) -> None:
    server.reset_logs()
    follower = follow(database, server)
    follower.check(server, database)
    follower.kill()
    server.reset_logs()
    for number in range(40):
        server.run(f"INSERT INTO {database}.b VALUES ('{'x' * (number % 19)}', {number}, 1)")
    assert server.position()[1] > follower.tape.groups[-1].commit.position["offset"]
    with pytest.raises(SourceChanged, match="RESET MASTER"):
        follower.start()


# Networks.


def test_a_network_that_is_cut_and_slow_loses_nothing(server, database, busy, follow) -> None:
    with TcpProxy(server.host, server.port) as proxy:
        follower = follow(database, server)
        follower.config.hosts[:] = [f"127.0.0.1:{proxy.port}"]
        with busy as load:
            for count in (3_000, 700, 20_000):
                load.wait_for(5, follower)
                proxy.truncate_after(count)
                load.wait_for(5, follower)
                proxy.cut()
            proxy.delay_ms, proxy.chunk_bytes = 1, 300
            load.wait_for(10, follower)
            load.stop()
            proxy.delay_ms, proxy.chunk_bytes = 0, 1 << 16
            follower.check(server, database)
        assert follower.tried
        follower.kill()


def test_a_half_open_connection_ends_when_the_heartbeat_is_missed(server, database, busy, follow) -> None:
    with TcpProxy(server.host, server.port) as proxy:
        follower = follow(database, server)
        follower.config.hosts[:] = [f"127.0.0.1:{proxy.port}"]
        follower.catch_up(server, database)
        before = len(follower.tried)
        proxy.is_silent = True
        follower.until(lambda: len(follower.tried) > before)
        assert "heartbeat" in str(follower.tried[before])
        proxy.is_silent = False
        follower.check(server, database)
        follower.kill()


def test_a_flipped_bit_is_found_by_the_logs_checksum(server, database, busy, follow) -> None:
    with TcpProxy(server.host, server.port) as proxy:
        follower = follow(database, server)
        follower.config.hosts[:] = [f"127.0.0.1:{proxy.port}"]
        follower.catch_up(server, database)
        proxy.flip_after(700)
        server.run(f"UPDATE {database}.a SET name = REPEAT('x', 50)")
        with suppress(Corrupt, Stop):  # or the connection's own packets are broken, and it is tried again
            follower.check(server, database)
        follower.check(server, database)
        follower.kill()


# Servers that replicate each other.


@pytest.fixture
def two(kind: str, new_server: MakeServer) -> tuple[Server, Server, str]:
    """A primary with the load's tables and its replica, with GTIDs."""
    primary, replica = new_server(kind), new_server(kind)
    primary.run("CREATE DATABASE shop")
    create(primary, "shop")
    replica.replicate_from(primary)
    replica.catch_up(primary)
    return primary, replica, "shop"


def test_capture_goes_on_at_the_new_primary(two, follow, seed) -> None:
    primary, replica, database = two
    follower = follow(database, primary, replica)
    with Load(primary, database, seed) as load:
        for _ in range(2):
            load.wait_for(25, follower)
            with load.paused():
                replica.catch_up(primary)
                replica.promote()
                load.server = replica
                primary.kill()
            load.wait_for(25, follower)
            primary.start()
            primary.replicate_from(replica)
            primary.catch_up(replica)
            primary, replica = replica, primary
        load.stop()
        follower.check(primary, database)
    again = follow(database, primary, snapshot="never", start="earliest")
    again.catch_up(primary, database)
    ours, theirs = _without_times(follower), _without_times(again)
    shared = [each for each in theirs if each[0] >= ours[0][0]]
    assert [each for each in ours if each[0] <= shared[-1][0]] == [each for each in shared if each[0] <= ours[-1][0]]


def _without_times(follower: Follower) -> list[tuple[object, ...]]:
    """What was logged, without the commit times: those of MariaDB's replicas may be a second later."""
    found: list[tuple[object, ...]] = []
    for group in follower.tape.groups:
        for rows in group.rows if not group.snapshot else ():
            found += [
                ((row["_commit_version"], row["_seq"]), rows.table.source, repr(row))
                for row in rows.batch.drop_columns("_commit_timestamp").to_pylist()
            ]
    return sorted(found)


# What happens to tables.


DDL = (
    "ALTER TABLE a ADD COLUMN note VARCHAR(20) DEFAULT 'none'",
    "ALTER TABLE a ADD COLUMN n2 INT NOT NULL DEFAULT 7 FIRST",
    "ALTER TABLE a MODIFY name VARCHAR(200)",
    "ALTER TABLE a MODIFY price DECIMAL(9,1)",
    "ALTER TABLE a ADD INDEX (name)",
    "ALTER TABLE a DROP COLUMN note",
    "TRUNCATE TABLE b",
    "CREATE TABLE c LIKE a",
    "INSERT INTO c (id, name) SELECT id, name FROM a",
    "RENAME TABLE a TO a_old, c TO a",
    "DROP TABLE a_old",
    "CREATE TABLE d (PRIMARY KEY (id)) AS SELECT id, name FROM a",
    "UPDATE d SET name = 'd' WHERE id % 2 = 0",
    "DROP TABLE b",
    "CREATE TABLE b (k VARCHAR(20), n INT, x DOUBLE, more INT DEFAULT 3, PRIMARY KEY (k, n))",
    "ALTER TABLE b RENAME COLUMN more TO most",
    "ALTER TABLE b CHANGE most more BIGINT DEFAULT 4",
    "INSERT INTO b (k, n) VALUES ('after', 1)",
    # as gh-ost and pt-online-schema-change do it
    "CREATE TABLE _b_new LIKE b",
    "ALTER TABLE _b_new ADD COLUMN flag INT NOT NULL DEFAULT 5",
    "INSERT IGNORE INTO _b_new (k, n, x, more) SELECT k, n, x, more FROM b",
    "RENAME TABLE b TO _b_old, _b_new TO b",
    "DROP TABLE _b_old",
)


def _ddl_of(kind: str) -> list[str]:
    """CREATE TABLE ... SELECT is refused by MySQL 5.7 with GTIDs, and 5.7 has no RENAME COLUMN."""
    if kind != "mysql-5.7":
        return list(DDL)
    refused = ("CREATE TABLE d", "UPDATE d", "ALTER TABLE b RENAME COLUMN")
    return [each.replace("CHANGE most more", "CHANGE more more") for each in DDL if not each.startswith(refused)]


@pytest.mark.parametrize("metadata", ["FULL", "none"])
@pytest.mark.parametrize("is_behind", [False, True], ids=["live", "behind"])
def test_schema_changes_under_load_leave_the_copy_identical(
    server, database, busy, follow, metadata, is_behind
) -> None:
    """Live, and when capture was away for all of it and finds many DDLs and rows in the log."""
    minimal = "NO_LOG" if "maria" in server.kind else "MINIMAL"
    if server.kind == "mysql-5.7":
        if metadata == "FULL":
            pytest.skip("MySQL 5.7 has no binlog_row_metadata")
    elif metadata == "none":
        server.run(f"SET GLOBAL binlog_row_metadata = '{minimal}'")
    try:
        follower = follow(database, server)
        follower.check(server, database)
        if is_behind:
            follower.kill()
        with busy as load, server.connect(database=database) as connection, connection.cursor() as cursor:
            for statement in _ddl_of(server.kind):
                load.wait_for(3, None if is_behind else follower)
                if "SELECT" in statement or statement.startswith("UPDATE"):
                    with load.paused():  # no deadlock with it
                        cursor.execute(statement)
                else:
                    cursor.execute(statement)
            load.wait_for(3, None if is_behind else follower)
            load.stop()
            copy = follower.check(server, database)
    finally:
        if server.kind != "mysql-5.7":
            server.run("SET GLOBAL binlog_row_metadata = 'FULL'")
    fills = [each["fill"] for each in copy.controls if each["kind"] == "schema" and each["class"] == 2]
    assert {"note": "none"} in fills
    assert {"n2": 7} in fills
    assert copy.kinds(f"{database}.b").count("drop") >= 1
    # which MySQL 8.0.31 does now and then: see test_heartbeats_that_end_the_dump_lose_and_double_nothing
    assert all(isinstance(error, DumpEnded) for error in follower.tried)


def test_tables_that_are_renamed_into_the_selection_and_out_of_it(server, database, follow) -> None:
    create(server, database)
    follower = follow(database, server, exclude=[f"{database}.hidden*"])
    server.run(
        f"CREATE TABLE {database}.hidden1 (id INT PRIMARY KEY, name VARCHAR(9))",
        f"INSERT INTO {database}.hidden1 VALUES (1, 'one'), (2, 'two')",
    )
    follower.catch_up(server, database)
    server.run(
        f"INSERT INTO {database}.hidden1 VALUES (3, 'three')",
        f"RENAME TABLE {database}.hidden1 TO {database}.shown, {database}.b TO {database}.hidden2",
        f"INSERT INTO {database}.shown VALUES (4, 'four')",
    )
    follower.catch_up(server, database)
    copy = follower.copy()
    assert set(copy.tables) == {f"{database}.{name}" for name in ("a", "mark", "shown")}
    assert sorted(row["name"] for _, row in copy.tables[f"{database}.shown"].values()) == [
        "four",
        "one",
        "three",
        "two",
    ]
    assert copy.kinds(f"{database}.b") == ["drop"]


# What transactions can be.


def test_savepoints_rollbacks_and_big_transactions(server, database, busy, follow) -> None:
    follower = follow(database, server)
    follower.catch_up(server, database)
    server.run(f"CREATE TABLE {database}.plain (id INT PRIMARY KEY, n INT) ENGINE = MyISAM")
    with server.connect(database=database, autocommit=False) as connection, connection.cursor() as cursor:

        def run(*statements: str) -> None:
            for statement in statements:
                cursor.execute(statement)

        run("INSERT INTO a (id, name) VALUES (900, 'kept')", "SAVEPOINT one", "DELETE FROM a WHERE id < 50")
        run("ROLLBACK TO one", "INSERT INTO a (id, name) VALUES (901, 'kept')", "COMMIT")
        run("INSERT INTO a (id, name) VALUES (902, 'never')", "ROLLBACK")
        run("INSERT INTO plain VALUES (1, 1), (2, 2)", "UPDATE plain SET n = n + 1")
        if server.kind != "mysql-5.7":  # which refuses both in one transaction with GTIDs, as 8.0 does
            run("COMMIT")
        run("COMMIT", "BEGIN")
        for start in range(0, 100_000, 10_000):
            rows = ",".join(f"({n}, 'big', 1, NULL)" for n in range(1_000 + start, 11_000 + start))
            run(f"INSERT INTO a VALUES {rows}")
        run("COMMIT")
    copy = follower.check(server, database)
    assert len(copy.tables[f"{database}.a"]) > 100_000
    assert max(len(rows.batch) for group in follower.tape.groups for rows in group.rows) < 1_000


STATEMENTS = (
    "UPDATE {0}.a SET name = 'unseen' WHERE id < 5",
    "INSERT INTO {0}.a (id) VALUES (1000), (1001)",
    "REPLACE INTO {0}.a (id) SELECT n FROM {0}.b",
    "DELETE t FROM {0}.a AS t JOIN {0}.b ON b.n = t.id",
    "/* a comment */ DELETE FROM {0}.a",
    "INSERT INTO `{0}`.`a` (id) VALUES (1002)",
)


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "from_outside"])
def test_a_statement_instead_of_rows_on_a_captured_table_stops_by_name(
    server, database, busy, follow, statement, is_inside
) -> None:
    server.run("CREATE DATABASE IF NOT EXISTS outside", f"INSERT INTO {database}.b VALUES ('x', 60, 1)")
    follower = follow(database, server)
    follower.check(server, database)
    text = statement.format(database)
    with server.connect(database=database if is_inside else "outside") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute(text)
    server.run(f"UPDATE {database}.mark SET n = n + 1")
    with pytest.raises(DatabusError) as raised:
        follower.catch_up(server, database)
    assert "a statement was logged instead of the rows" in str(raised.value)
    assert text[:30] in str(raised.value)
    follower.kill()
    server.run("DROP DATABASE outside")


def _load_as_a_statement(server: Server, database: str, table: str, file: Path) -> None:
    file.write_text("".join(f"{number}\n" for number in range(5_000, 5_100)))
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute(f"LOAD DATA INFILE '{file}' INTO TABLE {table} (id)")


@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "from_outside"])
def test_a_file_loaded_as_a_statement_into_a_captured_table_stops_by_name(
    server, database, busy, follow, tmp_path, is_inside
) -> None:
    server.run("CREATE DATABASE IF NOT EXISTS outside")
    follower = follow(database, server)
    follower.check(server, database)
    groups = len(follower.tape.groups)
    _load_as_a_statement(server, database if is_inside else "outside", f"{database}.a", tmp_path / "rows.txt")
    server.run(f"UPDATE {database}.mark SET n = n + 1")
    with pytest.raises(Unsupported, match=r"a statement was logged instead of the rows.*LOAD DATA"):
        follower.until(lambda: False, 20)
    assert not [row for group in follower.tape.groups[groups:] for row in group.rows]
    follower.kill()
    server.run("DROP DATABASE outside")


def test_a_file_loaded_as_a_statement_into_another_table_is_passed_over(
    server, database, busy, follow, tmp_path
) -> None:
    server.run("CREATE DATABASE IF NOT EXISTS outside", "CREATE TABLE outside.t (id INT PRIMARY KEY)")
    follower = follow(database, server)
    follower.check(server, database)
    _load_as_a_statement(server, "outside", "t", tmp_path / "rows.txt")
    follower.check(server, database)
    assert server.query("SELECT COUNT(*) FROM outside.t") == [(100,)]
    follower.kill()
    server.run("DROP DATABASE outside")


def test_statements_that_touch_nothing_captured_are_passed_over(server, database, busy, follow) -> None:
    server.run("CREATE DATABASE IF NOT EXISTS outside", "CREATE TABLE outside.t (id INT PRIMARY KEY)")
    follower = follow(database, server)
    follower.check(server, database)
    with server.connect(database="outside") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("INSERT INTO t VALUES (1), (2)")
        cursor.execute("SAVEPOINT s")
        cursor.execute("UPDATE t SET id = id + 10")
    follower.check(server, database)
    follower.kill()
    server.run("DROP DATABASE outside")


def test_compressed_logs_are_read(kind, new_server, follow, seed) -> None:
    if kind == "mysql-5.7":
        pytest.skip("MySQL 5.7 compresses no log")
    line = "log_bin_compress=ON" if "maria" in kind else "binlog_transaction_compression=ON"
    server = new_server(kind, lines=[line], checksum="NONE")
    server.run("CREATE DATABASE shop")
    create(server, "shop")
    follower = follow("shop", server)
    with Load(server, "shop", seed) as load:
        load.wait_for(40, follower)
        server.run("UPDATE shop.a SET name = REPEAT('y', 60)")
        load.wait_for(5, follower)
        load.stop()
        follower.check(server, "shop")


def test_compressed_transactions_of_several_mib_are_read(new_server, follow) -> None:
    """They are inflated in pieces; the log goes on behind all of them."""
    server = new_server("mysql-8.0", lines=["binlog_transaction_compression=ON"])
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)")
    create(server, "shop")
    follower = follow("shop", server, snapshot="never")
    follower.step()
    with server.connect(database="shop", autocommit=False) as session, session.cursor() as cursor:
        for number in range(60):
            cursor.execute("INSERT INTO t VALUES (%s, REPEAT('x', %s))", (number, 100_000 + number))
        session.commit()
        cursor.execute("UPDATE t SET v = 'y' WHERE id % 2")
        session.commit()
    server.run("DELETE FROM shop.a")
    follower.catch_up(server, "shop")
    assert not follower.tried
    copy = follower.copy()
    assert [(key, len(row["v"])) for key, (_, row) in sorted(copy.tables["shop.t"].items())] == [
        ((number,), 1 if number % 2 else 100_000 + number) for number in range(60)
    ]


def test_an_xa_transaction_on_a_captured_table_stops_by_name(server, database, busy, follow) -> None:
    follower = follow(database, server)
    follower.check(server, database)
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("XA START 'x'")
        cursor.execute("INSERT INTO b VALUES ('xa', 1, 1)")
        cursor.execute("XA END 'x'")
        cursor.execute("XA PREPARE 'x'")
        with pytest.raises(DatabusError, match="XA"):
            follower.catch_up(server, database)
        cursor.execute("XA ROLLBACK 'x'")


def test_a_replica_behind_us_is_waited_for(two, follow, seed) -> None:
    primary, replica, database = two
    follower = follow(database, primary, replica)
    follower.check(primary, database)
    replica.run(f"STOP {replica._replica}")
    primary.run(f"DELETE FROM {database}.a WHERE id < 40")
    follower.catch_up(primary, database)
    server, primary_port = primary, primary.port
    server.suspend()
    try:
        follower.kill()
        follower.config.hosts[:] = hosts(replica)
        with pytest.raises(Unavailable, match="behind us"):
            follower.start()
    finally:
        server.resume()
    assert primary.port == primary_port
    replica.run(f"START {replica._replica}")
    replica.catch_up(primary)
    primary.run(f"DELETE FROM {database}.a WHERE id < 60")
    replica.catch_up(primary)
    replica.promote()
    follower.check(replica, database)


def test_a_new_primary_that_lacks_what_we_have_is_not_followed(two, follow) -> None:
    """An unplanned switch: the old primary took transactions with it that only we have seen."""
    primary, replica, database = two
    follower = follow(database, primary, replica)
    follower.check(primary, database)
    replica.run(f"STOP {replica._replica}")
    primary.run(f"DELETE FROM {database}.a WHERE id < 40")
    follower.catch_up(primary, database)
    primary.kill()
    replica.promote()
    replica.run(*[f"INSERT INTO {database}.b VALUES ('new', {n}, 1)" for n in range(6)])
    before = len(follower.tape.groups)
    with pytest.raises((SourceChanged, Unavailable)) as raised:
        follower.start()
    lost = "never logged" if "maria" in primary.kind else "has not executed"
    assert lost in str(raised.value), raised.value
    assert len(follower.tape.groups) == before


def test_a_replica_with_transactions_of_its_own_is_named(two, follow) -> None:
    primary, replica, database = two
    follower = follow(database, primary)
    follower.check(primary, database)
    follower.kill()
    replica.run(f"INSERT INTO {database}.b VALUES ('errant', 1, 1)", "SET GLOBAL read_only = 1")
    replica.catch_up(primary)
    follower.config.hosts[:] = hosts(replica)
    with pytest.raises(SourceChanged, match="of its own") as raised:
        follower.start()
    if "maria" not in replica.kind:
        assert str(replica.query("SELECT @@server_uuid")[0][0]) in str(raised.value)


def test_another_server_with_files_of_the_same_names_is_told_apart(kind, new_server, follow) -> None:
    first, other = (new_server(kind, gtid=gtid) for gtid in (False, False))
    for server in (first, other):
        server.run("CREATE DATABASE shop", f"GRANT LOCK TABLES ON shop.* TO '{server.capture_user}'@'%'")
        create(server, "shop")
    follower = follow("shop", first)
    follower.check(first, "shop")
    follower.kill()
    other.run(*["INSERT INTO shop.b VALUES ('x', 1, 1)", "DELETE FROM shop.b"] * 3)
    follower.config.hosts[:] = hosts(other)
    with pytest.raises(SourceChanged, match="captured from"):
        follower.start()


# What cannot be captured.


def test_capture_stops_right_before_a_transaction_that_it_cannot_capture(server, database, follow) -> None:
    """All that went before is in, and a new start stops at the same place again."""
    create(server, database)
    server.run("CREATE DATABASE IF NOT EXISTS outside", "CREATE TABLE outside.t (id INT)")
    follower = follow(database, server, group_bytes_max=1 << 20, progress_ms=60_000)
    follower.check(server, database)
    follower.kill()
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for number in range(5):
            cursor.execute(f"INSERT INTO b VALUES ('good', {number}, 1)")
            cursor.execute("INSERT INTO outside.t VALUES (1)")
        before = server.gtids()
        cursor.execute("INSERT INTO a (id, at) VALUES (2000, '0000-00-00 00:00:00')")
        cursor.execute("INSERT INTO b VALUES ('later', 1, 1)")
    server.run("DROP DATABASE outside")
    for _ in range(2):
        with pytest.raises(Unrepresentable):
            follower.until(lambda: False, 20)
        goods = [row for _, row in follower.copy().tables[f"{database}.b"].values()]
        assert [row["n"] for row in goods if row["k"] == "good"] == list(range(5))
        assert not [row for row in goods if row["k"] == "later"]
        assert follower.tape.groups[-1].commit.position["gtids"] == before


def test_a_class_3_change_that_may_not_be_read_again_stops_at_each_start(server, database, follow) -> None:
    create(server, database)
    follower = follow(database, server, on_class3="stop")
    follower.check(server, database)
    server.run(f"ALTER TABLE {database}.a MODIFY price DECIMAL(9,1)", f"DELETE FROM {database}.a WHERE id < 9")
    for _ in range(3):
        with pytest.raises(Unsupported, match="on_class3: resnapshot"):
            follower.until(lambda: False, 20)
    assert "schema" not in follower.copy().kinds(f"{database}.a")
    follower.config = config_of(database, server)
    follower.check(server, database)
