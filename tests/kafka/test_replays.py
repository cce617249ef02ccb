"""Replays of dead letters beside a pipeline that goes on: nothing comes back that a control has overtaken."""

import pytest

from databus.core import ControlKind
from databus.flow import Bucket
from databus.flow._parking import Parking
from databus.sinks.kafka import _writer
from databus.testing._change_log import ORDERS
from databus.testing._staged_writes import write_batch
from tests.kafka.dead_letters import BAD, Target, log_of
from tests.outputs.harnesses import order


def overtaken():
    """A row that is refused, and a newer one of its key behind a truncation."""
    log = log_of(BAD)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(1, "new"))
    return log


@pytest.mark.parametrize("transactions", [True, False])
def test_a_replay_brings_nothing_back_that_is_forgotten_while_it_runs(kafka, tmp_path, monkeypatch, transactions):
    log = overtaken()
    target = Target(kafka, tmp_path, transactions=transactions)
    write_batch(target.output, log.batch(0, 1))
    target.mend()
    found = [target.output.letters.read(file) for file in target.output.letters.files()]

    def go_on(point):
        if point == "kafka.before_commit":
            monkeypatch.undo()
            write_batch(target.output, log.batch(1, 3))

    if transactions:
        monkeypatch.setattr(_writer, "crash_point", go_on)
    else:
        write_batch(target.output, log.batch(1, 3))
    for each in found:
        target.output.replay(each)
    assert {row["note"] for row in target.rows()} == {"new"}


def test_a_replay_brings_nothing_back_while_other_buckets_are_written(kafka, tmp_path):
    """The driver hears of the truncation when all of them are there; readers have heard of it by then."""
    log = overtaken()
    target = Target(kafka, tmp_path)
    write_batch(target.output, log.batch(0, 1))
    target.mend()
    with target.output.part_writer().open(Bucket("shop", "topics", "shop", 0, 1)) as first:
        first.write(log.batch(1, 3))
    target.replay()
    assert [row["note"] for row in target.rows()] == ["new"]


@pytest.mark.parametrize("transactions", [True, False])
def test_a_replay_writes_nothing_behind_a_truncation_that_is_being_written(kafka, tmp_path, monkeypatch, transactions):
    """The pipeline has sent the truncation, and not yet ended what it writes."""
    log = overtaken()
    target = Target(kafka, tmp_path, transactions=transactions)
    write_batch(target.output, log.batch(0, 1))
    target.mend()
    put = Parking.put

    def put_after_a_replay(parking):
        monkeypatch.undo()
        target.replay()
        put(parking)

    monkeypatch.setattr(Parking, "put", put_after_a_replay)
    write_batch(target.output, log.batch(1, 3))
    assert {row["note"] for row in target.rows()} == {"new"}


@pytest.mark.parametrize("transactions", [True, False])
def test_a_control_in_one_request_with_a_row_that_is_refused_stops_nothing(kafka, tmp_path, transactions):
    """The broker refuses all of the request."""
    log = log_of(BAD)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(2, BAD))
    target = Target(kafka, tmp_path, transactions=transactions, kafka={"linger.ms": 200})
    target.write(log)
    assert target.pairs_of_letters() == [(3, 1)]
