"""A live server: what its transactions cost one by one, and that whoever is behind takes together what has queued."""

import numpy as np
import pytest

from databus.sources.mysql.server import BlockQueue
from tests.certificates import server_certificates

TRANSACTIONS = 400


def test_what_has_queued_is_taken_together_and_large_blocks_are_not_copied() -> None:
    queue = BlockQueue(64 << 20)
    small, large = np.zeros(300, np.uint8), np.zeros(3 << 20, np.uint8)
    for block in (*[small] * 1_000, large, small):
        queue.put(block)

    first = queue.take(0)
    assert first is not None
    assert len(first) == 300_000
    assert queue.take(0) is large
    assert queue.take(0) is small
    assert queue.take(0) is None
    assert queue.bytes_waiting == 0


def test_transactions_that_were_committed_meanwhile_come_in_few_groups(server, database, follow) -> None:
    server.run(
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY)",
        f"CREATE PROCEDURE {database}.fill(IN count INT) BEGIN WHILE count > 0 DO INSERT INTO {database}.t VALUES "
        "(count); SET count = count - 1; END WHILE; END",
    )
    follower = follow(database, server, snapshot="never", group_bytes_max=4 << 20)
    follower.start()
    follower.catch_up(server, database)
    before = len(follower.tape.groups)

    server.run(f"CALL {database}.fill({TRANSACTIONS})")
    follower.check(server, database)

    groups = [group for group in follower.tape.groups[before:] if group.rows]
    scns = {scn for group in groups for rows in group.rows for scn in rows.batch["_commit_version"].to_pylist()}
    assert len(scns) == TRANSACTIONS + 1  # and the mark
    assert len(groups) < TRANSACTIONS / 4


def test_a_source_that_nobody_polls_for_a_while_loses_nothing_and_goes_on_at_once(server, database, follow) -> None:
    server.run(
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, body LONGTEXT)",
    )
    follower = follow(database, server, snapshot="never", buffer_bytes_max=1 << 20, heartbeat_ms=5_000)
    follower.start()
    follower.catch_up(server, database)

    for number in range(40):  # more than the sockets and the buffer take
        server.run(f"INSERT INTO {database}.t VALUES ({number}, REPEAT('x', 500000))")
    follower.check(server, database)

    assert follower.tried == []


def test_a_server_is_followed_over_tls_while_little_comes_and_while_much_does(
    kind, new_server, tmp_path, follow
) -> None:
    if kind == "mysql-5.7":
        pytest.skip("mysql-5.7.22 from Maven is built with yaSSL, which speaks no TLS newer than 1.1")
    server = new_server(kind, certificates=server_certificates(tmp_path))
    server.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.mark (id INT PRIMARY KEY, n BIGINT)",
        "CREATE TABLE shop.t (id INT PRIMARY KEY AUTO_INCREMENT, body LONGTEXT)",
    )
    follower = follow("shop", server, snapshot="never", tls="unverified", heartbeat_ms=5_000)
    follower.start()
    for size in (10, 300_000, 10, 4_000_000, 10):
        server.run(f"INSERT INTO shop.t (body) VALUES (REPEAT('x', {size}))")
        follower.check(server, "shop")
    assert follower.tried == []
