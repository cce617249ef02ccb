"""Snapshots of many tables at once, and positions of any size: read a few at a time, whatever is killed meanwhile."""

import json
import random
import time
from collections import Counter

import pytest

from databus.client import Splitter
from databus.core import ControlKind, SourceCheckpoint
from databus.link import RelayClient
from databus.testing import RelayProcess
from databus.wire import Commit
from tests.mysql.following import FAMILIES, Load, create
from tests.mysql.test_accidents_relay import copy_of, options_of, wait_until_identical

LONG = "a_table_with_a_name_as_long_as_servers_allow_which_is_64_cha"
TABLES = 40
AT_A_TIME = 3
KILLS_MAX = 20  # on a slow machine a reader that is killed before it has connected reads nothing
READ_S_MAX = 200


def fill(server, database, count, rows=7):
    names = [f"{LONG}{number:04}" for number in range(count)]
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        for number, name in enumerate(names):
            cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(40))")
            values = ", ".join(f"({key}, '{number} {key}')" for key in range(rows))
            cursor.execute(f"INSERT INTO {name} VALUES {values}")
    return [f"{database}.{name}" for name in names]


def readings(groups):
    """How often each table's reading began and ended, and how many were open at most."""
    begun, ended, most = Counter(), Counter(), 0
    for group in groups:
        most = max(most, len(group.commit.snapshots))
        if group.control is not None and group.control.kind is ControlKind.SNAPSHOT_BEGIN:
            begun[group.control.table.source] += 1
        elif group.control is not None and group.control.kind is ControlKind.SNAPSHOT_END:
            ended[group.control.table.source] += 1
    return begun, ended, most


def is_waiting(follower):
    groups = follower.tape.groups
    return not groups or groups[-1].commit.continues or groups[-1].commit.has_unread


@pytest.fixture
def many(server, database):
    """The tables of the load, and many more."""
    create(server, database)
    return fill(server, database, TABLES)


def test_tables_begin_as_they_are_read(server, database, many, follow):
    follower = follow(database, server, snapshot_tables_max=AT_A_TIME)
    copy = follower.check(server, database)
    begun, ended, most = readings(follower.tape.groups)
    assert begun == ended == dict.fromkeys((*many, *(f"{database}.{name}" for name in ("mark", "a", "b"))), 1)
    assert most <= AT_A_TIME
    assert sum(group.commit.has_unread for group in follower.tape.groups) > TABLES
    assert len(copy.tables) == TABLES + 3


def test_a_kill_loses_no_table_that_waits(server, database, many, follow, seed):
    """Killed again and again, and the log cut back each time, no table is forgotten and none is read from its begin."""
    dice = random.Random(seed)
    follower = follow(database, server, snapshot_tables_max=AT_A_TIME)
    with Load(server, database, seed) as load:
        kills = 0
        follower.until(lambda: len(follower.tape.groups) > 5)
        while is_waiting(follower) and kills < KILLS_MAX:
            for _ in range(dice.randint(1, 25)):
                follower.step()
            follower.kill()
            for _ in range(dice.randint(0, 4) if len(follower.tape.groups) > 10 else 0):
                follower.tape.groups.pop()
            kills += 1
        follower.until(lambda: not is_waiting(follower), READ_S_MAX)
        load.wait_for(3, follower)
    follower.check(server, database)
    begun, ended, most = readings(follower.tape.groups)
    assert set(begun.values()) == set(ended.values()) == {1}
    assert begun.keys() >= set(many)
    assert most <= AT_A_TIME
    assert kills > 2


def test_tables_that_change_while_they_wait_come_out_right(server, database, many, follow):
    follower = follow(database, server, snapshot_tables_max=AT_A_TIME)
    follower.until(lambda: len(follower.tape.groups) > 5)
    assert is_waiting(follower)
    first, second, third, fourth, fifth = many[-5:]
    server.run(
        f"DROP TABLE {first}",
        f"RENAME TABLE {second} TO {database}.renamed",
        f"ALTER TABLE {third} MODIFY v VARCHAR(50) CHARACTER SET latin1, ADD n INT DEFAULT 7",
        f"TRUNCATE TABLE {fourth}",
        f"DROP TABLE {fifth}",
        f"CREATE TABLE {fifth} (id BIGINT PRIMARY KEY, w INT)",
        f"INSERT INTO {fifth} VALUES (1, 2)",
    )
    follower.check(server, database)
    _, ended, _ = readings(follower.tape.groups)
    assert ended.keys() >= set(many) - {first, second, fifth}
    last = follower.tape.groups[-1].commit
    assert (last.snapshots, last.has_unread) == ({}, False)


