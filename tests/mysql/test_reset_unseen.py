"""A server that was reset while nobody looked, and whose new log has an event just where ours ended."""

import itertools
import time

import pytest

from databus.core import SourceChanged
from databus.testing.servers import Server


def fill(server: Server, database: str, value: int) -> tuple[str, int]:
    """Statements of the same lengths, whatever the value; returns where the log ends."""
    server.reset_logs()
    server.run(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
    for number in range(3):
        server.run(f"INSERT INTO {database}.t VALUES ({number}, {value})")
    return server.position()


@pytest.mark.parametrize("policy", ["stop", "resnapshot"])
def test_a_reset_server_whose_new_log_has_an_event_where_ours_ended_is_found_out(
    server, database, follow, policy
) -> None:
    ends = fill(server, database, 1)
    follower = follow(database, server, on_gap=policy)
    server.run(f"INSERT INTO {database}.t VALUES (3, 1)")
    server.run(f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)")
    follower.check(server, database)
    follower.kill()
    position = follower.tape.groups[-1].commit.position
    assert position["file"] == ends[0]
    time.sleep(1.1)  # what was reset within the second in which its log began cannot be told apart
    fill(server, database, 2)
    server.run(f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)")
    for number in itertools.count(4):
        server.run(f"INSERT INTO {database}.t VALUES ({number}, 2)")
        if server.position()[1] > position["offset"]:
            break
    if policy == "stop":
        with pytest.raises(SourceChanged, match=r"began the file of that name at .*RESET MASTER|RESET MASTER"):
            follower.start()
        return
    copy = follower.check(server, database)
    assert {row["v"] for _, row in copy.tables[f"{database}.t"].values()} == {2}


def test_a_server_that_was_only_restarted_is_the_same(server, database, follow) -> None:
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {database}.t VALUES (1, 1)")
    server.run(f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)")
    follower = follow(database, server)
    follower.check(server, database)
    for _ in range(3):
        follower.kill()
        server.run(f"UPDATE {database}.t SET v = v + 1")
        follower.check(server, database)
    assert follower.tape.groups[-1].commit.position["began_s"] > 0
