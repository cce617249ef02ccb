"""What transactions can be, how the log has them, and which of them cannot be captured."""

from collections.abc import Callable
from pathlib import Path

import pytest

from databus.core import (
    DatabusError,
    UnrepresentableValue,
    UnsupportedFeature,
)
from databus.testing.servers import Server
from tests.mysql.following import Load, config_of, create

MakeServer = Callable[..., Server]


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
    with pytest.raises(UnsupportedFeature, match=r"a statement was logged instead of the rows.*LOAD DATA"):
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
        with load.paused():  # which would be a deadlock now and then
            server.run("UPDATE shop.a SET name = REPEAT('y', 60)")
        load.wait_for(5, follower)
        load.stop()
        follower.check(server, "shop")


def test_compressed_transactions_of_several_mib_are_read(new_server, follow) -> None:
    """They are inflated in pieces; the log goes on behind all of them."""
    server = new_server("mysql-8.0", lines=["binlog_transaction_compression=ON"])
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)")
    create(server, "shop")
    follower = follow("shop", server, snapshot="never", heartbeat_ms=5_000)
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
        with pytest.raises(UnrepresentableValue):
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
        with pytest.raises(UnsupportedFeature, match="on_class3: resnapshot"):
            follower.until(lambda: False, 20)
    assert "schema" not in follower.copy().kinds(f"{database}.a")
    follower.config = config_of(database, server)
    follower.check(server, database)