@pytest.mark.parametrize("kind", ["mariadb-10.11"])
def test_where_the_queue_is_lost_every_table_is_read(plain_server, kind, follow, tmp_path):
    server, database = plain_server(kind), "db_lost_queue"
    server.run(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    create(server, database)
    names = fill(server, database, 12)
    follower = follow(database, server, snapshot_tables_max=AT_A_TIME)
    follower.until(lambda: len(follower.tape.groups) > 5)
    assert is_waiting(follower)
    follower.kill()
    (path,) = tmp_path.glob("*/unread.json")
    path.unlink()
    follower.check(server, database)
    _, ended, _ = readings(follower.tape.groups)
    assert ended.keys() >= set(names)
    server.run(f"DROP DATABASE {database}")


def test_a_request_for_many_tables_waits_its_turn(server, database, many, follow):
    follower = follow(database, server, snapshot_tables_max=AT_A_TIME, snapshot="never")
    follower.until(lambda: bool(follower.tape.groups))  # its log begins with what is there now
    follower.catch_up(server, database)
    follower.source.request_snapshot(many[:20])
    follower.until(lambda: follower.tape.groups[-1].commit.has_unread and not follower.tape.groups[-1].commit.continues)
    follower.start()  # another source
    follower.catch_up(server, database)
    held = follower.copy().tables
    assert {name: len(held[name]) for name in many[:20]} == dict.fromkeys(many[:20], 7)
    begun, ended, most = readings(follower.tape.groups)
    assert begun == ended == dict.fromkeys(many[:20], 1)
    assert most <= AT_A_TIME


def test_what_waits_its_turn_can_be_cancelled(server, database, many, follow):
    follower = follow(database, server, snapshot_tables_max=AT_A_TIME, snapshot="never")
    follower.until(lambda: bool(follower.tape.groups))
    follower.catch_up(server, database)
    follower.source.request_snapshot(many[:20])
    follower.until(lambda: follower.tape.groups[-1].commit.has_unread and not follower.tape.groups[-1].commit.continues)
    follower.source.cancel_snapshot(many[:19])
    follower.until(lambda: not follower.tape.groups[-1].commit.has_unread)
    follower.start()  # another source
    follower.catch_up(server, database)
    assert len(follower.copy().tables[many[19]]) == 7
    begun, ended, _ = readings(follower.tape.groups)
    assert begun == ended
    assert 0 < len(begun) < 20


def long_gtids(server, size_bytes):
    """Have the server's own set of GTIDs be so long."""
    if server.flavor == "mysql":
        count = size_bytes // 39 + 1
        parts = ",".join(f"{number:08x}-71ca-11e1-9e33-c80aa9429562:1" for number in range(1, count + 1))
        server.reset_logs()
        server.run(f"SET GLOBAL gtid_purged = '{parts}'")
    else:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS domains")
            cursor.execute("CREATE TABLE domains.t (n BIGINT)")
            for domain in range(4_000_000_000, 4_000_000_000 + size_bytes // 14 + 1):
                cursor.execute(f"SET gtid_domain_id = {domain}")
                cursor.execute("INSERT INTO domains.t VALUES (1)")
    assert len(server.gtids()) >= size_bytes


def check_long_gtids(server, size_bytes, follow):
    long_gtids(server, size_bytes)
    server.run("CREATE DATABASE shop")
    create(server, "shop")
    follower = follow("shop", server)
    with Load(server, "shop", 1) as load:
        load.wait_for(10, follower)
        follower.kill()
        load.wait_for(10, follower)
    follower.check(server, "shop")
    assert max(len(group.commit.position["gtids"]) for group in follower.tape.groups) >= size_bytes


@pytest.mark.parametrize("kind", ["mysql-8.0", "mariadb-10.11"])
def test_a_set_of_gtids_beyond_a_header_is_followed(kind, new_server, follow):
    check_long_gtids(new_server(kind), 6 << 10, follow)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", ["mysql-8.0", "mariadb-10.11"])
def test_a_set_of_gtids_of_100_kib_is_followed(kind, new_server, follow):
    check_long_gtids(new_server(kind), 100 << 10, follow)


def check_relay(server, database, names, folder, seed, *, kills, **options):
    """A relay of many tables, killed again and again; a consumer goes on by its checkpoint each time."""
    dice = random.Random(seed)
    source = options_of(database, server, **options)
    seen, position = Counter(), SourceCheckpoint()
    with RelayProcess(folder, {"shop": source}) as relay, Load(server, database, seed):
        for _ in range(kills):
            position = consume(relay.url, position, seen, dice.randint(1, len(names) // (kills + 1) + 1), 120)
            json.dumps(position.to_json())
            relay.kill()
            relay.start()
    with relay:
        _, groups = wait_until_identical(relay, server, database)
        consume(relay.url, position, seen, sum(readings(groups)[1].values()) - seen.total(), 120)
        assert copy_of(relay.url)[0].differences(server, database) == []
    begun, ended, most = readings(groups)
    assert set(begun.values()) == set(ended.values()) == {1}
    assert begun.keys() >= set(names)
    assert seen.keys() >= set(names)
    assert most <= options.get("snapshot_tables_max", 8)
    assert not groups[-1].commit.has_unread


def consume(url, position, seen, count, seconds_max):
    """Follow from `position` until so many more readings have ended; the checkpoint there."""
    client, end, goal = RelayClient(url), time.monotonic() + seconds_max, seen.total() + count
    while seen.total() < goal:
        assert time.monotonic() < end, "the readings do not end"
        with client.stream("shop", position, wait_ms=2_000) as stream:
            splitter = Splitter("shop", position, client.table_of)
            splitter.connected(stream.uuid, stream.log)
            for group in (group for groups in stream for group in groups):
                windows = splitter.split(group)
                for window in windows:
                    position = window.position
                    if window.control is not None and window.control.kind is ControlKind.SNAPSHOT_END:
                        seen[window.control.table.source] += 1
                if windows:
                    assert position.snapshots.keys() - {"*"} <= Commit.from_header(group.commit).snapshots.keys()
                    assert ("*" in position.snapshots) == group.commit.has_unread
                if seen.total() >= goal and not group.commit.continues:
                    break
    client.close()
    return position


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_relay_that_is_killed_reads_many_tables(server, database, many, tmp_path, seed):
    check_relay(server, database, many, tmp_path, seed, kills=2, snapshot_tables_max=AT_A_TIME)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", ["mariadb-10.11"])
def test_a_relay_that_is_killed_reads_2_000_tables(new_server, kind, tmp_path, seed):
    server = new_server(kind)
    server.run("CREATE DATABASE shop")
    create(server, "shop")
    names = fill(server, "shop", 2_000)
    check_relay(server, "shop", names, tmp_path, seed, kills=4)


def test_a_table_whose_end_was_cut_off_is_not_read_again(server, database, follow):
    """All its rows are in the log; only the control that says so is missing."""
    create(server, database)
    follower = follow(database, server)
    follower.check(server, database)
    groups = follower.tape.groups
    ends = [i for i, each in enumerate(groups) if each.control and each.control.kind is ControlKind.SNAPSHOT_END]
    last = {i: {rows.table.source for rows in groups[i - 1].rows} for i in ends}  # of which table the rows before are
    at = next(i for i in ends if groups[i].control.table.source in last[i])
    table = groups[at].control.table.source
    follower.kill()
    del groups[at:]
    follower.check(server, database)
    begun, ended, _ = readings(follower.tape.groups)
    assert begun[table] == ended[table] == 1
    chunks = [rows for group in follower.tape.groups if group.snapshot for rows in group.rows]
    assert sum(len(rows.batch) for rows in chunks if rows.table.source == table) == len(follower.copy().tables[table])


def test_a_table_that_is_dropped_while_it_is_read_is_not_open_any_more(server, database, follow):
    create(server, database)
    follower = follow(database, server, chunk_rows_max=1)
    table = f"{database}.a"
    follower.until(lambda: any(table in group.commit.snapshots for group in follower.tape.groups))
    server.run(f"DROP TABLE {table}")
    follower.check(server, database)
    drops = [each for each in follower.tape.groups if each.control and each.control.kind is ControlKind.DROP]
    assert [table in group.commit.snapshots for group in drops] == [False]
