"""A server that dies, a source that is killed, networks and bytes that fail: nothing lost, nothing double."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from databus.core import (
    CorruptData,
    FatalError,
    ServiceUnavailable,
)
from databus.sources.mysql.binlog import DumpEnded
from databus.sources.mysql.server import _dump
from databus.testing import TcpProxy
from databus.testing.servers import Server

MakeServer = Callable[..., Server]
LOOKING_S = 4.0  # longer than heartbeats may be missed


def test_server_killed_under_load_loses_and_doubles_nothing(server, database, busy, follow) -> None:
    follower = follow(database, server)
    with busy as load:
        for _ in range(3):
            load.wait_for(20, follower)
            server.kill()
            for _ in range(3):
                follower.step()
            server.start()
        load.wait_for(20, follower)
        load.stop()
        assert follower.tried, "the source did not notice"
        assert all(isinstance(error, ServiceUnavailable) for error in follower.tried)
        follower.check(server, database)


def test_server_restarted_under_load_loses_and_doubles_nothing(server, database, busy, follow) -> None:
    follower = follow(database, server)
    with busy as load:
        load.wait_for(20, follower)
        server.restart()
        load.wait_for(20, follower)
        load.stop()
        follower.check(server, database)


def dumps_of(server: Server) -> list[int]:
    return [row[0] for row in server.query("SHOW PROCESSLIST") if str(row[4]).startswith("Binlog Dump")]


def test_dumps_that_end_without_an_error_lose_and_double_nothing(server, database, busy, follow) -> None:
    follower = follow(database, server)
    with busy as load:
        for _ in range(3):
            load.wait_for(10, follower)
            follower.until(lambda: dumps_of(server) != [])  # a server shows them some moments after they have begun
            with suppress(pymysql.MySQLError, ValueError):  # it may have ended by itself
                server.query(f"KILL QUERY {max(dumps_of(server))}")
            load.wait_for(10, follower)
        load.stop()
        assert follower.tried, "the source did not notice"
        assert all(isinstance(error, ServiceUnavailable) for error in follower.tried)
        follower.check(server, database)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["mysql-8.0"])
def test_heartbeats_that_end_the_dump_lose_and_double_nothing(server, database, busy, follow) -> None:
    """MySQL 8.0.31 takes something that is logged while it sends a heartbeat for the end, and says so without an error.

    Other releases do not. With heartbeats as rare as they are in practice it takes hours to see it.
    """
    follower = follow(database, server)
    follower.config = follower.config.model_copy(update={"heartbeat_ms": 1})
    with busy as load:
        while sum(isinstance(error, DumpEnded) for error in follower.tried) < 5:
            load.wait_for(1, follower)
            time.sleep(0.002)  # so that what is logged meets a heartbeat
        load.stop()
        follower.check(server, database)


def test_the_log_is_turned_under_load(server, database, busy, follow) -> None:
    follower = follow(database, server)
    with busy as load:
        for _ in range(6):
            load.wait_for(8, follower)
            server.run("FLUSH BINARY LOGS")
        load.stop()
        follower.check(server, database)


def test_the_source_killed_again_and_again_under_load(server, database, busy, follow, seed) -> None:
    follower, dice = follow(database, server), random.Random(seed)
    with busy as load:
        for _ in range(12):
            for _ in range(dice.randint(1, 25)):
                follower.step()
            follower.kill()
        load.stop()
        follower.check(server, database)


def test_we_are_among_the_servers_replicas_unless_that_may_crash_it(server, database, busy, follow) -> None:
    follow(database, server, server_id=4_111_222_333).check(server, database)
    rows = server.query("SHOW REPLICAS" if server.kind in ("mysql-8.0", "mysql-9.7") else "SHOW SLAVE HOSTS")
    assert [row[0] for row in rows if row[0] == 4_111_222_333] == [4_111_222_333] * (server.kind != "mysql-5.7")


def test_a_network_that_is_cut_and_slow_loses_nothing(server, database, busy, follow) -> None:
    with TcpProxy(server.host, server.port) as proxy:
        follower = follow(database, server)
        follower.config.hosts[:] = [f"127.0.0.1:{proxy.port}"]
        with busy as load:
            for count in (3_000, 700, 20_000):
                load.wait_for(5, follower)
                proxy.truncate_after(count)
                load.wait_for(5, follower)
                proxy.cut()
            proxy.delay_ms, proxy.chunk_bytes = 1, 300
            load.wait_for(10, follower)
            load.stop()
            proxy.delay_ms, proxy.chunk_bytes = 0, 1 << 16
            follower.check(server, database)
        assert follower.tried
        follower.kill()


def test_a_half_open_connection_ends_when_the_heartbeat_is_missed(server, database, busy, follow) -> None:
    with TcpProxy(server.host, server.port) as proxy:
        follower = follow(database, server)
        follower.config.hosts[:] = [f"127.0.0.1:{proxy.port}"]
        follower.catch_up(server, database)
        before = len(follower.tried)
        proxy.is_silent = True
        follower.until(lambda: len(follower.tried) > before)
        assert "heartbeat" in str(follower.tried[before])
        proxy.is_silent = False
        follower.check(server, database)
        follower.kill()


def test_a_server_that_looks_long_for_its_place_is_not_asked_again(server, database, busy, follow, monkeypatch) -> None:
    """MariaDB sends nothing until it has found it, no heartbeat either: seconds where its files are large or cold."""
    really, timers = _dump._ask, []
    with TcpProxy(server.host, server.port) as proxy:

        def ask(*given: Any, **more: Any) -> None:
            proxy.is_silent = True
            really(*given, **more)
            timers.append(threading.Timer(LOOKING_S, setattr, (proxy, "is_silent", False)))
            timers[-1].start()

        monkeypatch.setattr(_dump, "_ask", ask)
        follower = follow(database, server, heartbeat_ms=1_000, connect_ms_max=60_000)
        follower.config.hosts[:] = [f"127.0.0.1:{proxy.port}"]
        follower.check(server, database)
        assert (len(timers), follower.tried) == (1, [])
        follower.kill()
        timers[0].join()


def test_a_flipped_bit_is_found_by_the_logs_checksum(server, database, busy, follow) -> None:
    with TcpProxy(server.host, server.port) as proxy:
        follower = follow(database, server)
        follower.config.hosts[:] = [f"127.0.0.1:{proxy.port}"]
        follower.catch_up(server, database)
        proxy.flip_after(700)
        server.run(f"UPDATE {database}.a SET name = REPEAT('x', 50)")
        with suppress(CorruptData, FatalError):  # or the connection's own packets are broken, and it is tried again
            follower.check(server, database)
        follower.check(server, database)
        follower.kill()
