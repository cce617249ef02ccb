"""Measuring ranges: what fits, whole transactions, splits and controls."""

import asyncio

import pytest

from databus.core import ControlKind
from databus.log import _scan
from databus.log._cursor import Measuring
from databus.log._measure import MeasureLimits
from databus.log._scan import Allowance
from databus.relay import _range
from databus.relay._catalog import Selection
from databus.relay._command_table import table
from databus.relay._feed import PublishFeed
from databus.relay._range import RangeAsk, RangeScan
from tests.log.make import ORDERS, ORDERS_2, STOCK, bytes_of, control, group, open_log, read, scns_of

(RANGE,) = table().at(["range"])


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path) as log:
        yield log


def test_a_range_ends_before_the_group_that_does_not_fit(log):
    for scn in range(1, 20):
        log.append(group(scn, count=10))
    cursor = log.beginning()
    measure = cursor.measure(rows_max=45)
    assert (measure.rows, measure.groups, measure.end.scn) == (40, 4, 4)
    assert cursor.position == measure.end
    assert scns_of(read(cursor)) == list(range(5, 20))
    one = log.beginning().measure(rows_max=10).bytes
    assert log.beginning().measure(bytes_max=3 * one + 1).rows == 30


def test_a_range_has_at_least_one_group_however_large(log):
    log.append(group(1, count=500))
    log.append(group(2))
    assert log.beginning().measure(rows_max=1, bytes_max=1).rows == 500


def test_a_range_does_not_end_inside_a_transaction_unless_that_is_its_first(log):
    log.append(group(1, count=5))
    log.append(group(2, count=5))
    for part in range(6):
        log.append(group(3, count=10, first_seq=1 + 10 * part, continues=part < 5))
    log.append(group(4, count=5))
    cursor = log.beginning()
    ends = []
    while (measure := cursor.measure(rows_max=34, partitions=2)).groups:
        ends.append((measure.end.scn, measure.end.seq, measure.rows))
        assert all(split.pair < measure.end.pair for split in measure.splits)
    assert ends == [(2, None, 10), (3, 30, 30), (3, None, 30), (4, None, 5)]


def test_bytes_measured_are_bytes_served(log):
    for scn in range(1, 100):
        log.append(group(scn, count=scn % 5 + 1, tables=(ORDERS, STOCK)))
    for sources in (None, frozenset({1}), frozenset({2}), frozenset()):
        measure = log.beginning().measure(sources=sources)
        cursor, served = log.beginning(), b""
        while spans := cursor.read(4000, sources=sources):
            served += bytes_of(spans)
        assert measure.bytes == len(served)
        assert measure.end == cursor.position


def test_splits_are_contiguous_and_balanced(log):
    for scn in range(1, 201):
        log.append(group(scn, count=3))
    measure = log.beginning().measure(partitions=4)
    ends = [split.scn for split in measure.splits] + [measure.end.scn]
    assert len(ends) == 4
    sizes = [b - a for a, b in zip([0, *ends], ends, strict=False)]
    assert max(sizes) - min(sizes) <= 2


def test_nothing_to_measure_is_nothing(log):
    assert log.beginning().measure(partitions=3) == log.latest().measure()
    assert log.latest().measure().groups == 0


def test_controls_are_told_and_can_end_a_range(log):
    log.append(group(1, tables=(ORDERS,)))
    log.append(group(2, count=0, control=control(ControlKind.SCHEMA, ORDERS_2, 2, 1)))
    log.append(group(3, tables=(STOCK,)))
    log.append(group(4, count=0, control=control(ControlKind.TRUNCATE, STOCK, 4, 1)))
    log.append(group(5))
    ids = log.schemas.ids()
    whole = log.beginning().measure()
    assert [(mark.kind, mark.source_id, mark.pair) for mark in whole.controls] == [
        ("schema", ids["main.orders"], (2, 1)),
        ("truncate", ids["main.stock"], (4, 1)),
    ]
    assert whole.controls[0].fingerprint == ORDERS_2.fingerprint
    cursor = log.beginning()
    assert [cursor.measure(stop_at_controls=True).end.scn for _ in range(4)] == [1, 3, 5, 5]
    stock = frozenset({ids["main.stock"]})
    assert [mark.kind for mark in log.beginning().measure(sources=stock).controls] == ["truncate"]
    assert log.beginning().measure(sources=stock, stop_at_controls=True).end.scn == 3


