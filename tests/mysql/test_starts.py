"""Where a new log begins: every form of `start`, and `snapshot: only`."""

import time

import pytest

from databus.core import UnknownSource
from databus.sources.mysql.binlog import Heartbeat, Scanner
from tests.mysql.following import Follower, config_of, create, purge, second_after


def _names(follower: Follower, database: str) -> set[str]:
    return {row["k"] for _, row in follower.copy().tables.get(f"{database}.b", {}).values()}


def _place(follower: Follower) -> tuple[str, int]:
    """The place in the server's log that the tape has come to."""
    position = follower.tape.groups[-1].commit.position if follower.tape.groups else {"file": "", "offset": 0}
    return position["file"], position["offset"]


def test_start_at_a_time_passes_over_what_was_committed_before(server, database, follow) -> None:
    create(server, database)
    server.run(f"INSERT INTO {database}.b VALUES ('early', 1, 1)", f"ALTER TABLE {database}.b ADD COLUMN late INT")
    server.run(f"INSERT INTO {database}.b (k, n) VALUES ('early', 2)", "FLUSH BINARY LOGS")
    begin = second_after(server)
    server.run(f"INSERT INTO {database}.b VALUES ('late', 3, 1, 7)", f"ALTER TABLE {database}.b DROP COLUMN x")
    server.run(f"INSERT INTO {database}.b VALUES ('late', 4, 8)")
    follower = follow(database, server, start=begin)
    follower.catch_up(server, database)
    assert _names(follower, database) == {"late"}
    assert [row for _, row in follower.copy().tables[f"{database}.b"].values()] == [
        {"k": "late", "n": 3, "late": 7},
        {"k": "late", "n": 4, "late": 8},
    ]
    assert "begins_us" not in follower.tape.groups[-1].commit.position


def test_a_start_at_a_time_that_is_still_to_come_survives_a_restart(server, database, follow) -> None:
    create(server, database)
    server.run(f"INSERT INTO {database}.b VALUES ('early', 1, 1)")
    follower = follow(database, server, start="2100-01-01T00:00:00Z")
    for number in range(3):
        server.run(f"INSERT INTO {database}.b VALUES ('early', {number + 2}, 1)")
        behind = server.position()
        follower.until(lambda behind=behind: _place(follower) >= behind)  # commits alone
        follower.kill()
    assert not [rows for group in follower.tape.groups for rows in group.rows]
    assert follower.tape.groups[-1].commit.position["begins_us"] > 0


def test_snapshot_only_ends_with_the_tables_as_they_were(server, database, follow) -> None:
    create(server, database)
    follower = follow(database, server, snapshot="only")
    follower.until(lambda: bool(follower.tape.groups) and not follower.tape.groups[-1].commit.snapshots)
    assert follower.copy().differences(server, database) == []
    count = len(follower.tape.groups)
    server.run(f"INSERT INTO {database}.b VALUES ('later', 1, 1)")
    for _ in range(2):
        end = time.monotonic() + 0.7
        follower.until(lambda end=end: time.monotonic() > end)
        assert len(follower.tape.groups) == count
        assert follower.source is not None
        with pytest.raises(UnknownSource, match="only"):
            follower.source.request_snapshot([f"{database}.b"])
        follower.kill()
    follower.config = config_of(database, server)  # whoever wants the changes since gets them all
    follower.check(server, database)


def test_a_source_that_dies_before_the_log_has_said_anything_is_found_again_where_it_was(
    server, database, follow
) -> None:
    """Asked by GTIDs, a server begins with the head of a file, where other GTIDs stand."""
    create(server, database)
    server.run("FLUSH BINARY LOGS")
    follower = follow(database, server)
    follower.catch_up(server, database)
    follower.config = config_of(database, server, heartbeat_ms=60_000)
    follower.start()
    follower.until(lambda: follower.step() is None)
    assert follower.source is not None
    follower.source.request_snapshot([f"{database}.b"])
    count = len(follower.tape.groups)
    follower.until(lambda: len(follower.tape.groups) > count)
    assert follower.tape.groups[-1].commit.snapshots
    follower.config = config_of(database, server)
    follower.start()
    follower.check(server, database)


def test_a_start_at_gtids_is_survived_where_older_files_are_purged(new_server, follow) -> None:
    server = new_server("mariadb-10.11")
    server.run("CREATE DATABASE shop")
    create(server, "shop")
    purge(server)
    server.run("INSERT INTO shop.b VALUES ('early', 1, 1)")
    ((gtids,),) = server.query("SELECT @@gtid_binlog_pos")
    server.run("INSERT INTO shop.b VALUES ('late', 2, 1)")
    follower = follow("shop", server, start=f"gtid:{gtids}", snapshot="never")
    follower.until(lambda: bool(follower.tape.groups))
    follower.start()
    follower.catch_up(server, "shop")
    assert _names(follower, "shop") == {"late"}


def test_a_start_costs_no_heartbeat_for_each_event_that_is_left_out(server, database, follow, monkeypatch) -> None:
    """Asked by GTIDs, a server reads its file from the head and leaves out what we have."""
    create(server, database)
    for number in range(200):
        server.run(f"INSERT INTO {database}.b VALUES ('early', {number}, 1)")
    follower = follow(database, server, heartbeat_ms=100)
    follower.check(server, database)
    heartbeats = []
    scan_on = Scanner.next

    def counting(scanner):
        found = scan_on(scanner)
        heartbeats.extend([found] if isinstance(found, Heartbeat) else [])
        return found

    monkeypatch.setattr(Scanner, "next", counting)
    began = time.monotonic()
    follower.start()
    follower.check(server, database)
    of_their_own = (time.monotonic() - began) / 0.1
    assert len(heartbeats) < 100 + of_their_own
