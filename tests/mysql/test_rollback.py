"""What a transaction takes back is not delivered: ROLLBACK and ROLLBACK TO in the log, whole and in parts."""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest

from databus.sources.mysql.binlog import LogRun, TakenBack
from databus.testing.servers import Server
from tests.mysql.binlog.damage import events_of
from tests.mysql.binlog.support import scan, scanner
from tests.mysql.following import Follower, create

MakeServer = Callable[..., Server]

TABLES = (
    "CREATE TABLE {0}.t (id INT PRIMARY KEY, v TEXT) ENGINE = InnoDB",
    "CREATE TABLE {0}.m (id INT PRIMARY KEY, v VARCHAR(300)) ENGINE = MyISAM",
)
TEMPORARY, DROP = "CREATE TEMPORARY TABLE x (a INT)", "DROP TEMPORARY TABLE x"


def insert(number: int, table: str = "t") -> str:
    return f"INSERT INTO {table} VALUES ({number}, 'v')"


def many(first: int, count: int = 150) -> str:
    """More than is read at once."""
    rows = ",".join(f"({number}, REPEAT('x', 60000))" for number in range(first, first + count))
    return f"INSERT INTO t VALUES {rows}"


SEQUENCES: dict[str, tuple[str, ...]] = {
    "created, then back to a savepoint": (
        "BEGIN", insert(1), TEMPORARY, "SAVEPOINT s", insert(2), "ROLLBACK TO s", insert(3), "COMMIT",
    ),
    "created inside of the savepoint": (
        "BEGIN", insert(1), "SAVEPOINT s", TEMPORARY, insert(2), "ROLLBACK TO s", insert(3), "COMMIT",
    ),
    "dropped inside of the savepoint": (
        TEMPORARY, "BEGIN", insert(1), "SAVEPOINT s", DROP, insert(2), "ROLLBACK TO s", insert(3), "COMMIT",
    ),
    "a table without transactions behind the savepoint": (
        TEMPORARY, "BEGIN", insert(1), "SAVEPOINT s", DROP, insert(2), insert(1, "m"), "ROLLBACK TO s",
        insert(4), "COMMIT",
    ),
    "created, then rolled back": ("BEGIN", insert(1), insert(1, "m"), TEMPORARY, insert(2), "ROLLBACK"),
    "dropped, then rolled back": (TEMPORARY, "BEGIN", insert(1), DROP, insert(2, "m"), insert(2), "ROLLBACK"),
    "rolled back and chained": (TEMPORARY, "BEGIN", insert(1), DROP, "ROLLBACK AND CHAIN", insert(2), "COMMIT"),
    "both kinds of tables in one statement": (
        insert(1), insert(1, "m"), TEMPORARY, "BEGIN", insert(2), "SAVEPOINT s", DROP,
        "UPDATE t, m SET t.v = 'new', m.v = 'new'", "ROLLBACK TO s", insert(3), "COMMIT",
    ),
    "the connection closed": (TEMPORARY, "BEGIN", insert(1), DROP, insert(2)),
    "an XA transaction rolled back before it was prepared": (
        TEMPORARY, "XA START 'x'", insert(1), DROP, insert(2), "XA END 'x'", "XA ROLLBACK 'x'",
    ),
    "an XA transaction whose connection closed": (TEMPORARY, "XA START 'x'", insert(1), DROP, insert(2), "XA END 'x'"),
    "a savepoint before all rows": (
        TEMPORARY, "BEGIN", "SAVEPOINT s", insert(1), DROP, "ROLLBACK TO s", insert(3), "COMMIT",
    ),
    "twice to one savepoint": (
        TEMPORARY, "BEGIN", insert(1), "SAVEPOINT s", DROP, insert(2), "ROLLBACK TO s", insert(3), "ROLLBACK TO s",
        insert(4), "COMMIT",
    ),
    "names in both cases, replaced and nested": (
        TEMPORARY, "BEGIN", insert(1), DROP, "SAVEPOINT `A`", insert(2), "SAVEPOINT b", insert(3), "SAVEPOINT a",
        insert(4), "ROLLBACK TO `a`", insert(5), "ROLLBACK TO B", insert(6), "RELEASE SAVEPOINT b", insert(7), "COMMIT",
    ),
    "names with quotes and accents": (
        TEMPORARY, "BEGIN", insert(1), DROP, 'SAVEPOINT `we``ird "x" \xe9\xdf`', insert(2), "SAVEPOINT `\xc9`",
        insert(3), 'ROLLBACK TO SAVEPOINT `WE``ird "x" \xc9s`', insert(4), "COMMIT",
    ),
    "quotes as in the standard": (
        "SET sql_mode = 'ANSI_QUOTES'", TEMPORARY, "BEGIN", insert(1), DROP, 'SAVEPOINT "a""`b"', insert(2),
        'ROLLBACK WORK TO "A""`B"', insert(3), "COMMIT",
    ),
    "many savepoints": (
        TEMPORARY, "BEGIN", insert(0), DROP,
        *(statement for n in range(1, 200) for statement in (f"SAVEPOINT s{n}", insert(n))),
        "ROLLBACK TO s3", insert(300), "ROLLBACK TO s1", insert(301), "COMMIT",
    ),
    "a row that was there": (
        TEMPORARY, "BEGIN", insert(1), DROP, "INSERT IGNORE INTO t VALUES (2, 'v'), (1, 'v')", "COMMIT",
    ),
    "parts of it went out, then back to a savepoint": (
        TEMPORARY, "BEGIN", many(1_000), DROP, "SAVEPOINT s", many(2_000, 300), "ROLLBACK TO s", many(3_000),
        "SAVEPOINT s", many(4_000), "ROLLBACK TO s", insert(5), "COMMIT",
    ),
    "parts of it went out, then rolled back": (TEMPORARY, insert(1), "BEGIN", many(1_000, 300), DROP, "ROLLBACK"),
}  # fmt: skip


