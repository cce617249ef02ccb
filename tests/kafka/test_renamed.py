"""Queries that are called otherwise, as when an input is renamed: what they wrote by their old names counts."""

from functools import partial

import pytest

from databus.core import Checkpoint, ServiceUnavailable
from databus.pipeline._handle import Bringing, OutputHandle
from databus.tasks import Bucket
from databus.tasks.kafka import positions_of
from databus.testing._change_log import ORDERS
from databus.testing._staged_writes import write_buckets
from tests.kafka.dead_letters import EVENTS
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import log_of, order

OLD, NEW = "outputs/topics/shop@shop", "outputs/topics/store@shop"


class Process:
    """One that writes the output by queries of these names."""

    def __init__(self, server, folder, prefix, *names, of="shop/*", **options):
        self.output = output_of(server, folder, prefix, **{"buckets": 2, **options})
        self.handle = OutputHandle("topics", self.output, folder / ".databus")
        self.handle.bringing = {name: Bringing(of) for name in names}
        for name in names:
            self.handle.open(name)

    def write(self, name, log, end):
        """Write from where the ledger says."""
        batch = self.write_only(name, log, end)
        self.handle.advance(name, Checkpoint({batch.physical: batch.end}))

    def write_only(self, name, log, end):
        """Write, and die before the ledger says so."""
        stream = self.handle.stream(name)
        at = (0, 0) if stream is None else stream.checkpoint.sources[log.physical].pair
        begin = next(n for n in range(len(log.entries) + 1) if log.position(n).pair >= at)
        batch = log.batch(begin, end)
        self.handle.write_direct(name, batch, partial(write_buckets, self.output, batch))
        return batch


def ids_in(server, prefix):
    return sorted(row["id"] for part in rows_in(server, f"{prefix}.orders") for row in part)


def test_a_query_that_is_renamed_after_a_kill_repeats_nothing(kafka, tmp_path):
    """However its batches are cut then."""
    prefix, log = new_prefix(), log_of(*range(1, 10))
    process = Process(kafka, tmp_path, prefix, OLD)
    process.write(OLD, log, 2)
    process.write_only(OLD, log, 6)
    process = Process(kafka, tmp_path, prefix, NEW)
    for end in (4, 5, 9):
        process.write(NEW, log, end)
    assert ids_in(kafka, prefix) == [*range(1, 10)]


def test_a_query_that_is_called_as_it_was_long_ago_goes_on_where_it_stands_now(kafka, tmp_path):
    """What it wrote by that name is older than what it wrote by another."""
    prefix, log = new_prefix(), log_of(*range(1, 9))
    for name, end, written in ((OLD, 2, 4), (NEW, 5, 6), (OLD, 8, 8)):
        process = Process(kafka, tmp_path, prefix, name)
        process.write(name, log, end)
        process.write_only(name, log, written)
    assert ids_in(kafka, prefix) == [*range(1, 9)]


def test_who_was_given_up_for_dead_before_the_query_was_renamed_is_shut_out(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1, 2, 3)
    process = Process(kafka, tmp_path, prefix, OLD)
    process.write(OLD, log, 1)
    bucket = Bucket("shop", "topics", OLD, 0, 2, of="shop/*")
    with (
        pytest.raises(ServiceUnavailable, match="Another attempt"),
        process.output.direct_writer().open(bucket) as late,
    ):
        late.write(log.batch(1, 2))
        Process(kafka, tmp_path, prefix, NEW).write(NEW, log, 3)
        late.write(log.batch(2, 3))


def test_queries_that_go_on_from_one_repeat_nothing(kafka, tmp_path):
    """Each has to know how far that one came, whichever of them begins first."""
    prefix, log = new_prefix(), log_of(1, 2, 3)
    names = [f"{NEW}-{number}" for number in range(2)]
    process = Process(kafka, tmp_path, prefix, OLD)
    process.write(OLD, log, 1)
    process.write_only(OLD, log, 2)
    for name in names:
        Process(kafka, tmp_path, prefix, *names).write(name, log, 2)
    assert ids_in(kafka, prefix) == [1, 2]
    positions = positions_of(process.output._cluster, f"{prefix}.control").read()
    assert {bucket.stream for bucket in positions} == {*names}


def test_a_query_that_goes_on_from_several_loses_nothing(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1)
    for number in (1, 2):
        log.begin().insert(EVENTS, {"id": number, "note": "x"})
    log.begin().insert(ORDERS, order(2))
    names = {f"{OLD}-{table}": f"shop/main.{table}" for table in ("orders", "events")}
    for (name, of), end in zip(names.items(), (1, 3), strict=True):
        process = Process(kafka, tmp_path, prefix, name, of=of)
        process.write(name, log, end)
    process = Process(kafka, tmp_path, prefix, NEW)
    process.handle.inherit(NEW, [*names.values()])
    process.write(NEW, log, 4)
    assert {1, 2} == {*ids_in(kafka, prefix)}


def test_a_query_of_another_table_does_not_begin_where_one_of_its_name_ended(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1, 2)
    Process(kafka, tmp_path, prefix, OLD, of="main.users").write(OLD, log, 2)
    assert ids_in(kafka, prefix) == [1, 2]
    Process(kafka, tmp_path, prefix, OLD, of="main.orders").write(OLD, log, 2)
    assert ids_in(kafka, prefix) == [1, 1, 2, 2]


def test_what_a_removed_query_left_broken_off_keeps_nobody_from_another_number_of_buckets(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1, 2, 3, 4)
    process = Process(kafka, tmp_path, prefix, OLD, NEW, of="main.orders")
    process.write(NEW, log, 1)
    process.write(OLD, log, 1)
    with process.output.direct_writer().open(Bucket("shop", "topics", OLD, 0, 2)) as first:
        first.write(log.batch(1, 2))
    Process(kafka, tmp_path, prefix, NEW, of="main.orders", buckets=3).write(NEW, log, 4)


def test_a_table_that_gets_a_query_of_its_own_repeats_nothing(kafka, tmp_path):
    """As it does where a filter is added that gives typed rows."""
    prefix, log = new_prefix(), log_of(1, 2, 3)
    process = Process(kafka, tmp_path, prefix, OLD)
    process.write(OLD, log, 1)
    process.write_only(OLD, log, 2)
    process = Process(kafka, tmp_path, prefix, NEW, of="shop/main.orders")
    process.handle.inherit(NEW, ["shop/main.orders"])
    process.write(NEW, log, 3)
    assert ids_in(kafka, prefix) == [1, 2, 3]
