"""Mirrors whose files the task rewrites that reads the rows: nothing shows before a commit, which is of one version."""

from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from databus.core import ControlKind, CorruptData
from databus.flow import Here, Restage, Stage, StagedFeed, StagedRows, joined
from databus.sinks.delta import _at_once as at_once
from databus.testing._change_log import ORDERS, STOCK, ChangeLog
from databus.testing._output_harness import assert_holds
from tests.outputs.harnesses import noted_of, order
from tests.outputs.test_delta_merge import SharedHarness
from tests.outputs.test_delta_mirror_files import left_in


def changes(transactions=6):
    """Each has a new row, one that changes and one that goes."""
    log = ChangeLog()
    log.begin()
    for number in range(20):
        log.insert(ORDERS, order(number))
    for number in range(1, transactions + 1):
        log.begin()
        log.insert(ORDERS, order(100 + number))
        log.update(ORDERS, order(10), order(10, f"in {number}"))
        log.delete(ORDERS, order(number))
    return log


def stage(output, batch, *, is_whole=True):
    """What a task hands back of a batch."""
    feed = StagedFeed(lambda _: True, lambda _, rows, __: [rows], output.part_writer(), lambda _: (0, 0), {})
    receipts = Stage(lambda _: [replace(batch, is_whole=is_whole)], [feed])(iter([pa.record_batch({"n": [0]})]))
    (staged,) = joined(pa.Table.from_batches([*receipts]), 0)
    return staged


def rewritten(staged):
    """Of each table of which a task has written rows, whether it has rewritten the table's files."""
    return {item.table.source: item.at_once is not None for item in staged.items if isinstance(item, StagedRows)}


class NoSecondRound(Here):
    def run(self, task, count):
        raise AssertionError(f"a second round was asked for, of {count} tasks: {task}")


no_second_round = NoSecondRound()


def cut(log, *cuts):
    """The log's batches, cut after so many transactions."""
    scns = [entry.pair[0] for entry in log.entries]
    return [*log.batches([sum(scn <= last for scn in scns) for last in cuts])]


def begun(harness, batch):
    """An output that has written a first batch."""
    output = harness.make()
    output.commit(stage(output, batch), Here())
    return output


def test_a_batch_that_one_task_reads_needs_no_second_round(mirror):
    log = changes()
    first, *others = cut(log, 1, 2, 3)
    output = begun(mirror, first)
    for batch in others:
        staged = stage(output, batch)
        assert rewritten(staged) == {ORDERS.source: True}
        output.commit(staged, no_second_round)
    assert_holds(mirror, log, [ORDERS], output.delivery)
    assert not any(name.endswith(".arrow") for name in left_in(mirror))


@pytest.mark.parametrize("committed", [0, 1], ids=["the first", "the second"])
def test_of_two_copies_of_a_task_either_may_be_heard(mirror, committed):
    log = changes()
    first, *others = cut(log, 1, 2, 3)
    output = begun(mirror, first)
    for batch in others:
        copies = [stage(output, batch) for _ in range(2)]
        output.commit(copies[committed], no_second_round)
    assert_holds(mirror, log, [ORDERS], output.delivery)


def test_nothing_shows_of_a_task_that_is_killed_half_way(mirror, monkeypatch):
    log = changes()
    first, batch = cut(log, 1)
    output = begun(mirror, first)
    write = at_once.write_marked_file

    def killed(*given, **more):
        write(*given, **more)
        raise KeyboardInterrupt

    before = left_in(mirror)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(at_once, "write_marked_file", killed)
        stage(output, batch)
    assert left_in(mirror) - before
    assert_holds(mirror, replace(log, entries=log.entries[:20]), [ORDERS], output.delivery)
    output.commit(stage(output, batch), no_second_round)
    assert_holds(mirror, log, [ORDERS], output.delivery)


@pytest.mark.parametrize("is_heard", [False, True], ids=["not heard", "heard"])
def test_a_task_that_ends_after_the_next_batch_changes_nothing(mirror, is_heard):
    """It has been given the files of a version that is past, which it finds: they stay for readers."""
    log = changes()
    first, second, third = cut(log, 1, 2)
    output = begun(mirror, first)
    writer = output.part_writer()
    for batch in (second, third):
        output.commit(stage(output, batch), no_second_round)
    output.part_writer = lambda: writer
    zombie = stage(output, second)
    assert rewritten(zombie) == {ORDERS.source: True}
    if is_heard:
        with pytest.raises(Restage):
            output.commit(zombie, no_second_round)
        output.discard(zombie)
    assert_holds(mirror, log, [ORDERS], output.delivery)


def test_a_batch_that_comes_again_is_written_once(mirror):
    """Its table has the rows, and the ledger does not say so."""
    log = changes()
    first, second, third = cut(log, 1, 2)
    output = begun(mirror, first)
    output.commit(stage(output, second), no_second_round)
    version = noted_of(output, f"shop/{ORDERS.source}").mark
    again = stage(output, second)
    assert rewritten(again) == {ORDERS.source: False}
    output.commit(again, no_second_round)
    assert noted_of(output, f"shop/{ORDERS.source}").mark == version
    output.commit(stage(output, third), no_second_round)
    assert_holds(mirror, log, [ORDERS], output.delivery)


