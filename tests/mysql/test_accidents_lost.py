"""The server has lost what we still need, or is another than it was: told by name, never passed over."""

from collections.abc import Callable

import pytest

from databus.core import (
    PositionPurged,
    SourceChanged,
    make_scn,
    ordinal_of,
    timeline_of,
)
from databus.testing.servers import Server
from tests.mysql.following import create, purge

MakeServer = Callable[..., Server]


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


def test_a_reset_server_that_has_grown_beyond_our_scn_is_on_a_new_timeline_all_the_same(plain_server, follow) -> None:
    server = plain_server("mariadb-10.11")
    server.reset_logs()
    server.run("DROP DATABASE IF EXISTS grown", "CREATE DATABASE grown CHARACTER SET utf8mb4")
    create(server, "grown")
    follower = follow("grown", server, on_gap="resnapshot")
    follower.check(server, "grown")
    follower.kill()
    last = follower.tape.groups[-1].commit.scn
    server.reset_logs()
    server.run(*[f"REPLACE INTO grown.a (id) VALUES ({number})" for number in range(ordinal_of(last) + 5)])
    follower.check(server, "grown")
    assert timeline_of(follower.tape.groups[-1].commit.scn) == timeline_of(last) + 1


def test_a_reset_while_following_stops_at_once(server, database, busy, follow) -> None:
    follower = follow(database, server)
    follower.check(server, database)
    server.reset_logs()
    server.run(f"DELETE FROM {database}.a WHERE id < 60")
    with pytest.raises(SourceChanged, match="RESET MASTER"):
        follower.until(lambda: False)


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
