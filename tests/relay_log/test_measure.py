"""Measuring ranges: what fits, whole transactions, splits and controls."""

import pytest

from databus.core import ControlKind
from databus.relay._catalog import Selection
from databus.relay._cursor import Cursor
from databus.relay._range import RangeAsk, measure_range
from tests.relay_log.make import ORDERS, ORDERS_2, STOCK, bytes_of, control, group, open_log, read, scns_of


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
    measure = Cursor.measure

    def overtaken(cursor, **more):  # a spy, to have a measurement that lasts
        found = measure(cursor, **more)
        log.append(group(log.resume().scn + 1))
        return found

    with open_log(tmp_path) as log:
        log.append(group(1, tables=(ORDERS, STOCK)))
        monkeypatch.setattr(Cursor, "measure", overtaken)
        ask = RangeAsk.parse({"sources": "main.stock", "wait_ms": "1000"}, 1000)
        cursor, selection = log.latest(), Selection("shop", ["main.stock"])
        rounds = [measure_range(log, cursor, ask, selection) for _ in range(3)]
        assert [each.is_something for each in rounds] == [False] * 3
        assert rounds[2].after(rounds[1]).measure.groups == 2
        log.append(group(log.resume().scn + 1, tables=(STOCK,)))
        assert measure_range(log, cursor, ask, selection).is_something
