"""Where a consumer goes on, and what it is told when it cannot: 409, 410, or to wait."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from databus.core import (
    BUS_SEQ_MIN,
    UNREAD_TABLES,
    ControlKind,
    Identity,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
    make_scn,
)
from databus.log import LogConfig
from databus.log._index import SparseIndex
from databus.sources.mysql import MysqlSource
from databus.wire import Commit, Group, OpenSnapshot
from tests.log.make import (
    IDENTITY,
    ORDERS,
    SMALL,
    STOCK,
    control,
    group,
    open_log,
    pairs_of,
    read,
    rows,
    scns_of,
    us_of,
)

mysql_contains = MysqlSource.contains


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path) as log:
        yield log


def at(scn, seq=None, **more):
    return SourceCheckpoint(IDENTITY.uuid, scn, seq, **more)


def many(scns, **more):
    """One group that holds several transactions, as a busy source yields."""
    last = max(scns)
    return Group(
        Commit(last, 2, f"tx-{last}", {"cut": last}, us_of(last)),
        (rows(STOCK, [(scn, seq) for scn in scns for seq in (1, 2)], **more),),
    )


@pytest.mark.parametrize("scn", [1, 2, 37, 119, 120])
@pytest.mark.parametrize("txid", ["", "right"])
def test_after_any_position_the_rest_follows(log, scn, txid):
    for each in range(1, 121):
        log.append(group(each, count=2))
    cursor = log.locate(at(scn, txid=f"tx-{scn}" if txid else ""))
    assert scns_of(read(cursor)) == list(range(scn + 1, 121))
    inside = log.locate(at(scn, 1, log=log.uuid))
    assert scns_of(read(inside)) == list(range(scn, 121))  # the client drops the rows up to the pair


def test_zero_is_the_beginning(log):
    log.append(group(1))
    assert scns_of(read(log.locate(SourceCheckpoint()))) == [1]


@pytest.mark.parametrize("scn", [1, 2, 3, 4])
def test_another_transaction_at_its_scn_is_409_wherever_it_stands_in_its_group(log, scn):
    log.append(group(1))
    log.append(many([2, 3, 4]))
    log.append(group(5))
    assert pairs_of(read(log.locate(at(scn, txid=f"tx-{scn}"))))
    with pytest.raises(PositionForeign, match=f"tx-{scn} stands at SCN {scn} here, and not tx-other"):
        log.locate(at(scn, txid="tx-other"))


def test_a_transaction_that_the_log_holds_nothing_of_is_taken_between_its_neighbours(log):
    log.append(many([2, 6]))
    log.append(group(9))
    assert scns_of(read(log.locate(at(4, txid="of other tables")))) == [2, 6, 9]
    assert scns_of(read(log.locate(at(8, txid="of other tables")))) == [9]


@pytest.fixture
def by_gtid(tmp_path):
    """A log of a server with GTIDs, of which other tables' transactions left nothing but a larger set."""
    with open_log(tmp_path, identity=Identity("db-1", "gtid", "a server"), contains=mysql_contains) as log:
        yield log


def behind(scn, gtids, **more):
    """A transaction, and what the server had executed after it."""
    each = group(scn, **more)
    return replace(each, commit=replace(each.commit, position={"file": "", "offset": 0, "gtids": gtids}))


A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_a_transaction_of_other_tables_is_accepted_where_the_log_passed_it(by_gtid):
    by_gtid.append(behind(10, f"{A}:1-10"))
    by_gtid.append(behind(20, f"{A}:1-15,{B}:1-5"))
    for scn, txid in ((12, f"{A}:12"), (14, f"{B}:2"), (19, f"{B}:5")):
        assert scns_of(read(by_gtid.locate(at(scn, txid=txid)))) == [20]


