"""Invalid dates in a key: several rows with a null for a key would be one row, so no policy makes them null there."""

import pytest

from databus.core import UnrepresentableValue
from databus.testing.servers import Server
from tests.mysql.following import create


@pytest.fixture
def dated(server: Server, database: str) -> tuple[Server, str]:
    """A table with dates in its key and outside of it."""
    create(server, database)
    server.run(f"CREATE TABLE {database}.t (day DATE, n INT, other DATE, PRIMARY KEY (day, n))")
    return server, database


def insert(server: Server, database: str, *rows: str) -> None:
    with server.connect(database=database, init_command="SET sql_mode = 'ALLOW_INVALID_DATES'") as session:
        session.cursor().execute(f"INSERT INTO t VALUES {', '.join(rows)}")


def test_an_invalid_date_in_a_key_is_refused_in_the_log_and_the_rest_is_null(dated, follow) -> None:
    server, database = dated
    insert(server, database, "('2020-01-01', 1, 0)")
    follower = follow(database, server, zero_dates="null")
    follower.catch_up(server, database)
    insert(server, database, "('2020-01-02', 1, '2020-02-31')")
    follower.catch_up(server, database)
    assert [row["other"] for _, row in follower.copy().tables[f"{database}.t"].values()] == [None, None]
    insert(server, database, "(0, 1, NULL)", "('2020-02-31', 1, NULL)")
    with pytest.raises(UnrepresentableValue, match=rf"{database}\.t: column 'day' .* is part of the table's key"):
        follower.catch_up(server, database)


def test_an_invalid_date_in_a_key_is_refused_in_a_snapshot(dated, follow) -> None:
    server, database = dated
    insert(server, database, "('2020-01-01', 1, 0)", "(0, 1, NULL)", "('2020-00-10', 1, NULL)")
    follower = follow(database, server, zero_dates="null")
    with pytest.raises(UnrepresentableValue, match=rf"{database}\.t: column 'day' .* is part of the table's key"):
        follower.catch_up(server, database)
