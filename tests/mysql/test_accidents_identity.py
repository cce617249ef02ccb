"""An address that leads to another server later: what one server holds is never laid beside the log of another.

Each test has two real servers behind one address, which turns to the other one between two connections.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.core import ServiceUnavailable
from databus.sources.mysql import MysqlSource
from databus.sources.mysql.server import Hosts, ServerMismatch, check_source, close_quietly, connect_again
from databus.sources.mysql.server._status import identity_of
from databus.sources.mysql.snapshot import _chunk_reader
from databus.testing import TcpProxy
from databus.testing.servers import Server
from tests.mysql.following import Follower, config_of, create

MakeServer = Callable[..., Server]


@pytest.fixture
def two(kind: str, new_server: MakeServer) -> tuple[Server, Server]:
    """A server, and one that has tables of the same names with other rows; neither follows the other."""
    servers = new_server(kind), new_server(kind)
    for number, server in enumerate(servers):
        server.run("CREATE DATABASE shop", f"GRANT LOCK TABLES ON shop.* TO '{server.capture_user}'@'%'")
        create(server, "shop")
        server.run("CREATE TABLE shop.keyless (n INT)", f"INSERT INTO shop.keyless VALUES ({number})")
        server.run(f"UPDATE shop.a SET name = 'of server {number}'")
    return servers


@contextmanager
def moving(server: Server) -> Iterator[tuple[TcpProxy, dict[str, Any]]]:
    """An address that leads to `server` at first, and a configuration of it."""
    with TcpProxy(server.host, server.port) as proxy:
        yield proxy, {"hosts": [f"127.0.0.1:{proxy.port}"], "lock_tables_without_key": True}


def follower_at(server: Server, folder: Path, options: dict[str, Any]) -> Follower:
    """Of the address, with that server's users."""
    return Follower(config_of("shop", server, **options), folder)


def test_a_snapshot_never_reads_another_server_than_the_one_whose_log_is_read(two, tmp_path: Path) -> None:
    first, other = two
    with moving(first) as (proxy, options):
        follower = follower_at(first, tmp_path / "source", options)
        follower.source = source = MysqlSource("shop", follower.config)
        source.identify()  # the connection that the log will come by
        proxy.turn_to(other.host, other.port)
        source.tables()
        source.start(replace(follower.tape.resume(), folder=tmp_path / "source"))
        with pytest.raises(ServiceUnavailable, match="another server than the one whose log is read"):
            while True:
                group = source.poll(100)
                if group is not None:
                    follower.tape.append(group)
        assert sum(rows.batch.num_rows for group in follower.tape.groups for rows in group.rows) == 0
        proxy.turn_to(first.host, first.port)
        try:
            follower.check(first, "shop")
        finally:
            follower.kill()


def test_a_condition_is_tried_on_the_server_that_is_captured(two, tmp_path: Path) -> None:
    first, other = two
    first.run("ALTER TABLE shop.a ADD COLUMN here INT")
    with moving(first) as (proxy, options):
        follower = follower_at(first, tmp_path / "source", options)
        try:
            follower.check(first, "shop")
            assert follower.source is not None
            proxy.turn_to(other.host, other.port)
            with pytest.raises(ServerMismatch, match="Let each of `hosts` name one server"):
                follower.source.request_snapshot(["shop.a"], "here IS NULL")
            proxy.turn_to(first.host, first.port)
            follower.source.request_snapshot(["shop.a"], "here IS NULL")
            follower.check(first, "shop")
        finally:
            follower.kill()


def test_an_address_that_has_moved_is_followed_to_where_it_leads_now(kind, new_server, tmp_path: Path) -> None:
    """A virtual address: the connection to the old primary stays open, and nothing is written there any more."""
    primary, replica = new_server(kind), new_server(kind)
    primary.run("CREATE DATABASE shop")
    create(primary, "shop")
    replica.replicate_from(primary)
    replica.catch_up(primary)
    with moving(primary) as (proxy, options):
        follower = follower_at(primary, tmp_path / "source", options)
        try:
            follower.check(primary, "shop")
            replica.promote()
            proxy.turn_to(replica.host, replica.port)
            replica.run("DELETE FROM shop.a WHERE id < 40")
            follower.check(replica, "shop")
        finally:
            follower.kill()
    assert any(isinstance(error, ServerMismatch) for error in follower.tried)


def test_one_server_is_the_same_by_every_connection(server: Server, database: str) -> None:
    config = config_of(database, server)
    assert [each for each in check_source(config) if each.name == "connect"] == []
    hosts = Hosts("shop", config)
    facts = hosts.connected().facts
    for _ in range(50):
        close_quietly(connect_again(config, facts))
    hosts.close()


def test_a_server_is_the_same_whatever_its_clock_is_set_to(server: Server) -> None:
    """Before its start, too, as where a machine starts with a clock that is ahead: its uptime is below zero then."""
    flavor = "mariadb" if server.flavor == "mariadb" else "mysql"
    with server.connect() as connection, connection.cursor() as cursor:
        before = identity_of(connection, flavor), _chunk_reader._identity(connection)
        for clock in ("1000", "2000000000", "DEFAULT"):
            cursor.execute(f"SET timestamp = {clock}")
            assert (identity_of(connection, flavor), _chunk_reader._identity(connection)) == before