def play(server: Server, database: str, statements: tuple[str, ...]) -> None:
    with (
        server.connect(database=database, autocommit=True, charset="utf8mb4") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT CONNECTION_ID()")
        (row,) = cursor.fetchall()
        for statement in statements:
            cursor.execute(statement)
    end = f"SELECT COUNT(*) FROM information_schema.processlist WHERE id = {row[0]}"
    while server.query(end) != [(0,)]:  # what it leaves unfinished is rolled back only then
        pass


@pytest.fixture(
    scope="module", params=["mariadb-10.11", "mariadb-10.11 not strict, compressed", "mysql-5.7 without GTIDs"]
)
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Servers that write what was rolled back."""
    from databus.testing.servers import open_server

    kind, _, how = request.param.partition(" ")
    options: dict[str, Any] = {}
    if how:
        options["gtid"] = False
    if "compressed" in how:
        options["lines"] = ["log_bin_compress=ON", "log_bin_compress_min_len=10"]
    with open_server(kind, tmp_path_factory.mktemp("writer"), **options) as server:
        yield server


@pytest.fixture
def shop(writer: Server) -> str:
    writer.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    create(writer, "shop")
    writer.run(*(table.format("shop") for table in TABLES))
    return "shop"


@pytest.mark.parametrize("name", SEQUENCES)
def test_what_is_rolled_back_is_not_delivered(writer: Server, shop: str, follow: Any, name: str) -> None:
    follower: Follower = follow(shop, writer, snapshot="never", heartbeat_ms=5_000)
    follower.step()
    play(writer, shop, SEQUENCES[name])
    follower.catch_up(writer, shop)
    held = {table: sorted(key for (key,) in follower.copy().tables.get(f"{shop}.{table}", {})) for table in "tm"}
    there = {table: [row[0] for row in writer.query(f"SELECT id FROM {shop}.{table} ORDER BY id")] for table in "tm"}
    assert held == there
    assert len(follower.tried) == name.startswith("parts of it went out")


def test_only_rows_of_the_open_transaction_are_taken_back_wherever_the_bytes_are_cut(writer: Server, shop: str) -> None:
    """Of each transaction these are the same rows, whatever of the transactions before it came in the same bytes."""
    writer.run("FLUSH BINARY LOGS")
    for name, statements in SEQUENCES.items():
        if not name.startswith("parts of it went out"):
            play(writer, shop, statements)
            writer.run(*(f"DELETE FROM {shop}.{table}" for table in "tm"))
    path = writer.binlogs()[-1]
    files = {path.name: path.read_bytes()}
    ends = [*accumulate(map(len, events_of(files[path.name])), initial=4)]
    whole = rows_that_stay(writer.kind, files, [1 << 20])
    assert whole
    for step in (1, 2, 3, 5, 7, 13):
        for first in range(step):
            cuts = [after - before for before, after in pairwise([0, *ends[first + 1 :: step], ends[-1]])]
            assert rows_that_stay(writer.kind, files, cuts) == whole


def rows_that_stay(kind: str, files: dict[str, bytes], cuts: list[int]) -> list[tuple[int, int]]:
    """Which rows events happened: ordinal of the transaction, number in it."""
    held: dict[tuple[int, int], None] = {}
    for found in scan(scanner(kind, "file-offset"), files, cuts):
        if isinstance(found, LogRun):
            scns = found.scn[found.event_transaction].tolist()
            held |= dict.fromkeys(zip(scns, found.event_number.tolist(), strict=True))
        elif isinstance(found, TakenBack):
            assert found.origin.ordinal == max(held)[0], "rows of a transaction that nobody has seen a part of"
            for number in range(found.first, found.end):
                held.pop((found.origin.ordinal, number), None)
    return list(held)


def test_pairs_are_the_same_whatever_the_groups_and_whenever_capture_is_killed(
    writer: Server, shop: str, follow: Any
) -> None:
    # MariaDB says nothing while it looks for the place in its file, at each start again.
    patient = {"snapshot": "never", "heartbeat_ms": 5_000}
    large: Follower = follow(shop, writer, group_bytes_max=64 << 20, **patient)
    small: Follower = follow(shop, writer, **patient)
    large.step()
    small.tape.groups = list(large.tape.groups)
    play(writer, shop, SEQUENCES["parts of it went out, then back to a savepoint"])
    large.catch_up(writer, shop)
    for steps in (20, 200, 400):
        for _ in range(steps):
            small.step()
        small.kill()
    mark = large.tape.groups[-1].commit.scn
    small.until(lambda: bool(small.tape.groups) and small.tape.groups[-1].commit.scn >= mark)
    assert not large.tried
    assert small.tried  # what is taken back is more than one run inflates, wherever the bytes of the log are cut
    assert small.tape.logged() == large.tape.logged()
