"""Appending and reading: order, the published end, parts, snapshots, controls, and what is told to whom."""

import contextlib
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from databus.core import BUS_SEQ_MIN, ConfigError, ControlKind, PositionPurged, SourceChanged
from databus.log import LogConfig
from databus.wire import Commit, Group, OpenSnapshot, encode_group
from tests.log.make import (
    IDENTITY,
    ORDERS,
    ORDERS_2,
    SMALL,
    STOCK,
    bytes_of,
    control,
    group,
    open_log,
    pairs_of,
    parse,
    read,
    rows,
    scns_of,
    us_of,
)

SLOW_FSYNC = LogConfig(free_bytes_min=0, fsync_interval_ms=60_000)


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path) as log:
        yield log


def test_what_is_appended_is_read_byte_for_byte_in_order(log):
    groups = [group(scn, count=scn % 4 + 1, tables=(ORDERS, STOCK)) for scn in range(1, 60)]
    written = b""
    for each in groups:
        encoded = encode_group(each, log.schemas, 7)
        written += b"".join(bytes(buffer) for buffer in encoded.buffers)
        log.append_encoded(encoded)
    assert log.head().segments > 3
    cursor = log.beginning()
    got = b""
    while spans := cursor.read(3000):
        got += bytes_of(spans)
    assert got == written
    assert cursor.position.scn == 59
    assert cursor.is_at_end


def test_a_read_gives_at_least_one_group_and_no_more_than_it_must(log):
    for scn in range(1, 6):
        log.append(group(scn))
    cursor = log.beginning()
    assert scns_of(parse(bytes_of(cursor.read(1)))) == [1]
    assert scns_of(parse(bytes_of(cursor.read(1 << 20, to=(3, 5))))) == [2, 3]
    assert cursor.read(1 << 20, to=(3, 5)) == []
    assert cursor.has_reached((3, 5))
    assert scns_of(read(cursor)) == [4, 5]


def test_parts_of_a_transaction_are_invisible_until_its_last_one(log):
    log.append(group(1))
    cursor = log.latest()
    told = []
    log.subscribe(lambda: told.append(log.head().published.scn))
    for part in range(200):  # far more than a segment holds
        log.append(group(2, count=5, first_seq=1 + part * 5, continues=part < 199))
        if part < 199:
            assert cursor.read(1 << 20) == []
            assert log.beginning().measure().rows == 1
    assert told == [2]
    assert log.head().segments > 5
    assert [seq for _, _, seq, _ in pairs_of(read(cursor))] == list(range(1, 1001))


def test_a_position_inside_a_transaction_goes_on_with_its_next_part(log):
    for part in range(6):
        log.append(group(1, count=5, first_seq=1 + part * 5, continues=part < 5))
    cursor = log.beginning()
    cursor.read(1)
    position = cursor.position
    assert (position.scn, position.seq, position.log) == (1, 5, log.uuid)
    assert pairs_of(read(log.locate(position)))[0][1:3] == (1, 6)


def test_cutting_back_drops_an_unfinished_transaction_over_segment_boundaries(log, tmp_path):
    log.append(group(1))
    for part in range(120):
        log.append(group(2, count=5, first_seq=1 + part * 5, continues=True, note="dropped"))
    assert log.head().segments > 3
    log.cut_back()
    assert (log.head().segments, log.head().is_inside_transaction) == (1, False)
    assert log.resume().scn == 1
    assert [path.name for path in tmp_path.glob("*.seg")] == ["000000000001.seg"]
    log.append(group(2, count=2, note="kept"))
    assert [note for _, _, _, note in pairs_of(read(log.beginning()))] == ["x-1-1", "kept-2-1", "kept-2-2"]


def test_cutting_back_keeps_what_waits_for_its_fsync(tmp_path):
    with open_log(tmp_path, SLOW_FSYNC) as log:
        log.append(group(1))
        log.append(group(2, continues=True))
        log.cut_back()
        assert scns_of(read(log.beginning())) == [1]
        assert log.durable() == {"cut": 1}


def test_cutting_back_makes_a_snapshot_durable_that_waited_for_it(tmp_path):
    with open_log(tmp_path, SLOW_FSYNC) as log:
        log.append(group(1))
        with log._sync_lock:
            log.append(group(1, first_seq=BUS_SEQ_MIN, snapshot=True))
            log.append(group(2, first_seq=1, continues=True, snapshot=True))
            assert scns_of(read(log.beginning())) == [1]
            assert log.head().published.seq is None
        log.cut_back()
        assert log.head().published.seq == BUS_SEQ_MIN
        assert log.durable() == {"cut": 1}