def test_commits_published_while_measuring_are_no_reason_to_answer(tmp_path, monkeypatch):
    """A reader of a table at rest waits for the end of its time, however busy the others are."""
    result = Measuring.result

    def overtaken(measuring):  # a spy, to have a measurement that lasts
        found = result(measuring)
        log.append(group(log.resume().scn + 1))
        return found

    with open_log(tmp_path) as log:
        log.append(group(1, tables=(ORDERS, STOCK)))
        monkeypatch.setattr(Measuring, "result", overtaken)
        ask = RangeAsk.of(RANGE.check({"sources": "main.stock", "wait_ms": "1000"}))
        scan = RangeScan(log, log.latest(), ask, Selection("shop", ["main.stock"]))
        rounds = [scan.step() for _ in range(3)]
        assert [each.is_something for each in rounds] == [False] * 3
        assert rounds[2].measure.groups == 2
        log.append(group(log.resume().scn + 1, tables=(STOCK,)))
        assert scan.step().is_something


def test_a_step_of_a_measurement_passes_over_no_more_than_its_allowance(log):
    for scn in range(1, 101):
        log.append(group(scn, count=3, note="n" * 100))
    size = log.beginning().measure().bytes
    cursor = log.beginning()
    measuring = Measuring(cursor, MeasureLimits(), frozenset())
    places = []
    while not measuring.step(Allowance(size // 10, 60_000)):
        places.append(cursor._offset + (cursor._segment << 40))
    assert 9 <= len(places) <= 11
    assert places == sorted(set(places))
    assert measuring.result() == log.beginning().measure(sources=frozenset())


def test_a_measurement_in_steps_is_the_one_in_one_go(log):
    """Transactions in parts, controls, several segments: whatever the steps, the same range and the same place."""
    for scn in range(1, 60):
        if scn % 7 == 0:
            log.append(group(scn, count=0, control=control(ControlKind.TRUNCATE, STOCK, scn, 1)))
        elif scn % 5 == 0:
            for part in range(4):
                log.append(group(scn, count=8, first_seq=1 + 8 * part, continues=part < 3))
        else:
            log.append(group(scn, count=scn % 4 + 1, tables=(ORDERS, STOCK)))
    for limits in (MeasureLimits(), MeasureLimits(rows_max=90), MeasureLimits(stop_at_controls=True)):
        whole, stepped = log.beginning(), log.beginning()
        for _ in range(5):
            one = Measuring(whole, limits, None, None, 3)
            assert one.step(Allowance(1 << 40, 60_000))
            many = Measuring(stepped, limits, None, None, 3)
            while not many.step(Allowance(1, 60_000)):
                pass
            assert many.result() == one.result()
            assert (stepped._segment, stepped._offset) == (whole._segment, whole._offset)


def test_a_range_that_takes_too_long_is_answered_with_how_far_it_got(log, monkeypatch):
    """Somebody who asks for rows of a table that has none goes on from each answer, and reaches the end."""
    for scn in range(1, 201):
        log.append(group(scn, tables=(ORDERS,)))
    log.append(group(201, tables=(STOCK,)))
    monkeypatch.setattr(_scan, "SCAN_BYTES_MAX", 5_000)
    monkeypatch.setattr(_range, "RANGE_SCAN_MS_MAX", 0)
    ask = RangeAsk.of(RANGE.check({"sources": "main.stock", "rows_max": "10", "wait_ms": "60000"}))
    cursor = log.beginning()
    answers = []

    async def find():
        feed = PublishFeed(asyncio.get_running_loop())

        async def in_thread(step):
            return step()

        while not answers or not answers[-1].measure.rows:
            scan = RangeScan(log, cursor, ask, Selection("shop", ["main.stock"]))
            answers.append(await _range.find_range(scan, feed, ask.wait_ms, in_thread))

    asyncio.run(find())
    ends = [answer.measure.end.scn for answer in answers]
    assert len(ends) > 3
    assert ends == sorted(set(ends))
    assert ends[-1] == 201
    assert sum(answer.measure.rows for answer in answers) == 1
