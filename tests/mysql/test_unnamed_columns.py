"""DDL that is in no log, where the log does not name columns: what a table map carries is compared with what is known.

MySQL 8 has signedness and character sets in its table maps by default (MINIMAL); 5.7, and MariaDB by default, have
types, widths and nullability only.
"""

from collections.abc import Iterator

import pytest

from databus.core import SourceChanged, UnsupportedFeature
from databus.testing.servers import Server
from tests.mysql.following import create
from tests.mysql.test_unlogged_ddl import alter_unlogged, told

pytestmark = pytest.mark.old_servers


@pytest.fixture
def shop(server: Server, database: str) -> Iterator[tuple[Server, str]]:
    """The shared server, with as little metadata in its log as makes a difference."""
    has_metadata = server.kind != "mysql-5.7"
    if has_metadata:
        server.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    create(server, database)
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, n INT, v VARCHAR(20)) CHARACTER SET latin1")
    server.run(f"INSERT INTO {database}.t VALUES (1, 1, 'one')")
    yield server, database
    if has_metadata:
        server.run("SET GLOBAL binlog_row_metadata = 'FULL'")


@pytest.fixture
def minimal(shop: tuple[Server, str]) -> tuple[Server, str]:
    if shop[0].kind == "mysql-5.7":
        pytest.skip("MySQL 5.7's table maps carry neither signedness nor character sets")
    return shop


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("MODIFY n INT UNSIGNED", "4000000000, 'x'"),
        ("CONVERT TO CHARACTER SET utf8mb4", "2, 'h\N{LATIN SMALL LETTER E WITH ACUTE}'"),
    ],
)
def test_another_sign_or_character_set_is_seen_in_the_next_row(minimal, follow, change, value) -> None:
    server, database = minimal
    follower = follow(database, server)
    follower.check(server, database)
    alter_unlogged(server, f"ALTER TABLE {database}.t {change}")
    server.run(f"INSERT INTO {database}.t VALUES (2, {value})", f"UPDATE {database}.t SET id = 3 WHERE id = 2")
    follower.check(server, database)
    (schema,) = [body for body in follower.copy().controls if body["kind"] == "schema"]
    assert (schema["source"], schema["class"]) == (f"{database}.t", 3)


@pytest.mark.parametrize("change", ["ADD COLUMN w INT", "DROP COLUMN n", "MODIFY n BIGINT", "MODIFY n INT NOT NULL"])
def test_another_shape_is_seen_in_the_next_row_on_every_server(shop, follow, change) -> None:
    server, database = shop
    follower = follow(database, server)
    follower.check(server, database)
    follower.kill()
    server.run(f"INSERT INTO {database}.t (id, n) VALUES (2, 2)")
    alter_unlogged(server, f"ALTER TABLE {database}.t {change}")
    column, value = ("v", "'x'") if "DROP" in change else ("n", "4")
    server.run(f"INSERT INTO {database}.t (id, {column}) VALUES (3, {value})")
    follower.check(server, database)
    found = told(follower.tape, f"{database}.t")
    assert [kind for kind, _, _ in found] == ["row", "schema", "row"]
    assert [pair for _, pair, _ in found] == sorted(pair for _, pair, _ in found)


def test_there_and_back_again_is_told_each_time(minimal, follow) -> None:
    server, database = minimal
    follower = follow(database, server)
    follower.check(server, database)
    for number, (kind, value) in enumerate((("INT UNSIGNED", 3_000_000_000), ("INT", -5), ("INT UNSIGNED", 7)), 2):
        alter_unlogged(server, f"DELETE FROM {database}.t", f"ALTER TABLE {database}.t MODIFY n {kind}")
        server.run(f"INSERT INTO {database}.t VALUES ({number}, {value}, 'x')")
        follower.check(server, database)
    assert follower.copy().kinds(f"{database}.t") == ["schema"] * 3


def test_a_table_made_without_the_log_is_known_once_its_rows_are_logged(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server)
    follower.check(server, database)
    alter_unlogged(server, f"CREATE TABLE {database}.late (id INT UNSIGNED PRIMARY KEY, e ENUM('x', 'y'))")
    server.run(f"INSERT INTO {database}.late VALUES (4000000000, 'y')")
    follower.check(server, database)


def test_capture_stops_where_a_later_statement_may_have_changed_the_table_again(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server)
    follower.check(server, database)
    follower.kill()
    alter_unlogged(server, f"ALTER TABLE {database}.t ADD COLUMN e ENUM('x', 'y')")
    server.run(f"INSERT INTO {database}.t VALUES (2, 2, 'x', 'y')")
    server.run(f"ALTER TABLE {database}.t MODIFY e ENUM('y', 'x')")
    with pytest.raises(SourceChanged, match=r"cannot tell what it was: .ALTER TABLE .* came later"):
        follower.catch_up(server, database)
    assert told(follower.tape, f"{database}.t") == []


def test_it_stops_before_the_row_where_the_policy_says_so(shop, follow) -> None:
    server, database = shop
    follower = follow(database, server, on_class3="stop")
    follower.check(server, database)
    server.run(f"INSERT INTO {database}.t VALUES (2, 2, 'x')")
    alter_unlogged(server, f"ALTER TABLE {database}.t ADD COLUMN w INT")
    server.run(f"INSERT INTO {database}.t VALUES (3, 2, 'x', 4)")
    for _ in range(2):
        with pytest.raises(UnsupportedFeature, match="on_class3"):
            follower.catch_up(server, database)
    assert [what[0] for kind, _, what in told(follower.tape, f"{database}.t") if kind == "row"] == [2]


@pytest.mark.parametrize("kind", ["mariadb-10.11"])
def test_an_engines_own_index_of_hashes_is_no_hidden_column(plain_server, kind, follow) -> None:
    """InnoDB keeps the hashes of a long UNIQUE in a column that rows of the log have; MEMORY has an index of them."""
    server = plain_server(kind)
    server.run("SET GLOBAL binlog_row_metadata = 'NO_LOG'", "DROP DATABASE IF EXISTS hashes", "CREATE DATABASE hashes")
    server.run(
        "CREATE TABLE hashes.mark (id INT PRIMARY KEY, n BIGINT)",
        "CREATE TABLE hashes.m (id INT PRIMARY KEY, v INT UNIQUE, w VARCHAR(20)) ENGINE=MEMORY",
        "CREATE TABLE hashes.i (id INT PRIMARY KEY, v TEXT, UNIQUE (v))",
    )
    try:
        follower = follow("hashes", server, snapshot="never")
        follower.step()
        server.run("INSERT INTO hashes.m VALUES (1, 2, 'a')", "INSERT INTO hashes.i VALUES (1, 'a')")
        follower.check(server, "hashes")
        server.run("UPDATE hashes.m SET w = 'b'", "UPDATE hashes.i SET v = 'b'", "DELETE FROM hashes.m")
        follower.check(server, "hashes")
    finally:
        server.run("SET GLOBAL binlog_row_metadata = 'FULL'", "DROP DATABASE hashes")