@pytest.mark.parametrize(
    ("txid", "found"),
    [
        (f"{A}:10", "before SCN 10"),  # the same transaction has another SCN here
        (f"{A}:3", "before SCN 10"),
        (f"{A}:16", "not up to SCN 20"),  # a history that went another way after SCN 10
        (f"{B}:6", "not up to SCN 20"),
        ("5e11fa47-71ca-11e1-9e33-c80aa9429562:1", "not up to SCN 20"),
        (f"{A}:backup:12", "not up to SCN 20"),
    ],
)
def test_a_transaction_of_another_history_is_409_though_the_log_holds_nothing_of_its_scn(by_gtid, txid, found):
    by_gtid.append(behind(10, f"{A}:1-10"))
    by_gtid.append(behind(20, f"{A}:1-15,{B}:1-5"))
    with pytest.raises(PositionForeign, match=f"{txid} is to stand at SCN 15; .* committed {found}"):
        by_gtid.locate(at(15, txid=txid))


def test_a_part_of_a_transaction_does_not_tell_what_came_before_it(by_gtid):
    by_gtid.append(behind(10, f"{A}:1-10"))
    by_gtid.append(behind(20, f"{A}:1-10", continues=True))
    by_gtid.append(behind(20, f"{A}:1-20", first_seq=2))
    assert scns_of(read(by_gtid.locate(at(15, txid=f"{A}:15")))) == [20]


def test_what_a_segment_begins_behind_counts_too(by_gtid):
    scn = 10
    while by_gtid.head().segments == 1:
        by_gtid.append(behind(scn, f"{A}:1-{scn}"))
        scn += 10
    last = scn - 10  # the first of the second segment
    assert scns_of(read(by_gtid.locate(at(last - 5, txid=f"{A}:{last - 5}")))) == [last]
    with pytest.raises(PositionForeign, match="committed before"):
        by_gtid.locate(at(last - 5, txid=f"{A}:{last - 10}"))


def test_another_database_is_409(log):
    log.append(group(1))
    with pytest.raises(PositionForeign, match="db-2"):
        log.locate(SourceCheckpoint("db-2", 1))


def test_a_timeline_that_the_log_never_had_is_409(log):
    log.append(group(5))
    log.append(group(make_scn(2, 3)))
    log.append(group(make_scn(2, 4)))
    assert scns_of(read(log.locate(at(5)))) == [make_scn(2, 3), make_scn(2, 4)]
    assert scns_of(read(log.locate(at(make_scn(2, 3))))) == [make_scn(2, 4)]
    for scn in (make_scn(1, 4), make_scn(3, 1)):
        with pytest.raises(PositionForeign, match="timeline"):
            log.locate(at(scn))


def test_ahead_of_the_log_waits_until_the_log_is_there(log):
    log.append(group(1))
    for position in (at(2), at(7, txid="tx-7"), at(1, BUS_SEQ_MIN, log=log.uuid)):
        with pytest.raises(ServiceUnavailable, match="ahead of this log"):
            log.locate(position)
    for scn in range(2, 9):
        log.append(group(scn))
    assert scns_of(read(log.locate(at(7, txid="tx-7")))) == [8]
    with pytest.raises(PositionForeign):
        log.locate(at(7, txid="tx-of-another-history"))


def test_an_unfinished_transaction_is_ahead_too(log):
    log.append(group(1))
    log.append(group(2, continues=True))
    with pytest.raises(ServiceUnavailable):
        log.locate(at(2, 1, log=log.uuid))


def test_a_new_log_says_that_it_does_not_hold_what_came_before_it(log):
    with pytest.raises(ServiceUnavailable):
        log.locate(at(50, txid="tx-50"))
    log.append(group(60))
    log.append(group(61))
    with pytest.raises(PositionPurged, match="began with SCN 60"):
        log.locate(at(50, txid="tx-50"))
    assert scns_of(read(log.locate(at(60, txid="tx-60")))) == [61]


