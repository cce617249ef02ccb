"""Tables of real servers, read in chunks while nobody, or somebody, writes them."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
import pytest

from databus.core import LimitExceeded, SourceChanged, UnrepresentableValue, UnsupportedFeature
from databus.sources.mysql.snapshot import MysqlSnapshotReader, TableTask
from databus.sources.snapshots import Placed, ReadingRestarted, SnapshotOptions
from databus.testing.servers import Server
from tests.mysql.snapshot.support import log_position, task_of

WAIT_S = 60.0
SMALL = SnapshotOptions(chunk_rows_max=7)


@pytest.fixture
def open_reader(server: Server) -> Iterator[Callable[..., MysqlSnapshotReader]]:
    """Make readers of the shared server; they are closed at the end."""
    readers: list[MysqlSnapshotReader] = []

    def make(options: SnapshotOptions = SMALL, on_ready: Callable[[], None] = lambda: None) -> MysqlSnapshotReader:
        readers.append(MysqlSnapshotReader(server.connect, options, on_ready))
        readers[-1].advance(0, log_position(server))
        return readers[-1]

    yield make
    for each in readers:
        each.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def take(reader: MysqlSnapshotReader, server: Server) -> Placed | ReadingRestarted:
    """The next chunk, the log being followed to its end."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        reader.advance(0, log_position(server))
        found = reader.take(0.05)
        if found is not None:
            return found
    raise AssertionError(f"no chunk came: {reader.progress()}")


def read_all(
    reader: MysqlSnapshotReader, server: Server, task: TableTask, remains: Any = None, order: Any = None
) -> list[Placed]:
    reader.begin(task, remains, order)
    chunks: list[Placed] = []
    while not chunks or not chunks[-1].is_last:
        found = take(reader, server)
        assert isinstance(found, Placed)
        chunks.append(found)
    return chunks


def table(chunks: list[Placed]) -> pa.Table:
    return pa.concat_tables([pa.table(each.arrays, names=list(each.table.names)) for each in chunks])


BELOW_BLANK = ("\t", "\x01", " b", "b")


def members(count: int) -> str:
    return ", ".join(f"'m{n}'" for n in range(count))


KEYS = {
    "bigint": ("k BIGINT", [(str(n),) for n in (-(2**63), -5, 0, 3, 2**63 - 1, *range(100, 160))]),
    "unsigned": ("k BIGINT UNSIGNED", [(str(n),) for n in (0, 2**63, 2**64 - 1, *range(5, 60))]),
    "text": ("k VARCHAR(20) CHARACTER SET latin1", [(f"'{c}{n}'",) for c in ("a", "B", "\xe9", " ") for n in range(9)]),
    "wide text": ("k VARCHAR(9) CHARACTER SET utf16", [(f"'{c}{n}'",) for c in ("a", "\u20ac", "Z") for n in range(9)]),
    "bytes": ("k VARBINARY(9)", [(f"X'{n:04x}'",) for n in range(0, 65536, 1999)]),
    "padded": ("k BINARY(4)", [(f"X'{n:04x}'",) for n in range(0, 65536, 1999)]),
    "decimal": ("k DECIMAL(20,3)", [(f"{n}.125",) for n in range(-20, 20)]),
    "double": ("k DOUBLE", [(repr(n / 7),) for n in range(-20, 20)]),
    "float": ("k FLOAT", [(repr(n / 8),) for n in range(-20, 20)]),
    "date": ("k DATE", [(f"'20{n:02}-01-09'",) for n in range(40)]),
    "datetime": ("k DATETIME(6)", [(f"'2020-01-01 00:00:00.{n:06}'",) for n in range(0, 999999, 31999)]),
    "timestamp": ("k TIMESTAMP(3) DEFAULT '2020-01-01'", [(f"'20{n:02}-07-01 02:30:00.125'",) for n in range(38)]),
    "time": ("k TIME(2)", [(f"'{n}:10:11.25'",) for n in range(-800, 800, 41)]),
    "year": ("k YEAR", [(str(n),) for n in (0, *range(1901, 1999))]),
    "bit": ("k BIT(20)", [(str(n),) for n in range(0, 1 << 20, 30011)]),
    "enum": ("k ENUM('z','b','a'), n INT", [(f"'{c}'", str(n)) for c in "zba" for n in range(15)]),
    "set": ("k SET('x','y','z','w','v')", [(str(n),) for n in range(32)]),
    "set of 53": (f"k SET({members(53)})", [(str(2**53 - n),) for n in range(1, 40)]),
    "set of 64": (f"k SET({members(64)})", [(str(2**64 - n),) for n in range(1, 40)]),
    "enum of many": (f"k ENUM({members(2000)})", [(str(n),) for n in range(1, 2000, 61)]),
    "wide bit": ("k BIT(64)", [(str(2**64 - n),) for n in range(1, 40)]),
    "near doubles": ("k DOUBLE", [(repr(1 + n * 2**-52),) for n in range(40)] + [("5e-324",), ("-1.7e308",)]),
    "near floats": ("k FLOAT", [(repr(1 + n * 2**-23),) for n in range(40)] + [("1e-45",), ("-3.4e38",)]),
    "long decimal": ("k DECIMAL(65,30)", [(f"{'9' * 35}.{'9' * 28}{n}",) for n in range(10, 50)]),
    "negative times": ("k TIME(6)", [(f"'-00:00:00.{n:06}'",) for n in range(1, 40)]),
    "below blank": ("k CHAR(9) CHARACTER SET latin1", [(f"'a{c}{d}'",) for c in BELOW_BLANK for d in BELOW_BLANK]),
    "composite": (
        "a INT, k VARCHAR(9) CHARACTER SET latin1, n DATE",
        [(str(a), f"'{c}'", f"'2020-01-{d:02}'") for a in range(4) for c in ("x", "Y") for d in range(1, 9)],
    ),
}


