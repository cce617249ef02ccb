"""A transaction of more than 4 GiB, which makes a file whose events no longer say where they stand: 15 GB of disk."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from databus.core import ChangeType
from databus.sources.mysql.binlog import LogPosition
from databus.sources.mysql.server import place_to_ask, server_facts
from databus.testing._source_suite import Tape
from databus.testing.servers import Server
from databus.wire import Group
from tests.mysql.following import Follower, config_of

ROWS, ROW_BYTES = 4_500, 1_000_000
LIMIT = 1 << 32
SECONDS_MAX = 600.0


class Sums(Tape):
    """Keeps of the rows their number and the bytes of their bodies, by table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, int] = {}
        self.bytes = 0

    def append(self, group: Group) -> None:
        super().append(group)
        for rows in group.rows:
            assert set(rows.batch["_change_type"].to_pylist()) == {ChangeType.INSERT}
            self.rows[rows.table.source] = self.rows.get(rows.table.source, 0) + rows.batch.num_rows
            if "body" in rows.batch.schema.names:
                self.bytes += pc.sum(pc.binary_length(rows.batch["body"])).as_py()
        self.groups[-1] = replace(group, rows=())


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "no-gtid"])
@pytest.mark.parametrize("kind", ["mysql-8.0", "mariadb-10.11"])
def test_a_file_beyond_4_gib(kind: str, gtid: bool, new_server: Callable[..., Server], tmp_path: Path) -> None:
    server = new_server(kind, gtid=gtid)
    server.run(
        "CREATE DATABASE huge",
        "CREATE TABLE huge.t (id INT PRIMARY KEY, body LONGBLOB)",
        "CREATE TABLE huge.small (id INT PRIMARY KEY)",
        "SET GLOBAL max_allowed_packet = 64 << 20",
    )
    follower = Follower(config_of("huge", server, snapshot="never", group_bytes_max=4 << 20), tmp_path / "source")
    follower.tape = sums = Sums()
    follower.start()
    with server.connect(database="huge", autocommit=False) as connection, connection.cursor() as cursor:
        for number in range(ROWS):
            cursor.execute(f"INSERT INTO t VALUES ({number}, REPEAT(CHAR(65 + {number % 26}), {ROW_BYTES}))")
        connection.commit()
    follower.until(lambda: sums.rows.get("huge.t", 0) == ROWS and not sums.groups[-1].commit.continues, SECONDS_MAX)
    assert sums.bytes == ROWS * ROW_BYTES
    position = next(group.commit.position for group in reversed(sums.groups) if group.commit.position["offset"] > LIMIT)
    with server.connect() as connection:
        facts = server_facts(connection, f"{server.host}:{server.port}")
    assert facts.file != position["file"], "the server goes on in another file after such a transaction"
    while sums.groups[-1].commit.position["offset"] <= LIMIT:
        sums.groups.pop()  # the relay was killed right behind the transaction
    follower.kill()
    server.run("INSERT INTO huge.small VALUES (1), (2)")
    follower.until(lambda: sums.rows.get("huge.small", 0) == 2)
    assert sums.rows == {"huge.t": ROWS, "huge.small": 2}


def test_the_next_file_is_asked_for_where_the_protocol_cannot_name_the_end_of_one(server: Server) -> None:
    server.run("CREATE DATABASE IF NOT EXISTS huge_not", "DROP DATABASE huge_not")
    _, end = server.position()
    server.run("FLUSH BINARY LOGS")
    with server.connect() as connection:
        facts = server_facts(connection, f"{server.host}:{server.port}")
    *_, before, last = facts.logs
    after = LogPosition(before.name, end, None, facts.uuid)
    assert place_to_ask(facts, after, 100) == LogPosition(last.name, 4, None, facts.uuid)
    assert place_to_ask(facts, after) == after, "it can be named"
    inside = replace(after, offset=end - 60)
    assert place_to_ask(facts, inside, 100) == inside, "something follows in that file"
    newest = LogPosition(facts.file, facts.offset, None, facts.uuid)
    assert place_to_ask(facts, newest, 100) == newest
