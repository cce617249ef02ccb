"""Servers that replicate each other: capture goes on at the one that has what comes next, or says which lacks it."""

from collections.abc import Callable

import pytest

from databus.core import (
    ServiceUnavailable,
    SourceChanged,
)
from databus.testing.servers import Server
from tests.mysql.following import Follower, Load, create, hosts

MakeServer = Callable[..., Server]


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
        with pytest.raises(ServiceUnavailable, match="behind us"):
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
    with pytest.raises((SourceChanged, ServiceUnavailable)) as raised:
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
