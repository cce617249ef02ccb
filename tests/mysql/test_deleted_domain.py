"""GTID domains of MariaDB that are deleted (FLUSH BINARY LOGS DELETE_DOMAIN_ID), and used again from number 1 on."""

import pytest

from databus.core import ServiceUnavailable, timeline_of
from databus.testing.servers import Server
from tests.mysql.following import Follower, create, purge

DOMAIN = 5


@pytest.fixture(scope="module")
def maria(tmp_path_factory: pytest.TempPathFactory):
    """One for this module alone: its log is purged."""
    from databus.testing.servers import ServerMissing, open_server

    server = open_server("mariadb-10.11", tmp_path_factory.mktemp("domains"))
    try:
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.close()


@pytest.fixture
def shop(maria: Server, request: pytest.FixtureRequest) -> tuple[Server, str]:
    name = f"shop_{abs(hash(request.node.name)) % 10_000}"
    maria.run(f"CREATE DATABASE {name}")
    create(maria, name)
    return maria, name


def insert(server: Server, database: str, *keys: int) -> None:
    """In the domain, each in a transaction of its own."""
    server.run(
        f"SET SESSION gtid_domain_id = {DOMAIN}",
        *(f"INSERT INTO {database}.b VALUES ('d{key}', {key}, 1)" for key in keys),
        "SET SESSION gtid_domain_id = 0",
    )


def delete_domain(server: Server) -> None:
    purge(server)
    server.run(f"FLUSH BINARY LOGS DELETE_DOMAIN_ID = ({DOMAIN})")


def followed(server: Server, database: str, follow) -> Follower:
    """All captured, and started again since, so that the domain is a part of where the session begins."""
    follower: Follower = follow(database, server)
    follower.check(server, database)
    insert(server, database, 1, 2, 3)
    follower.check(server, database)
    follower.kill()
    server.run("FLUSH BINARY LOGS", f"INSERT INTO {database}.b VALUES ('other', 0, 1)")
    follower.check(server, database)
    return follower


def test_a_domain_that_is_used_again_is_captured_while_it_is_followed(shop, follow) -> None:
    server, database = shop
    follower = followed(server, database, follow)
    delete_domain(server)
    server.run(f"INSERT INTO {database}.b VALUES ('other', 1, 1)")
    insert(server, database, 4, 5)
    copy = follower.check(server, database)
    assert [type(error).__mro__[1] for error in follower.tried] == [ServiceUnavailable]
    assert copy.kinds() == []
    assert timeline_of(follower.tape.groups[-1].commit.scn) == 1
    insert(server, database, 6, 7, 8)
    follower.kill()
    follower.check(server, database)
    assert timeline_of(follower.tape.groups[-1].commit.scn) == 1


def test_a_domain_that_was_used_again_beyond_its_old_numbers_while_nobody_captured(shop, follow) -> None:
    server, database = shop
    follower = followed(server, database, follow)
    follower.kill()
    delete_domain(server)
    insert(server, database, *range(10, 20))
    server.run("FLUSH BINARY LOGS")
    insert(server, database, 21)
    copy = follower.check(server, database)
    assert copy.kinds() == []


def test_a_domain_that_is_deleted_and_not_used_again_stops_no_restart(shop, follow) -> None:
    server, database = shop
    follower = followed(server, database, follow)
    delete_domain(server)
    follower.check(server, database)
    follower.kill()
    copy = follower.check(server, database)
    assert copy.kinds() == []
    assert follower.tried == []