def test_what_retention_removed_is_410_also_in_mid_transaction(tmp_path):
    config = LogConfig(**{**SMALL.model_dump(), "retention_bytes_max": 40 << 10})
    with open_log(tmp_path, config) as log:
        for scn in range(1, 40):
            for part in range(7):
                log.append(group(scn, count=3, first_seq=1 + part * 3, continues=part < 6))
        log.sync()
        log.retain()
        oldest = log.head().oldest
        assert oldest.seq is not None, "the oldest segment was meant to begin inside a transaction"
        everything = pairs_of(read(log.earliest()))
        assert everything[0][1:3] == (oldest.scn, oldest.seq + 1)
        assert pairs_of(read(log.locate(oldest))) == everything
        for position in (
            at(oldest.scn - 1, txid=f"tx-{oldest.scn - 1}"),
            at(oldest.scn, oldest.seq - 1, log=log.uuid),
            at(1),
            at(0),
        ):
            with pytest.raises(PositionPurged, match="has left the log"):
                log.locate(position)
        with pytest.raises(PositionForeign):
            log.locate(at(oldest.scn, oldest.seq, log=log.uuid, txid="tx-other"))
        with pytest.raises(PositionPurged, match="the beginning"):
            log.beginning()
        # all logged rows of that SCN are done: what is left of it is passed over
        assert {scn for _, scn, _, _ in pairs_of(read(log.locate(at(oldest.scn))))} == set(range(oldest.scn + 1, 40))


def test_inside_a_transaction_of_another_log_starts_that_transaction_anew(log):
    log.append(group(1))
    log.append(many([2, 3]))
    for part in range(3):
        log.append(group(4, first_seq=1 + part, continues=part < 2))
    cursor = log.locate(at(4, 2, txid="tx-4", log="another"))
    assert cursor.position.pair < (4, 1)
    assert [row[1:3] for row in pairs_of(read(cursor))] == [(4, 1), (4, 2), (4, 3)]
    cursor = log.locate(at(3, 1, txid="tx-3", log="another"))
    assert (2, 2) <= cursor.position.pair < (3, 1)
    assert [row[1:3] for row in pairs_of(read(cursor))][:4] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    with pytest.raises(PositionForeign):
        log.locate(at(4, 2, txid="tx-other", log="another"))


def test_open_snapshots_of_another_log_are_410_and_named(log):
    log.append(group(1))
    with pytest.raises(PositionPurged, match=r"main\.a, main\.b"):
        log.locate(at(1, log="another", snapshots={"main.b": 1, "main.a": 2}))


def test_tables_that_waited_to_be_read_in_another_log_are_410(log):
    """Their snapshots never began for this consumer, and this log does not know which they were."""
    log.append(group(1))
    with pytest.raises(PositionPurged, match=r"main\.a were open, and snapshots of more tables .* in log another"):
        log.locate(at(1, log="another", snapshots={"main.a": 2, UNREAD_TABLES: 0}))


def test_open_snapshots_that_the_log_itself_does_not_have_are_410(log):
    """It was put back from a copy that was made before they began: the same uuid, and the same transactions."""
    held = {"main.orders": OpenSnapshot(7, begin=(1, BUS_SEQ_MIN))}
    begin = control(ControlKind.SNAPSHOT_BEGIN, ORDERS, 1, BUS_SEQ_MIN, generation=7)
    log.append(group(1, count=3))
    log.append(group(1, count=0, control=begin, snapshots=held))
    log.append(group(2, count=2, snapshots=held))
    waiting = group(3, snapshots=held)
    log.append(replace(waiting, commit=replace(waiting.commit, has_unread=True)))
    log.append(replace(waiting, commit=replace(waiting.commit, snapshots={}), rows=()))  # it ended without a control
    log.append(group(4))
    log.sync()
    opened = {"main.orders": 7}
    for position in (at(1, BUS_SEQ_MIN), at(2), at(2, 1), at(3)):
        log.locate(replace(position, log=log.uuid, snapshots=opened))
    log.locate(at(3, log=log.uuid, snapshots={**opened, UNREAD_TABLES: 0}))
    log.locate(at(3, log=log.uuid, snapshots={UNREAD_TABLES: 0}))
    for position, what in [
        (at(2, snapshots={"main.orders": 6}), r"main\.orders .* put back"),
        (at(2, snapshots={"main.stock": 7, **opened}), r"of main\.stock were"),
        (at(2, snapshots={**opened, UNREAD_TABLES: 0}), "more tables had been asked for"),
        (at(4, snapshots=opened), r"main\.orders"),
    ]:
        with pytest.raises(PositionPurged, match=what):
            log.locate(replace(position, log=log.uuid))