def test_everything_at_once_neither_stops_nor_differs(tmp_path):
    config = LogConfig(**{**SMALL.model_dump(), "retention_bytes_max": 40 << 10, "fsync_interval_ms": 1})
    ended = threading.Event()

    def again_and_again(call):
        count = 0
        while not ended.is_set():
            call()
            count += 1
        return count

    def read_whole(log):
        with contextlib.suppress(PositionPurged):
            scns = scns_of(read(log.earliest()))
            assert scns == list(range(scns[0], scns[0] + len(scns))) if scns else True
            log.at_time(us_of(scns[len(scns) // 2]) if scns else 0).measure(partitions=3)

    with open_log(tmp_path, config) as log, ThreadPoolExecutor(6) as pool:
        calls = (log.sync, log.retain, log.head, lambda: read_whole(log), lambda: read_whole(log))
        others = [pool.submit(again_and_again, call) for call in calls]
        try:
            for scn in range(1, 50):
                for part in range(scn % 4):
                    log.append(group(scn, count=3, first_seq=1 + 3 * part, continues=True))
                if scn % 4:
                    log.cut_back()
                log.append(group(scn, count=2))
        finally:
            ended.set()
        assert all(other.result(30) for other in others)
        assert log.resume().scn == 49


def test_a_snapshot_is_served_only_once_it_is_fsynced(tmp_path):
    published = threading.Event()
    with open_log(tmp_path, SLOW_FSYNC) as log:
        log.append(group(1))
        cursor = log.latest()
        log._sync_lock.acquire()  # as a slow disk would
        log.append(group(1, first_seq=BUS_SEQ_MIN, snapshot=True))
        log.append(group(2))
        assert cursor.read(1 << 20) == []
        assert log.durable() is None
        log.subscribe(published.set)
        log._sync_lock.release()
        assert published.wait(60)
        assert [pair[1:3] for pair in pairs_of(read(cursor))] == [(1, BUS_SEQ_MIN), (2, 1)]
        assert log.durable() == {"cut": 2}


def test_durable_is_what_was_fsynced_and_no_more(tmp_path):
    with open_log(tmp_path, SLOW_FSYNC) as log:
        assert log.durable() is None
        log.append(group(1))
        log.append(group(2, continues=True))
        log.sync()
        assert log.durable() == {"cut": 1}
        log.append(group(2, first_seq=2))
        assert log.durable() == {"cut": 1}
        log.sync()
        assert log.durable() == {"cut": 2}
        assert log.head().unsynced_bytes == 0


def test_the_fsync_behind_the_appends_needs_no_call(log):
    log.append(group(1))
    with log._changed:
        assert log._changed.wait_for(lambda: log.durable() == {"cut": 1}, 60)


def test_what_is_appended_during_an_fsync_is_not_durable_by_it(tmp_path, monkeypatch):
    fdatasync, began, may_end = os.fdatasync, threading.Event(), threading.Semaphore(0)

    def slow(fd):
        began.set()
        assert may_end.acquire(timeout=60)
        fdatasync(fd)

    with open_log(tmp_path, SLOW_FSYNC) as log:
        log.append(group(1))
        monkeypatch.setattr(os, "fdatasync", slow)  # a spy, to have an fsync that lasts
        syncing = threading.Thread(target=log.sync)
        syncing.start()
        assert began.wait(60)
        log.append(group(2, snapshot=True, first_seq=BUS_SEQ_MIN))
        may_end.release()
        syncing.join()
        assert log.durable() == {"cut": 1}
        assert scns_of(read(log.beginning())) == [1]
        may_end.release(10)
        log.sync()
        assert scns_of(read(log.beginning())) == [1, 2]


def test_a_segment_is_on_the_disk_before_the_next_one_begins(tmp_path, monkeypatch):
    """Recovery reads the newest segment only, so that power loss must find those before it whole."""
    fdatasync, synced = os.fdatasync, {}

    def spy(fd):
        fdatasync(fd)
        assert all(path in synced for path in sorted(tmp_path.glob("*.seg"))[:-1])
        synced[Path(f"/proc/self/fd/{fd}").resolve()] = os.fstat(fd).st_size

    config = LogConfig(**{**SLOW_FSYNC.model_dump(), "segment_bytes_max": 8 << 10})
    with open_log(tmp_path, config) as log:
        monkeypatch.setattr(os, "fdatasync", spy)
        for scn in range(1, 30):
            log.append(group(scn))
            for path in sorted(tmp_path.glob("*.seg"))[:-1]:
                assert synced[path] == path.stat().st_size
        assert log.head().segments > 2


@pytest.mark.parametrize(
    ("next_group", "is_taken"),
    [
        (group(5, first_seq=3), False),
        (group(5, first_seq=4), False),
        (group(4), False),
        (group(6), True),
        (group(5, first_seq=BUS_SEQ_MIN), True),
        (group(4, first_seq=BUS_SEQ_MIN), False),
        (Group(Commit(5, 3, "tx-5", {"cut": 5}, us_of(5))), True),
        (Group(Commit(5, 2, "tx-5", {"cut": 5}, us_of(5))), False),
        (Group(Commit(4, 9, "tx-4", {"cut": 4}, us_of(4))), False),
        (Group(Commit(9, 0, "tx-9", {"cut": 9}, us_of(9))), True),
    ],
)
def test_scns_only_grow(log, next_group, is_taken):
    log.append(group(5, count=3))
    if is_taken:
        log.append(next_group)
        assert log.resume().position == next_group.commit.position
    else:
        with pytest.raises(SourceChanged, match="SCNs only grow"):
            log.append(next_group)
        assert log.resume().seq == 3
        assert scns_of(read(log.beginning())) == [5]


def test_a_transaction_is_not_mixed_with_another(log):
    log.append(group(1, continues=True))
    with pytest.raises(ValueError, match="inside the transaction"):
        log.append(group(2))
    log.append(group(1, first_seq=2))
    mixed = Group(Commit(3, 1, "tx-3", {}, 0, continues=True), (rows(ORDERS, [(2, 1), (3, 1)]),))
    with pytest.raises(ValueError, match="in one group with"):
        log.append(mixed)


def test_a_bus_row_of_a_later_transaction_may_follow_any_scn(log):
    log.append(group(1, first_seq=BUS_SEQ_MIN + 5, snapshot=True))
    with pytest.raises(SourceChanged):
        log.append(group(1, first_seq=BUS_SEQ_MIN + 5, snapshot=True))
    log.append(group(1, first_seq=BUS_SEQ_MIN + 6, snapshot=True))


def test_who_reads_one_of_many_tables_does_not_read_the_others(tmp_path, monkeypatch):
    """Else each of a hundred readers, one a table, would have the relay read everything."""
    log = open_log(tmp_path, LogConfig(free_bytes_min=0, fsync_interval_ms=5))
    for scn in range(1, 21):
        log.append(group(scn, tables=(ORDERS, STOCK), note="x" * 200_000))
    sources = frozenset({log.schemas.ids()["main.stock"]})
    read_bytes, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *given: read_bytes.append(preadv(*given)) or read_bytes[-1])
    assert len(read(log.beginning(), sources=sources)) == 20
    assert sum(read_bytes) < 20 * 100_000
    log.close()


def test_only_wanted_sources_are_served_and_every_commit(log):
    log.append(group(1, tables=(ORDERS,)))
    log.append(group(2, tables=(STOCK,)))
    log.append(group(3, tables=(ORDERS, STOCK), count=2))
    stock = log.schemas.ids()["main.stock"]
    got = read(log.beginning(), sources=frozenset({stock}))
    assert [each.commit.last_scn for each in got] == [1, 2, 3]
    assert [(source, scn) for source, scn, _, _ in pairs_of(got)] == [
        ("main.stock", 2),
        ("main.stock", 3),
        ("main.stock", 3),
    ]
    measured = log.beginning().measure(sources=frozenset({stock}))
    assert measured.rows == 3
    assert measured.bytes == sum(span.length for span in log.beginning().read(1 << 20, sources=frozenset({stock})))


def test_resume_has_schemas_in_force_and_open_snapshots(log, tmp_path):
    opened = {"main.stock": OpenSnapshot(3, (7, "a"), (2, BUS_SEQ_MIN), order=("id int", "name text 45"))}
    log.append(group(1, tables=(ORDERS, STOCK)))
    log.append(group(2, count=0, control=control(ControlKind.SCHEMA, ORDERS_2, 2, 1)))
    log.append(group(3, tables=(ORDERS_2,), snapshots=opened))
    for again in (False, True):
        if again:
            log.close()
            log = open_log(tmp_path)
        resume = log.resume()
        assert resume.schemas == {"main.orders": ORDERS_2, "main.stock": STOCK}
        assert resume.snapshots == opened
        assert (resume.scn, resume.seq, resume.txid, resume.position) == (3, 1, "tx-3", {"cut": 3})
        assert log.uuid in resume.log_id
    log.append(group(4, count=0, control=control(ControlKind.DROP, STOCK, 4, 1)))
    assert set(log.resume().schemas) == {"main.orders"}
    log.close()
    with open_log(tmp_path) as log:
        assert set(log.resume().schemas) == {"main.orders"}
        assert set(log.schemas.current()) == {"main.orders", "main.stock"}


def test_a_table_first_seen_in_a_dropped_transaction_is_not_in_force(log, tmp_path):
    log.append(group(1))
    for part in range(60):
        log.append(group(2, count=3, first_seq=1 + 3 * part, tables=(STOCK,), continues=True))
    assert log.head().segments > 1
    killed = shutil.copytree(tmp_path, tmp_path / "killed")
    log.cut_back()
    assert set(log.resume().schemas) == {"main.orders"}
    log.append(group(2))
    assert set(log.resume().schemas) == {"main.orders"}
    with open_log(killed) as again:
        assert set(again.resume().schemas) == {"main.orders"}


def test_open_snapshots_of_a_position_are_those_whose_begin_was_passed(log):
    begin = (1, BUS_SEQ_MIN)
    opened = {"main.orders": OpenSnapshot(1, None, begin)}
    log.append(group(1))
    log.append(group(1, first_seq=BUS_SEQ_MIN, snapshot=True, snapshots=opened))
    log.append(group(2, snapshots=opened))
    log.sync()
    late = log.latest()
    cursor = log.beginning()
    read(cursor)
    assert cursor.position.snapshots == {"main.orders": 1}
    assert cursor.position.log == log.uuid
    other = log.beginning()
    read(other, sources=frozenset({99}))
    assert other.position.snapshots == {}
    assert late.position.snapshots == {}
    log.append(group(3, snapshots=opened))
    read(late)
    assert late.position.snapshots == {}
    again = log.locate(cursor.position)
    read(again)
    assert again.position.snapshots == {"main.orders": 1}
    log.append(group(4))
    read(again)
    assert again.position.snapshots == {}


def test_a_subscriber_that_left_is_not_called(log):
    told = []
    leave = log.subscribe(lambda: told.append(1))
    log.append(group(1))
    leave()
    log.append(group(2))
    assert told == [1]


def test_many_readers_follow_a_writer_and_see_the_same(tmp_path):
    last = 400

    def follow(log):
        woken = threading.Event()
        leave = log.subscribe(woken.set)
        cursor, seen = log.beginning(), b""
        while cursor.position.scn < last:
            woken.clear()
            while spans := cursor.read(5000):
                seen += bytes_of(spans)
            if cursor.position.scn < last:
                assert woken.wait(60)
        leave()
        return seen

    with open_log(tmp_path) as log, ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(follow, log) for _ in range(4)]
        for scn in range(1, last + 1):
            log.append(group(scn, continues=scn % 7 == 0))
            if scn % 7 == 0:
                log.append(group(scn, first_seq=2))
        seen = [reader.result(60) for reader in readers]
    assert len({*seen}) == 1
    assert scns_of(parse(seen[0])) == list(range(1, last + 1))


def test_the_log_of_another_database_is_refused(log, tmp_path):
    log.append(group(1))
    log.close()
    with pytest.raises(SourceChanged, match="db-2"):
        open_log(tmp_path, identity=type(IDENTITY)("db-2", "cut", "restored from a backup"))
    with pytest.raises(SourceChanged):
        open_log(tmp_path, identity=type(IDENTITY)("db-1", "gtid", "the same with another scheme"))
    with pytest.raises(ConfigError, match="log of 'shop'"):
        open_log(tmp_path, physical="shop2")
    open_log(tmp_path, identity=type(IDENTITY)("db-1", "cut", "moved")).close()


def test_a_closed_log_takes_nothing_more(log):
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.append(group(1))
