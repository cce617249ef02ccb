"""What happens to tables while they are captured: DDL of all kinds, names that come and go."""

from collections.abc import Callable

import pytest

from databus.sources.mysql.binlog import DumpEnded
from databus.testing.servers import Server
from tests.mysql.following import FAMILIES, create

MakeServer = Callable[..., Server]


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


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_collation_changed_while_a_table_is_read_leaves_no_row_out(plain_server, follow, kind) -> None:
    """What was read before lies between keys in the old order; killed in between, the place is still one of that."""
    server, database = plain_server(kind), "reordered"
    words = sorted({f"{a}{b}{c}" for a in "aBcD" for b in "AbCd" for c in "abCD"})
    server.run(
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY)",
        f"INSERT INTO {database}.t VALUES {', '.join(f'({word!r})' for word in words)}",
    )
    follower = follow(database, server, chunk_rows_max=5, snapshot_connections=1)

    def is_partly_read() -> bool:
        opened = follower.tape.groups[-1].commit.snapshots if follower.tape.groups else {}
        return f"{database}.t" in opened and opened[f"{database}.t"].last_key is not None

    follower.until(is_partly_read)
    follower.kill()
    server.run(f"ALTER TABLE {database}.t MODIFY k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    copy = follower.check(server, database)
    begins = [each for each in copy.controls if (each["kind"], each["source"]) == ("snapshot_begin", f"{database}.t")]
    assert len(begins) == 2
    server.run(f"DROP DATABASE {database}")
