"""The replication protocol of real servers: what they send beside the events of their files, and what they leave
out."""

from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from databus.core import PositionPurged
from databus.sources.mysql.binlog import (
    DumpEnded,
    GtidSet,
    Heartbeat,
    LogRun,
    PacketSplitter,
    Rotated,
    Scanner,
)
from databus.testing.servers import Server
from tests.mysql.binlog.support import positions_of, scanner, transactions_of, without_start
from tests.mysql.binlog.twin import Transaction, Twin
from tests.mysql.binlog.workload import CAPTURED, files_of, scheme_of, write_history

NOT_BLOCKING = 1
KNOWS_HEARTBEATS_2 = 2


class Dump:
    """One connection that reads a server's log."""

    def __init__(self, server: Server, *, heartbeat_s: float = 0) -> None:
        self.connection = server.connect()
        self._is_mariadb = server.kind.startswith("mariadb")
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = "
                "@@global.binlog_checksum"
            )
            cursor.execute("SET @mariadb_slave_capability = 4")
            if heartbeat_s:
                period = int(heartbeat_s * 1e9)
                cursor.execute(f"SET @master_heartbeat_period = {period}, @source_heartbeat_period = {period}")

    def from_file(self, file: str, offset: int = 4, *, flags: int = NOT_BLOCKING) -> Iterator[bytes]:
        body = offset.to_bytes(4, "little") + flags.to_bytes(2, "little") + (4711).to_bytes(4, "little") + file.encode()
        return self._bytes(0x12, body)

    def from_gtids(self, gtids: str, *, flags: int = NOT_BLOCKING) -> Iterator[bytes]:
        if self._is_mariadb:
            with self.connection.cursor() as cursor:
                cursor.execute("SET @slave_connect_state = %s, @slave_gtid_strict_mode = 1", (gtids,))
            return self.from_file("", 4, flags=flags)
        encoded = GtidSet.parse(gtids).encode()
        body = (flags | 4).to_bytes(2, "little") + (4711).to_bytes(4, "little") + bytes(4) + (4).to_bytes(8, "little")
        return self._bytes(0x1E, body + len(encoded).to_bytes(4, "little") + encoded)

    def _bytes(self, command: int, body: bytes) -> Iterator[bytes]:
        connection: Any = self.connection
        connection._execute_command(command, body)
        connection._sock.settimeout(20)
        while True:
            yield connection._rfile.read1(1 << 16)

    def close(self) -> None:
        connection: Any = self.connection
        connection._force_close()


def follow(scanning: Scanner, stream: Iterator[bytes], until: Callable[[Any], bool] = lambda _: False) -> list[Any]:
    """All that a dump gives until it ends, or until something is reached."""
    splitter = PacketSplitter()
    found: list[Any] = []
    for piece in stream:
        scanning.feed(splitter.feed(piece))
        while (item := scanning.next()) is not None:
            found.append(item)
            if until(item):
                return found
        if splitter.ended is not None:
            if not isinstance(splitter.ended, DumpEnded):
                raise splitter.ended
            break
    return found


@pytest.fixture(scope="module", params=[True, False], ids=["gtid", "no-gtid"])
def told(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Any, list[Transaction]]]:
    """A server with a history, its scheme, and its transactions as the twin reads them in its files."""
    from databus.testing.servers import ServerMissing, open_server

    folder = tmp_path_factory.mktemp(kind)
    try:
        with open_server(kind, folder, gtid=request.param) as server:
            write_history(server)
            yield (
                server,
                scheme_of(kind, gtid=request.param),
                without_start(Twin(CAPTURED).read(files_of(server, folder))),
            )
    except ServerMissing as missing:
        pytest.skip(f"{kind}: {missing}")


def test_a_dump_gives_what_the_files_hold_and_each_position_resumes_it(
    told: tuple[Server, Any, list[Transaction]],
) -> None:
    server, scheme, expected = told
    dump = Dump(server)
    scanning = scanner(server.kind, scheme, is_file=False, server_uuid="s")
    found = follow(scanning, dump.from_file("binlog.000001"))
    dump.close()
    assert transactions_of(scanning, found) == expected
    positions = positions_of(found)
    assert len(positions) == len(expected)
    for count in (1, 40, len(expected) - 30, len(expected) - 3, len(expected) - 1):
        start = positions[count - 1]
        dump = Dump(server)
        again = scanner(server.kind, scheme, start, is_file=False, server_uuid="s")
        stream = dump.from_gtids(start.gtids) if start.gtids is not None else dump.from_file(start.file, start.offset)
        assert transactions_of(again, follow(again, stream)) == expected[count:]
        dump.close()
        dump = Dump(server)
        again = scanner(server.kind, scheme, start, is_file=False, server_uuid="s")
        assert transactions_of(again, follow(again, dump.from_file(start.file))) == expected[count:]
        dump.close()