@pytest.mark.parametrize("form", KEYS)
def test_each_row_is_read_once_whatever_the_key(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader], form: str
) -> None:
    columns, rows = KEYS[form]
    names = ", ".join(
        part.split()[0] for part in columns.split(", ") if part.split()[0].isalpha() and len(part.split()[0]) == 1
    )
    connection = server.connect(init_command="SET sql_mode = '', time_zone = '+00:00'")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {database}.t ({columns}, v INT, PRIMARY KEY ({names})) ENGINE=InnoDB")
        cursor.execute(f"INSERT INTO {database}.t VALUES {', '.join('(' + ', '.join(row) + ', 1)' for row in rows)}")
    connection.close()
    task = task_of(server, database, "t")
    chunks = read_all(open_reader(), server, task)
    assert len(chunks) >= (len(rows) // 7 if form != "set of 64" else 1)  # that one is read as a whole
    found = table(chunks).select(list(task.table.key))
    assert found.num_rows == len(rows)
    assert found.group_by(list(task.table.key)).aggregate([]).num_rows == len(rows)
    each_a_place = table(read_all(open_reader(SnapshotOptions(chunk_rows_max=1)), server, task))
    assert each_a_place.num_rows == len(rows)


NOPAD = {
    "mariadb-10.11": ("latin1_nopad_bin", "utf8mb4_unicode_nopad_ci", "utf8mb4_uca1400_swedish_nopad_ai_cs"),
    "mysql-8.0": ("utf8mb4_0900_bin", "utf8mb4_0900_ai_ci", "utf8mb4_sv_0900_as_cs"),
}


@pytest.mark.parametrize("type_", ["CHAR", "VARCHAR"])
@pytest.mark.parametrize("number", range(3))
def test_each_row_is_read_once_in_a_collation_without_padding(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader], type_: str, number: int
) -> None:
    if server.kind not in NOPAD:
        pytest.skip("it has no such collations")
    words = ["a", "B", *(f"{a}{b}{c}" for a in "aB" for b in BELOW_BLANK for c in ("", *BELOW_BLANK, "\xdf"))]
    rows = ", ".join(f"({word!r})" for word in words)
    server.run(
        f"CREATE TABLE {database}.t (k {type_}(9) CHARACTER SET {NOPAD[server.kind][number].split('_')[0]} COLLATE "
        f"{NOPAD[server.kind][number]} PRIMARY KEY)",
        f"INSERT IGNORE INTO {database}.t VALUES {rows}",
    )
    ((count,),) = server.query(f"SELECT COUNT(*) FROM {database}.t")
    chunks = read_all(open_reader(SnapshotOptions(chunk_rows_max=1)), server, task_of(server, database, "t"))
    assert table(chunks)["k"].value_counts().field("counts").to_pylist() == [1] * count


