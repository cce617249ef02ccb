"""What stops a scan, what does not, and which words it has for it."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from databus.core import CorruptData, LimitExceeded, PositionForeign, PositionPurged, SourceChanged, UnsupportedFeature
from databus.sources.mysql.binlog import Abandoned, GtidSet, Heartbeat, LoggedStatement, LogPosition, LogRun, Scanner
from databus.sources.mysql.binlog._compressed import mark
from databus.testing.servers import Server
from tests.mysql.binlog.support import scan, scanner, transactions_of, wants, without_start
from tests.mysql.binlog.synthetic import EMPTY_LIST, EMPTY_SET, ROW, SERVER, Writer
from tests.mysql.binlog.twin import Twin
from tests.mysql.binlog.workload import scheme_of


def begun(**options: Any) -> Writer:
    return Writer(**options).previous(EMPTY_SET)


def read(
    log: Writer | bytes,
    start: LogPosition | None = None,
    *,
    kind: str = "mysql-8.0",
    scheme: str = "gtid",
    **options: Any,
) -> tuple[Scanner, list[Any]]:
    scanning = scanner(kind, scheme, start, **options)
    return scanning, scan(scanning, {"binlog.000007": bytes(log)})


def numbers(found: list[Any]) -> list[str]:
    return [txid for item in found if isinstance(item, LogRun) for txid in item.txids(0, len(item)).to_pylist()]


# --- events that stop, and that do not ---


def test_an_incident_stops_and_says_what_to_do() -> None:
    with pytest.raises(SourceChanged, match=r"binlog\.000007 at \d+: the server logged an incident.*Snapshot"):
        read(begun().transaction(1).event(26, b"\1\0\0"))


def test_an_unknown_event_stops_by_its_number_unless_it_may_be_ignored() -> None:
    with pytest.raises(UnsupportedFeature, match="number 99"):
        read(begun().event(99, b"what"))
    with pytest.raises(UnsupportedFeature, match="PRE_GA_WRITE_ROWS"):
        read(begun().gtid(1).query("BEGIN").table_map().event(20, b"what"))
    _, found = read(begun().event(99, b"what", flags=0x80).transaction(1))
    assert numbers(found) == [f"{SERVER}:1"]


@pytest.mark.parametrize("scheme", ["file-offset", "own"])
@pytest.mark.parametrize(
    ("kind", "log"),
    [
        ("mysql-8.0", begun().mariadb_gtid(0, 1, 1).query("COMMIT")),
        ("mariadb-10.11", Writer("10.11.2-MariaDB").event(163, EMPTY_LIST).gtid(1).query("BEGIN").query("COMMIT")),
        ("mariadb-10.11", Writer("10.11.2-MariaDB").event(163, EMPTY_LIST).anonymous().query("BEGIN").query("COMMIT")),
        ("mariadb-10.11", Writer("10.11.2-MariaDB").event(163, EMPTY_LIST).event(42, bytes(42)).query("COMMIT")),
    ],
    ids=["mariadb-gtid", "gtid", "anonymous", "tagged"],
)
def test_the_other_servers_gtids_stop_and_are_no_index_into_anything(kind: str, log: Writer, scheme: str) -> None:
    with pytest.raises(SourceChanged, match=r"binlog\.000007 at \d+: .*put each server's into one of its own"):
        read(log, kind=kind, scheme=scheme_of(kind, gtid=True) if scheme == "own" else scheme)


def test_a_payload_cannot_say_at_which_place_of_the_file_it_stands() -> None:
    body = b"\0" + mark(1 << 40)
    with pytest.raises(CorruptData, match=r"binlog\.000007 at \d+: TRANSACTION_PAYLOAD .* no server writes"):
        read(begun().gtid(1).event(40, body))


def test_everything_before_an_error_comes_out_first_and_the_error_stays() -> None:
    scanning = scanner("mysql-8.0", "gtid")
    scanning.open_file("binlog.000007")
    scanning.feed(bytes(begun().transaction(1).transaction(2).event(99, b"")))
    found = []
    with pytest.raises(UnsupportedFeature):
        while (item := scanning.next()) is not None:
            found.append(item)
    assert numbers(found) == [f"{SERVER}:1", f"{SERVER}:2"]
    with pytest.raises(UnsupportedFeature):
        scanning.next()


def test_a_row_image_without_all_columns_is_an_error_never_a_null() -> None:
    log = begun().gtid(1).query("BEGIN").table_map().write(ROW, present=b"\xfd")
    with pytest.raises(UnsupportedFeature, match="binlog_row_image"):
        read(log)
    log = begun().gtid(1).query("BEGIN").table_map(database="other").write(ROW, present=b"\xfd").xid()
    assert numbers(read(log)[1]) == [f"{SERVER}:1"]


def test_rows_of_another_number_of_columns_or_of_no_table_are_corrupt() -> None:
    with pytest.raises(CorruptData, match="number of columns"):
        read(begun().gtid(1).query("BEGIN").table_map().write(ROW, columns=3))
    with pytest.raises(CorruptData, match="no table map of its transaction"):
        read(begun().transaction(1).gtid(2).query("BEGIN").write(ROW))


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        (252, b"\0"), (252, b"\5"), (252, b"\x08"), (245, b"\0"), (255, b"\x09"), (140, b"\0"), (242, b"\xff"),
        (246, b"\5\6"), (246, b"\x42\0"), (246, b"\0\0"), (16, b"\0\0"), (16, b"\1\x08"), (16, b"\x08\x08"),
        (17, b"\7"), (18, b"\xff"), (19, b"\x08"), (247, b"\0\3"), (254, b"\xf7\0"), (254, b"\xf8\5"),
        (254, b"\xfc\0"), (254, b"\xff\0"), (254, b"\x30\1"),
    ],
)  # fmt: skip
def test_a_width_that_no_server_writes_is_corrupt_before_a_row_is_walked_by_it(kind: int, meta: bytes) -> None:
    with pytest.raises(CorruptData, match=r"binlog\.000007 at \d+: .*(metadata|with the type)"):
        read(begun().gtid(1).query("BEGIN").table_map(types=(3, kind), metas=meta).write(ROW))


def test_a_table_id_that_comes_to_mean_another_table_is_seen() -> None:
    log = begun().transaction(1)
    log.gtid(2).query("BEGIN").table_map("u").write(ROW).xid().transaction(3)
    log.gtid(4).query("BEGIN").table_map("t", "other").write(ROW).xid().transaction(5)
    scanning, found = read(log)
    slots = [
        scanning.tables[slot].name for item in found if isinstance(item, LogRun) for slot in item.event_slot.tolist()
    ]
    assert slots == ["t", "u", "t", "t"]
    assert [table.name for table in scanning.tables] == ["t", "u"]


def test_thousands_of_table_ids_and_definitions_stay_bounded() -> None:
    log = begun()
    for i in range(3_000):
        log.table_id = 1_000 + i
        log.gtid(i + 1).query("BEGIN").table_map(f"t{i % 7}", "shop" if i % 2 else "other").write(ROW).xid()
    scanning, found = read(log)
    assert sum(len(item.event_slot) for item in found if isinstance(item, LogRun)) == 1_500
    assert len(scanning.tables) == 7
    with pytest.raises(LimitExceeded, match="table_maps_max"):
        log = begun().gtid(1).query("BEGIN")
        for i in range(20):
            log.table_map(f"t{i}")
        read(log, table_maps_max=10)


@pytest.mark.parametrize(
    ("announced", "damage"),
    [(0, b""), (len(ROW) - 1, b""), (len(ROW) + 1, b""), (len(ROW), b"cut off"), (len(ROW), b"no checksum")],
)
def test_compressed_rows_of_another_length_than_announced_are_corrupt(announced: int, damage: bytes) -> None:
    squeezed = zlib.compress(ROW)
    squeezed = {b"": squeezed, b"cut off": squeezed[:-6], b"no checksum": squeezed[:-1]}[damage]
    log = Writer("10.11.2-MariaDB").event(163, EMPTY_LIST).mariadb_gtid(0, 1, 1).table_map()
    log.write(bytes([0x81, announced]) + squeezed, kind=169).xid()
    with pytest.raises(CorruptData, match=r"binlog\.000007 at \d+"):
        read(log, kind="mariadb-10.11", scheme="domains")


def test_an_event_above_the_limit_is_refused_by_its_header() -> None:
    log = bytes(begun().transaction(1).gtid(2).query("BEGIN").table_map().write(ROW * 100))
    with pytest.raises(LimitExceeded, match="event_bytes_max"):
        read(log[:-700], event_bytes_max=500)


def test_a_file_that_ends_inside_an_event_or_is_no_log_is_named() -> None:
    scanning = scanner("mysql-8.0", "gtid")
    with pytest.raises(CorruptData, match=r"ends inside an event"):
        scan(scanning, {"binlog.000007": bytes(begun())[:-3], "binlog.000008": bytes(begun())})
    with pytest.raises(CorruptData, match=r"binlog\.000007 at 0"):
        read(b"PAR1what is this")
    with pytest.raises(UnsupportedFeature, match="encrypted"):
        read(b"\xfdbinwhat is this")
    with pytest.raises(UnsupportedFeature, match="encrypted"):
        read(Writer("10.11.2-MariaDB").event(164, bytes(17)), kind="mariadb-10.11", scheme="domains")


def test_a_transaction_that_a_crash_left_unfinished_is_abandoned() -> None:
    scanning = scanner("mysql-8.0", "gtid")
    first = begun().transaction(1).gtid(2).query("BEGIN").table_map().write(ROW)
    second = Writer().previous(GtidSet.parse(f"{SERVER}:1").encode()).transaction(2)
    found = scan(scanning, {"binlog.000007": bytes(first), "binlog.000008": bytes(second)})
    assert [type(item).__name__ for item in found] == ["Rotated", "LogRun", "Abandoned", "Rotated", "LogRun"]
    assert isinstance(found[2], Abandoned)
    assert found[2].origin.ordinal == 2
    assert [each.txid for each in transactions_of(scanning, found)] == [f"{SERVER}:1", f"{SERVER}:2"]


def test_a_heartbeat_of_the_second_form_tells_a_place_beyond_4_gib() -> None:
    place, name = (5 << 30) + 123, b"binlog.000007"
    log = Writer().event(4, (4).to_bytes(8, "little") + name, flags=0x20, moves=False).previous(EMPTY_SET)
    body = bytes([1, len(name)]) + name + bytes([2, 9, 0xFE]) + place.to_bytes(8, "little") + b"\0"
    log.event(41, body, flags=0x20, moves=False)
    scanning = scanner("mysql-8.0", "gtid", is_file=False)
    scanning.feed(bytes(log)[4:])
    *_, found = iter(scanning.next, None)
    assert isinstance(found, Heartbeat)
    assert (found.position["file"], found.position["offset"]) == (name.decode(), place)


# --- GTIDs ---


def test_a_gtid_that_comes_twice_stops() -> None:
    with pytest.raises(SourceChanged, match="executed before"):
        read(begun().transaction(1).transaction(2).transaction(1))
    log = Writer("10.11.2-MariaDB").event(163, EMPTY_LIST)
    log.mariadb_gtid(0, 1, 1).query("COMMIT").mariadb_gtid(0, 1, 1).query("COMMIT")
    with pytest.raises(SourceChanged, match="executed before"):
        read(log, kind="mariadb-10.11", scheme="domains")


def test_gtids_out_of_order_fill_gaps_and_each_position_says_so() -> None:
    log = begun()
    for number in (5, 1, 3, 2, 9, 4):
        log.transaction(number)
    _, found = read(log)
    run = found[-1]
    assert run.scn.tolist() == [1, 2, 3, 4, 5, 6]
    texts = [run.position(i)["gtids"].removeprefix(f"{SERVER}:") for i in range(6)]
    assert texts == ["5", "1:5", "1:3:5", "1-3:5", "1-3:5:9", "1-5:9"]
    _, rest = read(log, LogPosition.from_json(run.position(2)))
    assert numbers(rest) == [f"{SERVER}:{n}" for n in (2, 9, 4)]
    assert rest[-1].scn.tolist() == [4, 5, 6]


def test_many_servers_and_many_gaps_grow_the_set() -> None:
    log = begun()
    servers = [f"00000000-0000-0000-0000-{i:012d}" for i in range(40)]
    expected = GtidSet()
    for number in range(1, 60, 2):
        for server in servers:
            log.gtid(number, server=server).query("BEGIN").query("COMMIT")
            expected = expected.add(GtidSet.parse(f"{server}:{number}"))
    scanning, found = read(log)
    assert scanning.position.gtids == str(expected)
    assert found[-1].scn[-1] == expected.size == 30 * 40
    assert found[-1].position(len(found[-1]) - 1)["gtids"] == str(expected)


def test_a_set_of_any_number_of_gaps_finds_room() -> None:
    log = begun()
    for number in range(1, 201, 2):
        log.transaction(number)
    scanning, found = read(log)
    assert numbers(found) == [f"{SERVER}:{number}" for number in range(1, 201, 2)]
    assert scanning.position.gtids == f"{SERVER}:" + ":".join(map(str, range(1, 201, 2)))


def test_transactions_that_the_log_never_had_are_a_gap_that_is_named() -> None:
    listed = GtidSet.parse(f"{SERVER}:1-10").encode()
    with pytest.raises(PositionPurged, match=f"{SERVER}:4-10"):
        read(Writer().previous(listed).transaction(11), LogPosition(gtids=f"{SERVER}:1-3"))
    scanning = scanner("mysql-8.0", "gtid")
    with pytest.raises(SourceChanged, match=f"{SERVER}:2-10"):
        scan(
            scanning,
            {"binlog.000007": bytes(begun().transaction(1)), "binlog.000008": bytes(Writer().previous(listed))},
        )
    listed = (
        (1).to_bytes(4, "little") + (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + (9).to_bytes(8, "little")
    )
    with pytest.raises(PositionPurged, match="0-1-9"):
        read(
            Writer("10.11.2-MariaDB").event(163, listed),
            LogPosition(gtids="0-1-5"),
            kind="mariadb-10.11",
            scheme="domains",
        )


def test_another_servers_transaction_at_our_sequence_number_is_another_history() -> None:
    log = Writer("10.11.2-MariaDB").event(163, EMPTY_LIST).mariadb_gtid(0, 2, 5).query("COMMIT")
    with pytest.raises(SourceChanged, match="another server made"):
        read(log, LogPosition(gtids="0-1-5"), kind="mariadb-10.11", scheme="domains")


def test_domains_sum_up_and_a_new_one_joins() -> None:
    log = Writer("10.11.2-MariaDB").event(163, EMPTY_LIST)
    for domain, number in ((0, 1), (1, 1), (0, 5), (7, 100), (1, 2)):
        log.mariadb_gtid(domain, 1, number).query("COMMIT")
    _, found = read(log, kind="mariadb-10.11", scheme="domains")
    run = found[-1]
    assert run.scn.tolist() == [1, 2, 6, 106, 107]
    assert [run.position(i)["gtids"] for i in (0, 2, 4)] == ["0-1-1", "0-1-5,1-1-1", "0-1-5,1-1-2,7-1-100"]
    assert run.txids(1, 4).to_pylist() == ["1-1-1", "0-1-5", "7-1-100"]


def test_an_anonymous_transaction_where_gtids_make_scns_stops() -> None:
    log = begun().anonymous().query("BEGIN").table_map().write(ROW).xid()
    with pytest.raises(SourceChanged, match="without GTID"):
        read(log)
    _, found = read(log, scheme="file-offset")
    assert numbers(found) == ["binlog.000007:158"]


def test_file_and_offset_of_another_server_are_refused() -> None:
    with pytest.raises(PositionForeign, match="one server only"):
        read(begun(), LogPosition("binlog.000007", 4, None, "a"), scheme="file-offset", server_uuid="b")


def test_gtids_without_what_was_before_are_refused() -> None:
    with pytest.raises(CorruptData, match="list of those executed before"):
        read(Writer().transaction(1))


# --- what real servers do ---


def current_log(server: Server) -> dict[str, bytes]:
    path = server.binlogs()[-1]
    return {path.name: path.read_bytes()}


@pytest.fixture
def shop(kind: str, plain_server: Callable[[str], Server]) -> Any:
    server = plain_server(kind)
    server.run(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT)",
        "FLUSH BINARY LOGS",
    )
    yield server
    server.run("DROP DATABASE IF EXISTS shop")


def test_an_xa_transaction_on_a_captured_table_stops_where_nothing_holds_it(shop: Server) -> None:
    connection = shop.connect()
    with connection.cursor() as cursor:
        for sql in ("XA START 'x'", "INSERT INTO shop.t VALUES (1, 1)", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(sql)
        try:
            with pytest.raises(UnsupportedFeature, match="nothing here holds it"):
                scan(scanner(shop.kind, scheme_of(shop.kind, gtid=True), prepared=None), current_log(shop))
        finally:
            cursor.execute("XA ROLLBACK 'x'")
    connection.close()


def test_a_statement_logged_instead_of_rows_stops_if_its_database_is_captured(shop: Server) -> None:
    connection = shop.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO shop.t VALUES (1, 1)")
    connection.commit()
    connection.close()
    with pytest.raises(UnsupportedFeature, match="binlog_format"):
        scan(scanner(shop.kind, scheme_of(shop.kind, gtid=True)), current_log(shop))
    unconcerned = Scanner(
        scanner_flavor(shop),
        wants,
        scheme=scheme_of(shop.kind, gtid=True),
        is_file=True,
        wants_database=lambda _: False,
    )
    scan(unconcerned, current_log(shop))


def scanner_flavor(server: Server) -> Any:
    return "mariadb" if server.kind.startswith("mariadb") else "mysql"


def test_a_minimal_row_image_stops(shop: Server) -> None:
    connection = shop.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        cursor.execute("INSERT INTO shop.t VALUES (1, 1)")
        cursor.execute("UPDATE shop.t SET b = 2")
    connection.commit()
    connection.close()
    with pytest.raises(UnsupportedFeature, match="binlog_row_image"):
        scan(scanner(shop.kind, scheme_of(shop.kind, gtid=True)), current_log(shop))


@pytest.mark.parametrize("kind", ["mysql-9.7"])
def test_tagged_gtids_count_and_resume(shop: Server) -> None:
    connection = shop.connect()
    with connection.cursor() as cursor:
        for i in range(6):
            cursor.execute(f"SET gtid_next = 'AUTOMATIC{':backup' if i % 2 else ''}'")
            cursor.execute(f"INSERT INTO shop.t VALUES ({i}, 1)")
            connection.commit()
    connection.close()
    shop.run("FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (100, 1)")
    files = {path.name: path.read_bytes() for path in shop.binlogs()[-2:]}
    scanning = scanner(shop.kind, "gtid")
    found = scan(scanning, files)
    run = next(item for item in found if isinstance(item, LogRun))
    names = [txid.split(":", 1)[1] for txid in run.txids(0, len(run)).to_pylist()]
    assert [name for name in names if name.startswith("backup:")] == ["backup:1", "backup:2", "backup:3"]
    assert scanning.position.gtids == shop.gtids().replace("\n", "")
    assert int(run.scn[-1]) == GtidSet.parse(run.position(len(run) - 1)["gtids"]).size
    again = scanner(shop.kind, "gtid", LogPosition.from_json(run.position(2)))
    rest = [item for item in scan(again, files) if isinstance(item, LogRun)]
    assert rest[0].txids(0, len(rest[0])).to_pylist() == run.txids(3, len(run)).to_pylist()


def test_an_insert_that_makes_millions_of_images_passes_in_several_runs(shop: Server) -> None:
    shop.run("INSERT INTO shop.t VALUES (0, 0)")
    for i in range(15):
        shop.run(f"INSERT INTO shop.t SELECT a + {1 << i}, b FROM shop.t")
    shop.run("UPDATE shop.t SET b = 1")
    files = current_log(shop)
    scanning = scanner(shop.kind, scheme_of(shop.kind, gtid=True))
    found = scan(scanning, files, (50_000,))
    assert max(len(item.buffer) for item in found if isinstance(item, LogRun)) < 120_000
    assert sum(item.continues for item in found if isinstance(item, LogRun)) > 10
    assert transactions_of(scanning, found) == without_start(Twin("shop").read(files))


def test_statements_say_what_they_ran_under(shop: Server) -> None:
    connection = shop.connect(charset="latin1", database="shop")
    with connection.cursor() as cursor:
        cursor.execute("SET NAMES latin1")
        cursor.execute("SET SESSION sql_mode = 'ANSI_QUOTES'")
        cursor.execute("CREATE TABLE \"ä\" (a INT COMMENT 'ö')")
        cursor.execute("/* a comment */ DROP TABLE `ä`")
    connection.close()
    found = scan(scanner(shop.kind, scheme_of(shop.kind, gtid=True)), current_log(shop))
    created = next(item for item in found if isinstance(item, LoggedStatement))
    assert 'CREATE TABLE "ä"' in created.text
    assert "ö" in created.text
    assert created.database == "shop"
    assert created.query.charsets is not None
    assert created.query.charsets[0] == 8
    assert created.query.sql_mode == 4
    assert created.is_complete
    assert created.position is not None
    assert Path(created.position["file"]).name == created.position["file"]
