"""A table that becomes another one, or cannot be read, while it is read: the log says which, and the others flow on."""

import pytest

from databus.testing.servers import Server
from tests.mysql.following import FAMILIES, Follower, create

GOES_AWAY = [
    ("RENAME TABLE {0}.a TO {0}._a",),
    ("RENAME TABLE {0}.a TO {0}.c",),
    ("RENAME TABLE {0}.a TO {0}.c", "CREATE VIEW {0}.a AS SELECT * FROM {0}.c"),
    ("RENAME TABLE {0}.a TO {0}.c, {0}.b TO {0}.a",),
    ("RENAME TABLE {0}.a TO {0}.c", "CREATE TABLE {0}.a (x INT PRIMARY KEY)", "INSERT INTO {0}.a VALUES (1)"),
    ("ALTER TABLE {0}.a CHANGE id other INT",),
    ("DROP TABLE {0}.a", "CREATE TABLE {0}.a (name INT, x INT PRIMARY KEY)", "INSERT INTO {0}.a VALUES (1, 2)"),
]


@pytest.mark.parametrize("statements", GOES_AWAY, ids=lambda statements: statements[-1][:40])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_table_that_becomes_another_one_while_it_is_read(server: Server, database: str, follow, statements) -> None:
    create(server, database)
    follower: Follower = follow(database, server, chunk_rows_max=3, exclude=[f"{database}.[_]*"])
    follower.until(lambda: "snapshot_begin" in [each["kind"] for each in follower.copy().controls])
    server.run(*(statement.format(database) for statement in statements))
    follower.catch_up(server, database)
    copy = follower.copy()
    for source in [source for source, rows in copy.tables.items() if rows]:
        name = source.partition(".")[2]
        assert len(server.query(f"SELECT * FROM {database}.{name}")) == len(copy.tables[source]), source


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_table_without_its_tablespace_is_read_when_it_has_one_again(server: Server, database: str, follow) -> None:
    create(server, database)
    follower: Follower = follow(database, server, chunk_rows_max=3)
    server.run(f"ALTER TABLE {database}.a DISCARD TABLESPACE")
    follower.until(lambda: "snapshot_begin" in [each["kind"] for each in follower.copy().controls])
    server.run(f"INSERT INTO {database}.b VALUES ('meanwhile', 1, 1)")
    follower.until(lambda: ("meanwhile", 1) in follower.copy().tables.get(f"{database}.b", {}))
    ended = {each["source"] for each in follower.copy().controls if each["kind"] == "snapshot_end"}
    assert f"{database}.a" not in ended
    server.run(f"DROP TABLE {database}.a")
    follower.check(server, database)