def test_an_index_that_queries_do_not_see_is_not_asked_for(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    if server.kind == "mysql-5.7":
        pytest.skip("it has no invisible indexes")
    word = "IGNORED" if "maria" in server.kind else "INVISIBLE"
    server.run(
        f"CREATE TABLE {database}.t (n INT NOT NULL, UNIQUE KEY z (n), UNIQUE KEY a (n)) ENGINE=InnoDB",
        f"INSERT INTO {database}.t VALUES {', '.join(f'({n})' for n in range(50))}",
        f"ALTER TABLE {database}.t ALTER INDEX a {word}",
    )
    chunks = read_all(open_reader(), server, task_of(server, database, "t"))
    assert len(chunks) > 50 // 7
    assert sorted(table(chunks)["n"].to_pylist()) == list(range(50))


@pytest.mark.parametrize("sorted_by", ["hashes", "two directions"])
def test_a_key_whose_index_is_not_in_its_order_is_read_as_a_whole(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader], sorted_by: str
) -> None:
    """Without an index in that order a server sorts, by the first bytes of long values only."""
    more = "PRIMARY KEY (k)) ENGINE=MEMORY" if sorted_by == "hashes" else "PRIMARY KEY (a, k DESC)) ENGINE=InnoDB"
    server.run(
        f"CREATE TABLE {database}.t (a INT NOT NULL, k VARCHAR(1500) CHARACTER SET latin1 NOT NULL, {more}",
        f"INSERT INTO {database}.t VALUES {', '.join(f'(1, CONCAT(REPEAT(0, 1200), {n}))' for n in range(50))}",
    )
    found = table(read_all(open_reader(), server, task_of(server, database, "t")))["k"]
    assert found.value_counts().field("counts").to_pylist() == [1] * 50


def numbers(server: Server, database: str, count: int = 500, more: str = "") -> TableTask:
    """A table of the numbers from 1."""
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(40) {more}) ENGINE=InnoDB")
    rows = ", ".join(f"({n}, 'v{n}')" for n in range(1, count + 1))
    server.run(f"INSERT INTO {database}.t (id, v) VALUES {rows}")
    return task_of(server, database, "t")


def test_it_goes_on_from_any_chunk_after_a_crash(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    task = numbers(server, database)
    first = open_reader()
    first.begin(task)
    chunks = []
    for _ in range(9):
        found = take(first, server)
        assert isinstance(found, Placed)
        chunks.append(found)
    first.close()
    remains, order = json.loads(json.dumps((chunks[-1].last_key, chunks[-1].order)))
    chunks += read_all(open_reader(), server, task, tuple(remains), tuple(order))
    assert sorted(table(chunks)["id"].to_pylist()) == list(range(1, 501))


WORDS = sorted({f"{a}{b}{c}" for a in "aBcD" for b in "AbCd" for c in "abCD"})
"""In the order of bytes, they are mixed through what they are without regard to case."""
REORDERED = {
    "collation": "MODIFY k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
    "members": "DROP PRIMARY KEY, ADD PRIMARY KEY (n)",
    "member added": "DROP PRIMARY KEY, ADD PRIMARY KEY (n, k)",
    "index gone": "DROP PRIMARY KEY, ADD KEY (k)",
}


@pytest.mark.parametrize("change", REORDERED)
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_place_of_another_order_is_worth_nothing(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader], change: str, restarted: bool
) -> None:
    server.run(
        f"CREATE TABLE {database}.t (n INT NOT NULL, k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci "
        "NOT NULL, PRIMARY KEY (k)) ENGINE=InnoDB",
        f"INSERT INTO {database}.t VALUES {', '.join(f'({(7 * n) % 64}, {word!r})' for n, word in enumerate(WORDS))}",
    )
    reader = open_reader()
    reader.begin(task_of(server, database, "t"))
    found = [take(reader, server) for _ in range(3)]
    server.run(f"ALTER TABLE {database}.t {REORDERED[change]}")
    if restarted:
        reader.close()
        reader = open_reader()
        reader.begin(task_of(server, database, "t"), found[-1].last_key, found[-1].order)
    elif change != "collation":  # the log shows it; a collation, it may not
        reader.redefine(task_of(server, database, "t"))
    while not (isinstance(found[-1], Placed) and found[-1].is_last):
        found.append(take(reader, server))
    begun = max((number for number, each in enumerate(found) if isinstance(each, ReadingRestarted)), default=-1)
    assert sorted(table(found[begun + 1 :])["k"].to_pylist()) == WORDS
    assert begun >= 3