def test_an_idle_server_tells_where_it_is(told: tuple[Server, Any, list[Transaction]]) -> None:
    server, scheme, expected = told
    dump = Dump(server, heartbeat_s=0.2)
    scanning = scanner(server.kind, scheme, is_file=False, server_uuid="s")

    def is_where_the_server_is(item: Any) -> bool:
        """At last: MariaDB's checkpoint in a new file may come behind the first heartbeat."""
        return isinstance(item, Heartbeat) and (item.position["file"], item.position["offset"]) == server.position()

    found = follow(scanning, dump.from_file("binlog.000001", flags=0), is_where_the_server_is)
    dump.close()
    heartbeat = found[-1]
    last = positions_of(found)[-1]
    assert heartbeat.position["gtids"] == last.gtids
    assert len(transactions_of(scanning, found)) == len(expected)


@pytest.mark.parametrize("kind", ["mysql-8.0", pytest.param("mysql-9.7", marks=pytest.mark.soak)])
def test_heartbeats_of_the_second_form_tell_where_it_is(kind: str, plain_server: Callable[[str], Server]) -> None:
    """Servers send them to whoever says that it knows them; a place in them is not cut to four bytes."""
    server = plain_server(kind)
    server.run("FLUSH BINARY LOGS")  # what other tests have left in the server's log is none of this one's
    dump = Dump(server, heartbeat_s=0.2)
    scanning = scanner(kind, "gtid", is_file=False, server_uuid="s")
    stream = dump.from_file(server.binlogs()[-1].name, flags=KNOWS_HEARTBEATS_2)
    found = follow(scanning, stream, lambda item: isinstance(item, Heartbeat))
    dump.close()
    assert scanning.stats.kinds["HEARTBEAT_V2"] == 1
    assert (found[-1].position["file"], found[-1].position["offset"]) == server.position()
    assert found[-1].position["gtids"] == server.gtids()


def test_a_file_that_is_gone_is_named_as_purged(told: tuple[Server, Any, list[Transaction]]) -> None:
    server, scheme, _ = told
    dump = Dump(server)
    with pytest.raises(PositionPurged, match="1236"):
        follow(scanner(server.kind, scheme, is_file=False), dump.from_file("binlog.000099"))
    dump.close()


def test_checksums_switched_off_and_on_and_a_restart_go_by_unnoticed(
    kind: str, new_server: Callable[..., Server], tmp_path: Any
) -> None:
    server = new_server(kind)
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    server.run("SET GLOBAL binlog_checksum = NONE", "INSERT INTO shop.t VALUES (1)", "FLUSH BINARY LOGS")
    server.run("INSERT INTO shop.t VALUES (2)", "SET GLOBAL binlog_checksum = CRC32", "INSERT INTO shop.t VALUES (3)")
    server.restart()
    server.run("INSERT INTO shop.t VALUES (4)")
    server.kill()
    server.start()
    server.run("INSERT INTO shop.t VALUES (5)")
    expected = without_start(Twin(CAPTURED).read(files_of(server, tmp_path)))
    scheme = scheme_of(kind, gtid=True)
    dump = Dump(server)
    scanning = scanner(kind, scheme, is_file=False)
    found = follow(scanning, dump.from_file("binlog.000001"))
    dump.close()
    assert transactions_of(scanning, found) == expected
    assert sum(len(item.event_kind) for item in found if isinstance(item, LogRun)) == 5
    assert [item.file for item in found if isinstance(item, Rotated)] == [path.name for path in server.binlogs()]


@pytest.mark.parametrize("kind", ["mariadb-10.11", "mysql-8.0"])
def test_a_row_larger_than_a_packet_arrives_whole(kind: str, plain_server: Callable[[str], Server]) -> None:
    server = plain_server(kind)
    server.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", "CREATE TABLE shop.large (b LONGBLOB)")
    try:
        server.run("SET GLOBAL max_allowed_packet = 67108864", "FLUSH BINARY LOGS")
        file, _ = server.position()
        connection = server.connect(max_allowed_packet=64 << 20)
        with connection.cursor() as cursor:
            for mebibytes in (16, 33):
                try:
                    cursor.execute(f"INSERT INTO shop.large VALUES (REPEAT('x', {mebibytes << 20}))")
                except pymysql.MySQLError as error:  # the session's own limit, on some servers
                    assert error.args[0] in (1301, 1048, 1406, 1197)  # noqa: PT017 - told apart from others only
        connection.commit()
        connection.close()
        dump = Dump(server)
        scanning = scanner(kind, scheme_of(kind, gtid=True), is_file=False)
        found = follow(scanning, dump.from_file(file))
        dump.close()
        sizes = [
            int(b - a)
            for item in found
            if isinstance(item, LogRun)
            for a, b in zip(item.event_start, item.event_end, strict=True)
        ]
        assert any(size > 16 << 20 for size in sizes)
    finally:
        server.run("DROP DATABASE shop", "SET GLOBAL max_allowed_packet = DEFAULT")
