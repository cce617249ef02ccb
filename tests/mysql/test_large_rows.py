"""Rows above `row_bytes_max` with `on_large_row: marker`: from the log and from a snapshot alike, on real servers."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import structlog

from databus.core import ChangeType, FatalError, LimitExceeded
from databus.sources.mysql import BinlogConfig, BinlogSource
from databus.testing._source_suite import Tape
from databus.testing.servers import Server
from tests.mysql.following import Follower, purge

MB = 1_000_000
LIMIT = 1 << 20
ROOM = {"row_bytes_max": LIMIT, "on_large_row": "marker", "buffer_bytes_max": 128 << 20}
INSERT, BEFORE, AFTER, DELETE = (
    ChangeType.INSERT,
    ChangeType.UPDATE_PREIMAGE,
    ChangeType.UPDATE_POSTIMAGE,
    ChangeType.DELETE,
)


@pytest.fixture
def big(server: Server, database: str) -> Iterator[Any]:
    """A session that may send packets of 1 GiB, and a table for them."""
    server.run("SET GLOBAL max_allowed_packet = 1073741824")
    server.run(
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (id INT, code VARCHAR(40), latin LONGTEXT CHARACTER SET latin1, bytes LONGBLOB, "
        f"doc JSON, note VARCHAR(100), PRIMARY KEY (id, code)) CHARACTER SET utf8mb4",
    )
    session = server.connect(database=database, autocommit=True)
    with session.cursor() as cursor:
        yield cursor
    session.close()


@pytest.fixture
def follow(follow: Callable[..., Follower]) -> Callable[..., Follower]:
    """Followers that take rows of 30 MB, and let none of more than 1 MiB out."""
    return lambda database, *servers, **options: follow(database, *servers, **{**ROOM, **options})


def images(tape: Tape, *, snapshot: bool) -> list[tuple[int, dict[str, Any]]]:
    """Change type and values of all rows of `t`, in order."""
    return [
        (row["_change_type"], {name: value for name, value in row.items() if not name.startswith("_")})
        for group in tape.groups
        for rows in group.rows
        if rows.table.source.endswith(".t")
        for row in rows.batch.to_pylist()
        if row["_snapshot"] is snapshot
    ]


def marker(size: int) -> str:
    return f"__databus_value_omitted__ {size}"


def fill(cursor: Any) -> dict[str, Any]:
    """Rows of all kinds; what is to become of them, by number."""
    cursor.execute("INSERT INTO t VALUES (1, 'whole', 'small', 'bytes', '[1]', 'first')")
    cursor.execute(f"INSERT INTO t VALUES (2, 'text', REPEAT('\u00e9', {30 * MB}), 'b', NULL, 'its neighbour')")
    cursor.execute(
        f"INSERT INTO t VALUES (3, 'three', REPEAT('x', {2 * MB}), REPEAT('y', {3 * MB}), NULL, NULL), "
        f"(4, 'two', REPEAT('x', {MB // 2}), REPEAT('y', {3 * MB}), '[2]', 'kept'), "
        "(5, 'none', NULL, NULL, NULL, 'whole'), "
        f"(6, 'json', NULL, NULL, CONCAT('[\"', REPEAT('z', {2 * MB}), '\", 1.5]'), NULL), "
        f"(7, 'edge', REPEAT('x', {LIMIT - 4}), NULL, NULL, NULL)"
    )
    doc_bytes = 2 * MB + len('["", 1.5]')
    cursor.execute("SELECT VERSION()")
    is_text = "maria" in cursor.fetchone()[0].lower()  # whose JSON is a LONGTEXT
    rows = [
        {"id": 1, "code": "whole", "latin": "small", "bytes": b"bytes", "doc": "[1]", "note": "first"},
        {"id": 2, "code": "text", "latin": marker(60 * MB), "bytes": b"b", "doc": None, "note": "its neighbour"},
        {
            "id": 3,
            "code": "three",
            "latin": marker(2 * MB),
            "bytes": marker(3 * MB).encode(),
            "doc": None,
            "note": None,
        },
        {
            "id": 4,
            "code": "two",
            "latin": "x" * (MB // 2),
            "bytes": marker(3 * MB).encode(),
            "doc": "[2]",
            "note": "kept",
        },
        {"id": 5, "code": "none", "latin": None, "bytes": None, "doc": None, "note": "whole"},
        {"id": 6, "code": "json", "latin": None, "bytes": None, "doc": marker(doc_bytes), "note": None},
        {"id": 7, "code": "edge", "latin": "x" * (LIMIT - 4), "bytes": None, "doc": None, "note": None},
    ]
    if not is_text:
        rows[5]["doc"] = f'"{marker(doc_bytes)}"'
    return {row["id"]: row for row in rows}


def test_large_rows_are_the_same_from_the_log_and_from_a_snapshot(server, database, big, follow) -> None:
    followed, said = follow(database, server, snapshot="never"), structlog.testing.CapturingLogger()
    followed.step()
    followed.source._omissions._logger = said
    expected = fill(big)
    followed.catch_up(server, database)
    assert followed.source.lag().values_omitted == {f"{database}.t": 5}
    followed.kill()
    assert [row for _, row in images(followed.tape, snapshot=False)] == list(expected.values())
    assert "values were left out" in said.calls[-1].args[0]
    assert said.calls[-1].kwargs["table"] == f"{database}.t"
    assert said.calls[-1].kwargs["values"] == 5

    read = follow(database, server)
    read.catch_up(server, database)
    assert {row["id"]: row for _, row in images(read.tape, snapshot=True)} == expected


def test_an_updated_and_a_deleted_large_row_keep_their_keys(server, database, big, follow) -> None:
    followed = follow(database, server, snapshot="never")
    followed.step()
    expected = fill(big)
    big.execute("UPDATE t SET note = 'changed' WHERE id IN (1, 2)")
    big.execute(f"UPDATE t SET latin = 'short', bytes = REPEAT('n', {2 * MB}) WHERE id = 3")
    big.execute("UPDATE t SET code = 'moved' WHERE id = 6")
    big.execute("DELETE FROM t WHERE id IN (2, 4)")
    followed.catch_up(server, database)
    changed = {number: {**expected[number], "note": "changed"} for number in (1, 2)}
    third = {**expected[3], "latin": "short", "bytes": marker(2 * MB).encode()}
    assert images(followed.tape, snapshot=False)[7:] == [
        (BEFORE, expected[1]),
        (AFTER, changed[1]),
        (BEFORE, expected[2]),
        (AFTER, changed[2]),
        (BEFORE, expected[3]),
        (AFTER, third),
        (BEFORE, expected[6]),
        (AFTER, {**expected[6], "code": "moved"}),
        (DELETE, changed[2]),
        (DELETE, expected[4]),
    ]


def test_large_documents_of_partial_updates_are_judged_by_the_whole(plain_server, follow, request) -> None:
    server, database = plain_server("mysql-8.0"), "partial"
    request.addfinalizer(lambda: server.run(f"DROP DATABASE {database}"))
    server.run(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, doc JSON, note VARCHAR(20))",
    )
    followed = follow(database, server, snapshot="never")
    followed.step()
    with server.connect(database=database, autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
        cursor.execute(f"INSERT INTO t VALUES (1, JSON_OBJECT('a', REPEAT('x', {2 * MB}), 'b', 17), 'n')")
        cursor.execute("UPDATE t SET doc = JSON_REPLACE(doc, '$.b', 1)")
        cursor.execute("UPDATE t SET doc = JSON_REPLACE(doc, '$.a', 'small')")
        cursor.execute("UPDATE t SET note = 'm'")
        cursor.execute("SELECT doc FROM t")
        ((small,),) = cursor.fetchall()
    followed.catch_up(server, database)
    whole = 2 * MB + len('{"a": "", "b": 17}')
    found = [(kind, row["doc"]) for kind, row in images(followed.tape, snapshot=False)]
    assert found == [
        (INSERT, f'"{marker(whole)}"'),
        (BEFORE, f'"{marker(whole)}"'),
        (AFTER, f'"{marker(whole - 1)}"'),
        (BEFORE, f'"{marker(whole - 1)}"'),
        (AFTER, small),
        (BEFORE, small),
        (AFTER, small),
    ]


@pytest.mark.parametrize(
    ("kind", "line"),
    [("mariadb-10.11", "log-bin-compress=ON"), ("mysql-8.0", "binlog-transaction-compression=ON")],
)
def test_large_rows_in_compressed_logs_and_in_their_files(kind, line, new_server, follow, tmp_path) -> None:
    server = new_server(kind, lines=[line, "max-allowed-packet=256M"])
    server.run(
        "CREATE TABLE test.mark (id INT PRIMARY KEY, n BIGINT)", "CREATE TABLE test.t (id INT PRIMARY KEY, x LONGTEXT)"
    )
    followed = follow("test", server, snapshot="never")
    followed.step()
    server.run(
        f"INSERT INTO test.t VALUES (1, 'a'), (2, REPEAT('x', {20 * MB})), (3, 'c')",
        "UPDATE test.t SET id = id + 10 WHERE id > 1",
    )
    followed.catch_up(server, "test")
    small, large = {"id": 3, "x": "c"}, {"id": 2, "x": marker(20 * MB)}
    expected = [
        (INSERT, {"id": 1, "x": "a"}),
        (INSERT, large),
        (INSERT, small),
        (BEFORE, large),
        (AFTER, {**large, "id": 12}),
        (BEFORE, small),
        (AFTER, {**small, "id": 13}),
    ]
    assert images(followed.tape, snapshot=False) == expected
    for path in server.binlogs():
        if path.suffix != ".index":
            shutil.copy(path, tmp_path)
    config = BinlogConfig(path=str(tmp_path), tables=["test.t"], row_bytes_max=LIMIT, on_large_row="marker")
    source, tape = BinlogSource("files", config), Tape()
    source.start(tape.resume())
    while (group := source.poll(500)) is not None:
        tape.append(group)
    source.close()
    assert images(tape, snapshot=False) == expected


@pytest.mark.parametrize("snapshot", ["never", "initial"], ids=["log", "snapshot"])
def test_a_row_that_does_not_fit_without_its_key_stops_as_before(server, database, follow, snapshot) -> None:
    server.run(
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (k VARCHAR(700) CHARACTER SET latin1, u VARCHAR(700) CHARACTER SET latin1, "
        f"x TEXT, PRIMARY KEY (k, u))",
    )
    followed = follow(database, server, snapshot=snapshot, row_bytes_max=1_024)
    insert = f"INSERT INTO {database}.t VALUES (REPEAT('k', 600), REPEAT('u', 600), REPEAT('x', 600))"
    if snapshot == "never":
        followed.step()
        server.run(insert)
    else:
        server.run(insert)
    with pytest.raises(LimitExceeded, match=rf"{database}\.t: .* has 1800 bytes, .* row_bytes_max = 1024 .* key"):
        followed.catch_up(server, database)


def test_an_event_above_what_may_be_read_stops_and_names_the_options(server, database, big, follow) -> None:
    followed = follow(database, server, snapshot="never", buffer_bytes_max=4 << 20)
    followed.step()
    big.execute(f"INSERT INTO t VALUES (1, '', REPEAT('x', {6 * MB}), NULL, NULL, NULL)")
    with pytest.raises(FatalError, match=r"event_bytes_max.*buffer_bytes_max") as caught, suppress(AssertionError):
        followed.catch_up(server, database)
    assert isinstance(caught.value, LimitExceeded)


def test_an_event_of_more_than_256_mib_comes_where_the_options_let_it(plain_server, follow, request) -> None:
    server, database = plain_server("mysql-8.0"), "huge"
    request.addfinalizer(lambda: server.run(f"DROP DATABASE {database}"))
    request.addfinalizer(lambda: purge(server))  # other tests read this log from its beginning, with smaller limits
    server.run(
        "SET GLOBAL max_allowed_packet = 1073741824",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, bytes LONGBLOB)",
    )
    followed = follow(database, server, snapshot="never", buffer_bytes_max=300 << 20)
    followed.step()
    server.run(f"INSERT INTO {database}.t VALUES (1, REPEAT('x', {270 << 20}))")
    followed.catch_up(server, database)
    assert images(followed.tape, snapshot=False) == [(INSERT, {"id": 1, "bytes": marker(270 << 20).encode()})]