def test_a_batch_of_which_a_part_is_there_is_written_again_without_it(mirror):
    log = changes()
    whole, *_ = log.batches([])
    first, second, _ = cut(log, 1, 3)
    output = begun(mirror, first)
    output.commit(stage(output, second), no_second_round)
    staged = stage(output, whole)
    assert rewritten(staged) == {ORDERS.source: False}
    with pytest.raises(Restage) as again:
        output.commit(staged, no_second_round)
    assert again.value.above == {f"shop/{ORDERS.source}": second.end.pair}
    output.discard(staged)
    assert_holds(mirror, replace(log, entries=log.entries[: 20 + 2 * 4]), [ORDERS], output.delivery)


def test_who_writes_while_a_task_does_is_found(mirror):
    log = changes()
    first, batch = cut(log, 1)
    output = begun(mirror, first)
    staged = stage(output, batch)
    table = DeltaTable(output.table_path("shop", ORDERS.source))
    table.delete("id = 5")
    with pytest.raises(CorruptData, match="DELETE"):
        output.commit(staged, no_second_round)
    output.discard(staged)
    assert not {file.name for item in staged.items for file in item.written} & left_in(mirror)
    output.close()
    output.commit(stage(output, batch), Here())


def test_controls_keep_their_place_between_rows(mirror):
    """What stands beside rows of a table in a batch is the driver's to order; other tables do not wait for it."""
    log = ChangeLog()
    log.begin().insert(ORDERS, order(1))
    log.insert(STOCK, {"Shelf no": "a", "price": None, 'the "count"': 1, "raw": None})
    log.begin().insert(ORDERS, order(2))
    log.control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(3))
    log.insert(STOCK, {"Shelf no": "b", "price": None, 'the "count"': 1, "raw": None})
    first, batch = cut(log, 1)
    output = begun(mirror, first)
    staged = stage(output, batch)
    assert rewritten(staged) == {ORDERS.source: False, STOCK.source: True}
    output.commit(staged, Here())
    assert_holds(mirror, log, [ORDERS, STOCK], output.delivery)


def test_a_part_of_a_batch_is_never_taken_for_all_of_it(mirror):
    log = changes()
    first, batch = cut(log, 1)
    output = begun(mirror, first)
    staged = stage(output, batch, is_whole=False)
    assert rewritten(staged) == {ORDERS.source: False}
    output.commit(staged, Here())
    assert_holds(mirror, log, [ORDERS], output.delivery)


def test_large_files_are_left_to_a_round_of_tasks(mirror, monkeypatch):
    monkeypatch.setattr(at_once, "READ_BYTES_MAX", 1)
    log = changes()
    first, batch = cut(log, 1)
    output = begun(mirror, first)
    staged = stage(output, batch)
    assert rewritten(staged) == {ORDERS.source: False}
    output.commit(staged, Here())
    assert_holds(mirror, log, [ORDERS], output.delivery)


def test_many_tables_are_left_to_a_round_of_tasks_where_they_come_to_large_files(mirror, monkeypatch):
    log = ChangeLog()
    for number in range(2):
        log.begin().insert(ORDERS, order(1, f"{number}"))
        log.insert(STOCK, {"Shelf no": "a", "price": None, 'the "count"': number, "raw": None})
    first, batch = cut(log, 1)
    output = begun(mirror, first)
    sizes = [table.files[0].size_bytes for table in output.part_writer().known.values()]
    monkeypatch.setattr(at_once, "READ_BYTES_MAX", sum(sizes) - 1)
    staged = stage(output, batch)
    assert sorted(rewritten(staged).values()) == [False, True]
    output.commit(staged, Here())
    assert_holds(mirror, log, [ORDERS, STOCK], output.delivery)


def test_sources_that_share_a_table_are_written_in_turn(tmp_path):
    harness = SharedHarness(tmp_path, "mirror")
    log = changes()
    first, batch = cut(log, 1)
    output = begun(harness, first)
    assert rewritten(stage(output, batch)) == {ORDERS.source: False}


def test_tasks_are_told_of_the_tables_that_changed_last(mirror, monkeypatch):
    """All that is told travels with each stage."""
    monkeypatch.setattr("databus.sinks.delta._at_once._TABLES_MAX", 1)
    log = ChangeLog()
    stock = {"price": None, 'the "count"': 1, "raw": None}
    for number in range(2):
        log.begin().insert(ORDERS, order(number))
        log.begin().insert(STOCK, {"Shelf no": f"{number}", **stock})
    one, two, both = cut(log, 1, 2)
    output = begun(mirror, one)
    output.commit(stage(output, two), Here())
    assert rewritten(stage(output, both)) == {ORDERS.source: False, STOCK.source: True}
