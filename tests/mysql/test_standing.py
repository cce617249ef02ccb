"""Whether a server is still the one that a position is of, where only what stands at that place tells."""

import random
import struct
from pathlib import Path

import pytest

from databus.core import SourceChanged
from databus.sources.mysql.binlog import LogPosition
from databus.sources.mysql.server import hidden_reset, server_facts
from databus.testing.servers import Server
from tests.mysql.following import Follower, config_of


def test_a_place_is_known_from_any_other_in_the_file(server: Server, database: str, seed: int) -> None:
    """A position that is not between two events of the server's file, or behind its end, is one of a log that was."""
    server.run("FLUSH BINARY LOGS", f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(90))")
    for number in range(8):
        server.run(f"INSERT INTO {database}.t VALUES ({number}, '{'text ' * number}')")
    file, end = server.position()
    places = {int(row[1]) for row in server.query(f"SHOW BINLOG EVENTS IN '{file}'")} | {end}
    dice = random.Random(seed)
    others = [*range(5, 60), *dice.sample(range(60, end), 600), end + 1, end + 19, end + 1_000_000]
    with server.connect() as connection:
        facts = server_facts(connection, f"{server.host}:{server.port}")

        def is_found_out(offset: int) -> bool:
            return hidden_reset(connection, facts, LogPosition(file, offset, None, facts.uuid)) is not None

        wrong = [offset for offset in others if offset not in places and not is_found_out(offset)]
        assert wrong == [], f"of {len(others)} places"
        assert [offset for offset in sorted(places) if is_found_out(offset)] == []


def test_bytes_that_reach_the_end_of_the_file_like_an_event_are_none(server: Server, database: str) -> None:
    """A length that ends where the file does is found by chance now and then; the end that an event names is not."""
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARBINARY(30))")

    def written(lengths: list[int]) -> tuple[str, int, list[int]]:
        """A file that ends with headers of each kind of event; where it ends, and where they begin."""
        headers = [
            b"head" + struct.pack("<BIIIH", kind, 1, length, 0x20202020, 0) for kind, length in enumerate(lengths)
        ]
        rows = ", ".join(f"({number}, x'{header.hex()}')" for number, header in enumerate(headers))
        server.run(f"TRUNCATE {database}.t", "FLUSH BINARY LOGS", f"INSERT INTO {database}.t VALUES {rows}")
        file, end = server.position()
        raw = (server.data_folder / file).read_bytes()[:end]
        return file, end, [raw.index(header) for header in headers]

    _, end, begins = written([19] * 42)
    file, end, begins = written([end - begin for begin in begins])
    with server.connect() as connection:
        facts = server_facts(connection, f"{server.host}:{server.port}")
        places = [LogPosition(file, at, None, facts.uuid) for at in begins]
        assert [at for at in places if hidden_reset(connection, facts, at) is None] == []


def test_an_event_larger_than_max_allowed_packet_is_no_reset(server: Server, database: str, tmp_path: Path) -> None:
    """An update has two images: its event may be larger than a statement. MariaDB then says of no place behind it in
    that file which GTIDs precede it.
    """
    server.run("FLUSH BINARY LOGS", f"CREATE TABLE {database}.t (id INT PRIMARY KEY, n INT, body LONGBLOB)")
    allowed = int(server.query("SELECT @@global.max_allowed_packet")[0][0])
    try:
        server.run(f"SET GLOBAL max_allowed_packet = {4 << 20}")
        server.run(f"INSERT INTO {database}.t VALUES (1, 1, REPEAT('x', {3 << 20}))", f"UPDATE {database}.t SET n = 2")
        follower = Follower(config_of(database, server), tmp_path)
        server.run(f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)")
        follower.check(server, database)
        follower.kill()
        server.run(f"DELETE FROM {database}.t")
        follower.check(server, database)
        follower.kill()
    finally:
        server.run(f"SET GLOBAL max_allowed_packet = {allowed}")


@pytest.mark.parametrize("what", ["statement", "transaction"])
def test_before_an_event_larger_than_max_allowed_packet_is_our_place(
    server: Server, database: str, seed: int, what: str
) -> None:
    """Asked for the events behind our place, the server says that it cannot read there."""
    server.run("FLUSH BINARY LOGS", f"CREATE TABLE {database}.t (id INT PRIMARY KEY, body LONGBLOB)")
    file, end = server.position()
    allowed = int(server.query("SELECT @@global.max_allowed_packet")[0][0])
    with server.connect(database=database, autocommit=False) as connection, connection.cursor() as cursor:
        if what == "statement":
            cursor.execute(f"CREATE TABLE u (id INT) /* {'x' * (6 << 20)} */")
        else:
            if server.kind in ("mysql-8.0", "mysql-9.7"):
                cursor.execute("SET SESSION binlog_transaction_compression = ON")
            for number in range(6):
                cursor.execute("INSERT INTO t VALUES (%s, %s)", (number, random.Random(seed).randbytes(1 << 20)))
        connection.commit()
    try:
        server.run(f"SET GLOBAL max_allowed_packet = {4 << 20}")
        with server.connect() as connection:
            facts = server_facts(connection, f"{server.host}:{server.port}")
            ours, inside = (LogPosition(file, at, None, facts.uuid) for at in (end, end + 7))
            assert hidden_reset(connection, facts, ours) is None
            assert hidden_reset(connection, facts, inside) is not None
    finally:
        server.run(f"SET GLOBAL max_allowed_packet = {allowed}")


def test_a_log_that_begins_anew_and_is_shorter_than_our_place_is_a_reset(server: Server, database: str) -> None:
    """MySQL 9.7 says of a place behind the end what it says of the end."""
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", "FLUSH BINARY LOGS")
    file, end = server.position()
    with server.connect() as connection:
        facts = server_facts(connection, f"{server.host}:{server.port}")
        trouble = hidden_reset(connection, facts, LogPosition(file, end + 500, None, facts.uuid))
    assert trouble is not None
    error = trouble.error("shop")
    assert isinstance(error, SourceChanged)
    assert "RESET MASTER" in str(error)