def test_a_chunk_after_a_done_transaction_still_follows(log):
    log.append(group(1, count=3))
    log.append(group(1, first_seq=BUS_SEQ_MIN, snapshot=True))
    log.append(group(2))
    log.sync()
    assert [row[1:3] for row in pairs_of(read(log.locate(at(1))))] == [(1, BUS_SEQ_MIN), (2, 1)]
    assert [row[1:3] for row in pairs_of(read(log.locate(at(1, BUS_SEQ_MIN, log=log.uuid))))] == [(2, 1)]


@pytest.mark.parametrize("count", [0, 1, 200])
def test_latest_is_what_comes_next(log, count):
    for scn in range(1, count + 1):
        log.append(group(scn))
    cursor = log.latest()
    assert cursor.read(1 << 20) == []
    log.append(group(count + 1))
    assert scns_of(read(cursor)) == [count + 1]


def test_latest_of_an_empty_log_follows_it_over_segments(log):
    cursor = log.latest()
    for part in range(100):
        log.append(group(1, count=5, first_seq=1 + part * 5, continues=part < 99))
    assert len(pairs_of(read(cursor))) == 500


def test_time_is_found_by_the_latest_commit_time_so_far(log):
    times = [10, 20, 15, 12, 30, 25, 40, 5, 50]
    for scn, seconds in enumerate(times, 1):
        log.append(group(scn, count=100, commit_us=us_of(0) + seconds))
    assert log.head().segments > 3
    for wanted, first in [(1, 1), (10, 1), (11, 2), (20, 2), (21, 5), (30, 5), (31, 7), (50, 9)]:
        assert scns_of(read(log.at_time(us_of(0) + wanted)))[0] == first, wanted
    assert read(log.at_time(us_of(0) + 51)) == []


def test_a_time_that_retention_has_removed_is_410(tmp_path):
    config = LogConfig(**{**SMALL.model_dump(), "retention_bytes_max": 20 << 10})
    with open_log(tmp_path, config) as log:
        for scn in range(1, 200):
            log.append(group(scn))
        log.sync()  # only what is durable is removed: after this the log's own thread finds nothing more to remove
        log.retain()
        oldest = log.head().oldest
        with pytest.raises(PositionPurged):
            log.at_time(oldest.ts_us)
        assert scns_of(read(log.at_time(oldest.ts_us + 1)))[0] == oldest.scn + 1


def test_a_place_found_by_time_knows_its_transaction(log):
    for scn in range(1, 100):
        log.append(group(scn))
    position = log.at_time(us_of(60)).position
    assert (position.scn, position.txid) == (59, "tx-59")
    assert scns_of(read(log.locate(position)))[0] == 60


def test_many_who_come_back_after_a_restart_wait_for_one_walk(tmp_path, monkeypatch):
    """What the open segment holds from before is indexed once, not by each consumer for itself."""
    with open_log(tmp_path, LogConfig(index_bytes_every=512, free_bytes_min=0)) as log:
        for scn in range(1, 200):
            log.append(group(scn))
    builds = []
    all_are_here = threading.Barrier(9)
    build = SparseIndex.build

    def slowly(*args):
        builds.append(args)
        with suppress(threading.BrokenBarrierError):
            all_are_here.wait(0.3)  # the others come here too, where they can
        return build(*args)

    monkeypatch.setattr(SparseIndex, "build", slowly)
    with open_log(tmp_path, LogConfig(index_bytes_every=512, free_bytes_min=0)) as log:
        with ThreadPoolExecutor(8) as threads:
            cursors = list(threads.map(lambda scn: log.locate(SourceCheckpoint(scn=scn)), range(100, 108)))
        assert [scns_of(read(cursor))[0] for cursor in cursors] == list(range(101, 109))
    assert len(builds) == 1
