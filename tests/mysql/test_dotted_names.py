"""Databases and tables with dots and other signs in their names: each is read, followed and kept apart."""

import pytest

from databus.core import source_name
from databus.sources.mysql.server import check_source
from tests.mysql.following import config_of


@pytest.fixture
def dotted(server, database):
    """Two databases, of which one has a dot; both are gone at the end."""
    names = f"{database}.x", database
    server.run(f"DROP DATABASE IF EXISTS `{names[0]}`", f"CREATE DATABASE `{names[0]}`")
    yield names
    server.run(f"DROP DATABASE IF EXISTS `{names[0]}`")


def _held(copy, source: str) -> list[dict[str, object]]:
    return sorted((row for _, row in copy.tables.get(source, {}).values()), key=lambda row: int(str(row["id"])))


def test_two_tables_whose_names_differ_in_where_a_dot_stands_are_read_and_followed_apart(
    server, dotted, follow
) -> None:
    with_dot, plain = dotted
    server.run(
        f"CREATE TABLE `{plain}`.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE `{with_dot}`.c (id INT PRIMARY KEY, a INT)",
        f"CREATE TABLE `{plain}`.`x.c` (id INT PRIMARY KEY, b INT)",
        f"CREATE TABLE `{plain}`.`a,b/c*[``]` (id INT PRIMARY KEY)",
        f"INSERT INTO `{with_dot}`.c VALUES (1, 10)",
        f"INSERT INTO `{plain}`.`x.c` VALUES (1, 20)",
        f"INSERT INTO `{plain}`.`a,b/c*[``]` VALUES (5)",
    )
    follower = follow(plain, server, tables=[f"{plain}.*", f"`{with_dot}`.*"])
    follower.start()
    follower.catch_up(server, plain)
    server.run(
        f"INSERT INTO `{with_dot}`.c VALUES (2, 11)",
        f"UPDATE `{plain}`.`x.c` SET b = 21",
        f"ALTER TABLE `{with_dot}`.c ADD COLUMN more INT DEFAULT 7",
        f"INSERT INTO `{plain}`.`a,b/c*[``]` VALUES (6)",
    )
    follower.catch_up(server, plain)
    follower.start()  # where the tape ends: what is known of tables is read from the file
    server.run(f"INSERT INTO `{with_dot}`.c VALUES (3, 12, 8)", f"INSERT INTO `{plain}`.`x.c` VALUES (2, 22)")
    copy = follower.check(server, plain)

    assert _held(copy, f"`{with_dot}`.c") == [
        {"id": 1, "a": 10, "more": 7},
        {"id": 2, "a": 11, "more": 7},
        {"id": 3, "a": 12, "more": 8},
    ]
    assert _held(copy, f"{plain}.x.c") == [{"id": 1, "b": 21}, {"id": 2, "b": 22}]
    assert _held(copy, source_name(plain, "a,b/c*[`]")) == [{"id": 5}, {"id": 6}]
    assert "drop" not in copy.kinds()


def test_a_table_of_a_database_with_a_dot_is_read_again_where_a_condition_holds(server, dotted, follow) -> None:
    with_dot, plain = dotted
    server.run(
        f"CREATE TABLE `{plain}`.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE `{with_dot}`.c (id INT PRIMARY KEY, secret INT)",
        f"INSERT INTO `{with_dot}`.c VALUES (1, 1), (2, 2), (3, 3)",
    )
    source = f"`{with_dot}`.c"
    follower = follow(
        plain,
        server,
        tables=[f"`{plain}`.mark", f"`{with_dot}`.`c`"],
        columns={f"`{with_dot}`.`c`": {"exclude": ["secret"]}},
        where={f"`{with_dot}`.`c`": "id > 1"},
    )
    follower.start()
    follower.catch_up(server, plain)
    assert _held(follower.copy(), source) == [{"id": 2}, {"id": 3}]

    assert follower.source is not None
    follower.source.request_snapshot([source], "id = 1")
    follower.catch_up(server, plain)
    assert _held(follower.copy(), source) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_name_whose_dot_is_not_quoted_is_reported_with_what_was_meant(server, dotted) -> None:
    with_dot, plain = dotted
    server.run(f"CREATE TABLE `{with_dot}`.c (id INT PRIMARY KEY)", f"CREATE TABLE `{plain}`.t (id INT PRIMARY KEY)")
    config = config_of(plain, server, tables=[f"{plain}.*", f"{with_dot}.c", f"{with_dot}.*"])

    said = [each.what for each in check_source(config) if each.name == "tables"]

    for entry in config.tables[1:]:
        assert [each for each in said if f"no table fits {entry}, but `{with_dot}`.c is there" in each], said