def test_an_empty_table_is_one_empty_chunk(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    (chunk,) = read_all(open_reader(), server, task_of(server, database, "t"))
    assert chunk.rows == 0
    assert chunk.is_last


def test_a_condition_narrows_what_is_read(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    task = numbers(server, database)
    narrowed = TableTask(task.definition, task.table, where="id % 100 = 1 OR id = 500 -- few")
    found = table(read_all(open_reader(), server, narrowed))["id"].to_pylist()
    assert sorted(found) == [1, 101, 201, 301, 401, 500]


def test_several_tables_are_read_at_once(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    reader = open_reader()
    for name in ("a", "b", "c"):
        server.run(f"CREATE TABLE {database}.{name} (id INT PRIMARY KEY)")
        server.run(f"INSERT INTO {database}.{name} VALUES {', '.join(f'({n})' for n in range(50))}")
        reader.begin(task_of(server, database, name))
    rows: dict[str, int] = {}
    ended = set()
    while len(ended) < 3:
        found = take(reader, server)
        assert isinstance(found, Placed)
        rows[found.source] = rows.get(found.source, 0) + found.rows
        ended |= {found.source} if found.is_last else set()
    assert rows == {f"{database}.{name}": 50 for name in "abc"}


def test_lost_connections_cost_nothing(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    task = numbers(server, database, 3_000)
    reader = open_reader()
    reader.begin(task)
    stop = threading.Event()
    chunks: list[Placed] = []

    def cut() -> None:
        connection, seen = server.connect(), -1
        with connection.cursor() as cursor:
            while not stop.is_set():
                if len(chunks) == seen:  # on a slow machine, no query would ever come to its end
                    stop.wait(0.005)
                    continue
                seen = len(chunks)
                cursor.execute("SHOW PROCESSLIST")
                for number, *_, info in [row[:8] for row in cursor.fetchall()]:
                    if info and f"`{database}`" in str(info):
                        with contextlib.suppress(pymysql.MySQLError):  # it may have gone by itself
                            cursor.execute(f"KILL {number}")
                stop.wait(0.03)
        connection.close()

    killer = threading.Thread(target=cut)
    killer.start()
    try:
        while not chunks or not chunks[-1].is_last:
            found = take(reader, server)
            assert isinstance(found, Placed)
            chunks.append(found)
            if len(chunks) > 150:
                stop.set()
    finally:
        stop.set()
        killer.join()
    assert sorted(table(chunks)["id"].to_pylist()) == list(range(1, 3_001))


def test_rows_above_16_mib_and_chunks_above_their_bytes(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a LONGTEXT CHARACTER SET latin1, z INT)")
    writer = server.connect(max_allowed_packet=1 << 30)
    server.query("SET GLOBAL max_allowed_packet = 1073741824")
    writer.close()
    writer = server.connect()
    sizes = [10, 17 << 20, 100_000, (1 << 24) - 20, 5, (1 << 24) + 3, 0]
    with writer.cursor() as cursor:
        for number, size in enumerate(sizes):
            cursor.execute(f"INSERT INTO {database}.t VALUES ({number}, REPEAT('x', {size}), {-number})")
    writer.close()
    options = SnapshotOptions(chunk_bytes_max=50_000)
    found = table(read_all(open_reader(options), server, task_of(server, database, "t"))).sort_by("id")
    assert [len(value) for value in found["a"].to_pylist()] == sizes
    assert found["z"].to_pylist() == [-number for number in range(len(sizes))]
    reader = open_reader(SnapshotOptions(row_bytes_max=1 << 20))
    with pytest.raises(LimitExceeded, match="row_bytes_max"):
        read_all(reader, server, task_of(server, database, "t"))


def test_it_closes_without_waiting_for_a_query(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    task = numbers(server, database)
    slow = TableTask(task.definition, task.table, where="SLEEP(600) = 0")  # for longer than a test may take
    reader = open_reader()
    reader.begin(slow)
    wait_until(lambda: is_read_slowly(server))
    reader.close()
    wait_until(lambda: not is_read_slowly(server))


def is_read_slowly(server: Server) -> bool:
    """Whether a session of the server runs the query that sleeps."""
    return any(
        "SLEEP(600)" in str(row) for row in server.query("SHOW FULL PROCESSLIST") if "PROCESSLIST" not in str(row)
    )


@pytest.mark.parametrize("is_restarted", [True, False], ids=["restarted", "same"])
def test_when_it_ends_it_kills_its_own_sessions_only(
    new_server: Callable[..., Server], kind: str, is_restarted: bool
) -> None:
    """A server that was restarted counts its sessions anew: the numbers that ours had are soon those of others."""
    server = new_server(kind)
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    server.run(f"INSERT INTO shop.t VALUES {', '.join(f'({n})' for n in range(200))}")
    until_s = time.monotonic() + WAIT_S
    reader = MysqlSnapshotReader(server.connect, SMALL)
    reader.advance(0, log_position(server))
    reader.begin(task_of(server, "shop", "t"))
    while not reader.is_full or not all(each.is_read for each in reader._readings["shop.t"].chunks):
        assert time.monotonic() < until_s
    ours = _readers(server)
    assert ours
    others = []
    if is_restarted:
        while int(server.query("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]) < 1:  # starts are told apart by the second
            assert time.monotonic() < until_s
        server.restart()
        while not others or others[-1].thread_id() < max(ours):
            others.append(server.connect())
    reader.close()
    if is_restarted:
        assert [each.query("DO 1") for each in others] == [0] * len(others)
        for each in others:
            each.close()
    else:
        while _readers(server):
            assert time.monotonic() < until_s


def _readers(server: Server) -> list[int]:
    """The sessions besides our own."""
    rows = server.query("SHOW PROCESSLIST")
    ours = server.query("SELECT CONNECTION_ID()")[0][0]
    return [int(row[0]) for row in rows if row[1] == server.user and row[0] != ours]


def test_a_table_altered_meanwhile_waits_for_the_log_to_say_so(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    task = numbers(server, database)
    reader = open_reader()
    server.run(f"ALTER TABLE {database}.t CHANGE v w VARCHAR(40)")
    reader.begin(task)
    assert reader.take(1.0) is None
    reader.control(task.source, 5)
    reader.redefine(task_of(server, database, "t"))
    chunks = []
    while not chunks or not chunks[-1].is_last:
        reader.advance(5, log_position(server))
        found = reader.take(0.05)
        if isinstance(found, Placed):
            chunks.append(found)
    assert table(chunks).column_names == ["id", "w"]
    assert table(chunks).num_rows == 500


def test_a_table_that_is_not_as_the_log_says_is_an_error(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    task = numbers(server, database)
    server.run(f"ALTER TABLE {database}.t MODIFY id BIGINT NOT NULL")
    reader = open_reader()
    with pytest.raises(SourceChanged, match="column 'id' is known as int"):
        read_all(reader, server, task)


def test_a_view_is_refused(server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]) -> None:
    task = numbers(server, database)
    server.run(f"DROP TABLE {database}.t", f"CREATE VIEW {database}.t AS SELECT 1 AS id, 'x' AS v")
    with pytest.raises(UnsupportedFeature, match="is a VIEW"):
        read_all(open_reader(), server, task)


def test_a_table_without_a_key_is_read_as_a_whole(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    server.run(f"CREATE TABLE {database}.t (v INT) ENGINE=InnoDB")
    server.run(f"INSERT INTO {database}.t VALUES {', '.join(f'({n % 10})' for n in range(3000))}")
    chunks = read_all(open_reader(), server, task_of(server, database, "t"))
    assert sorted(table(chunks)["v"].to_pylist()) == sorted(n % 10 for n in range(3000))
    assert len(chunks) > 10


@pytest.mark.parametrize("rows", [[1, 2], []], ids=["with rows", "empty"])
def test_a_table_without_a_key_begins_anew_when_it_is_written(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader], rows: list[int]
) -> None:
    server.run(f"CREATE TABLE {database}.t (v INT) ENGINE=InnoDB")
    server.run(*(f"INSERT INTO {database}.t VALUES ({row})" for row in rows))
    task = task_of(server, database, "t")
    is_read = threading.Event()
    reader = open_reader(on_ready=is_read.set)
    reader.begin(task)
    assert is_read.wait(WAIT_S)
    server.run(f"INSERT INTO {database}.t VALUES (4)")
    reader.images(task.source, np.array([7]), [])
    event = None
    while event is None:
        reader.advance(7, log_position(server))
        event = reader.take(0.05)
    assert event == ReadingRestarted(task.source)
    again = take_at(reader, server, 7)
    assert sorted(again.arrays[0].to_pylist()) == [*rows, 4]


def take_at(reader: MysqlSnapshotReader, server: Server, scn: int) -> Placed:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        reader.advance(scn, log_position(server))
        found = reader.take(0.05)
        if isinstance(found, Placed):
            return found
    raise AssertionError(f"no chunk came: {reader.progress()}")


def test_rows_that_the_log_says_more_about_are_dropped(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    task = numbers(server, database, 20)
    reader = open_reader(SnapshotOptions())
    position = log_position(server)
    server.run(f"UPDATE {database}.t SET v = 'new' WHERE id IN (3, 4)", f"DELETE FROM {database}.t WHERE id = 9")
    reader.advance(1, position)
    reader.begin(task)
    reader.images(task.source, np.array([2, 2, 2, 2, 3]), [pa.array([3, 3, 4, 4, 9], pa.int32())])
    chunk = take_at(reader, server, 3)
    ids = set(chunk.arrays[0].to_pylist())
    assert ids in ({*range(1, 21)} - {9}, {*range(1, 21)} - {3, 4, 9})


def test_a_date_that_is_none_follows_the_policy(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    connection = server.connect(init_command="SET sql_mode = ''")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, d DATE)")
        cursor.execute(f"INSERT INTO {database}.t VALUES (1, '0000-00-00'), (2, '2020-00-10'), (3, '2020-01-10')")
    connection.close()
    with pytest.raises(UnrepresentableValue, match="column 'd'"):
        read_all(open_reader(), server, task_of(server, database, "t"))


def test_without_gtids_chunks_share_a_low_watermark(new_server: Callable[..., Server]) -> None:
    server = new_server("mysql-5.7", gtid=False)
    server.run("CREATE DATABASE shop")
    task = numbers(server, "shop", 200)
    reader = MysqlSnapshotReader(server.connect, SnapshotOptions(chunk_rows_max=20))
    try:
        reader.advance(1, log_position(server))
        reader.begin(task)
        first = take_at(reader, server, 1)
        server.run("UPDATE shop.t SET v = 'new' WHERE id > 0")
        reader.images(task.source, np.repeat(2, 200), [pa.array(range(1, 201), pa.int32())])
        chunks = [first]
        while not chunks[-1].is_last:
            chunks.append(take_at(reader, server, 2))
    finally:
        reader.close()
    # behind the update's place no chunk says what was before it; rows that it wrote stand in the log
    assert first.arrays[1].to_pylist() == [f"v{n}" for n in first.arrays[0].to_pylist()]
    assert {value for chunk in chunks[1:] for value in chunk.arrays[1].to_pylist()} <= {"new"}


@pytest.mark.parametrize("ends", ["begun anew", "dropped"])
def test_a_lock_is_let_go_when_the_reading_that_has_it_is_wanted_no_more(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader], ends: str
) -> None:
    server.run(f"CREATE TABLE {database}.t (v INT) ENGINE=InnoDB", f"INSERT INTO {database}.t VALUES (1)")
    is_seen, connection = threading.Event(), server.connect()

    def write() -> None:
        while not is_seen.is_set():
            connection.query(f"INSERT INTO {database}.t VALUES (2)")

    task, reader = task_of(server, database, "t", locks=True), open_reader()
    reader.begin(task)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    end = time.monotonic() + WAIT_S
    while not server.query("SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table%lock'"):
        assert time.monotonic() < end
    is_seen.set()
    if ends == "dropped":
        reader.drop(task.source)
    else:
        reader.begin(task)
        while not isinstance(found := take(reader, server), Placed) or not found.is_last:
            assert time.monotonic() < end
    writer.join(WAIT_S)
    assert not writer.is_alive()


def test_a_table_without_a_key_may_be_locked_while_it_is_read(
    server: Server, database: str, open_reader: Callable[..., MysqlSnapshotReader]
) -> None:
    server.run(f"CREATE TABLE {database}.t (v INT) ENGINE=InnoDB")
    server.run(f"INSERT INTO {database}.t VALUES {', '.join('(1)' for _ in range(100))}")
    task = task_of(server, database, "t", locks=True)
    reader = open_reader()
    reader.begin(task)
    first = take(reader, server)
    assert isinstance(first, Placed)
    writer = threading.Thread(target=server.connect().query, args=(f"INSERT INTO {database}.t VALUES (2)",))
    writer.start()
    writer.join(0.3)
    assert writer.is_alive()
    chunks = [first]
    while not chunks[-1].is_last:
        found = take(reader, server)
        assert isinstance(found, Placed)
        chunks.append(found)
    writer.join(WAIT_S)
    assert not writer.is_alive()
    assert table(chunks)["v"].to_pylist() == [1] * 100
