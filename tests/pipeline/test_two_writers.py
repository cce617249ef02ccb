"""Two writers of one target: the later takes it in the moment between the earlier one's check and its commit."""

import pytest
from deltalake import DeltaTable

from databus.core import Checkpoint, LockHeld
from databus.pipeline.engine._handle import OutputHandle
from databus.sinks import read_delta
from databus.testing._change_log import ORDERS, ChangeLog
from tests.feeds import bring
from tests.outputs.harnesses import DeltaHarness


def order(number, note="first"):
    return {"id": number, "note": note, "total": None}


@pytest.fixture
def log():
    made = ChangeLog()
    for number in range(3):
        made.begin().insert(ORDERS, order(number))
    made.begin().update(ORDERS, order(0), order(0, "changed"))
    made.begin().delete(ORDERS, order(1))
    return made


@pytest.fixture(params=["mirror", "history"])
def writers(request, tmp_path):
    def make():
        found = OutputHandle("copy", DeltaHarness(tmp_path, request.param).make(), tmp_path / "state")
        bring(found, "shop/*")
        found.open()
        return found

    return make(), make()


def overtaken(handle, monkeypatch, meanwhile):
    """Have something happen right after the handle's next look at the epoch."""
    ledger = handle._taken()
    check, left = ledger.check_epoch, [meanwhile]

    def checked():
        check()
        if left:
            left.pop()()

    monkeypatch.setattr(ledger, "check_epoch", checked)


def pairs(folder):
    table = read_delta(next((folder / "lake").glob("*/orders")), ["_commit_version", "_seq"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def versions(folder):
    return DeltaTable(next((folder / "lake").glob("*/orders"))).version()


@pytest.mark.parametrize("ahead", [2, 5], ids=["the same batch", "more than that"])
def test_who_is_overtaken_before_its_commit_commits_nothing(tmp_path, log, writers, monkeypatch, ahead):
    first, second = writers
    first.write(log.batch(0, 1))
    overtaken(first, monkeypatch, lambda: second.write(log.batch(0, ahead)))
    with pytest.raises(LockHeld, match="another process writes it"):
        first.write(log.batch(1, 2))
    version, found = versions(tmp_path), pairs(tmp_path)
    assert len(found) == len(set(found))
    with pytest.raises(LockHeld, match="has begun to write this output"):
        first.write(log.batch(1, 3))
    with pytest.raises(LockHeld, match="has begun to write this output"):
        first.advance(Checkpoint({"shop": log.position(2)}))
    assert (versions(tmp_path), pairs(tmp_path)) == (version, found)
    second.write(log.batch(0, 5))
    everything = DeltaHarness(tmp_path / "alone", second.output.config.mode).make()
    everything.write(log.batch(0, 5))
    assert pairs(tmp_path) == pairs(tmp_path / "alone")


def test_who_is_overtaken_before_it_looks_at_the_table_leaves_out_what_is_there(tmp_path, log, writers, monkeypatch):
    first, second = writers
    first.write(log.batch(0, 1))
    first.advance(Checkpoint({"shop": log.position(1)}))
    first.open()  # as a query that starts again: it knows the table no more
    overtaken(first, monkeypatch, lambda: second.write(log.batch(0, 5)))
    first.write(log.batch(1, 3))
    with pytest.raises(LockHeld, match="has begun to write this output"):
        first.advance(Checkpoint({"shop": log.position(3)}))
    everything = DeltaHarness(tmp_path / "alone", second.output.config.mode).make()
    everything.write(log.batch(0, 5))
    assert pairs(tmp_path) == pairs(tmp_path / "alone")


def test_who_takes_a_target_while_the_other_commits_goes_on_behind_that(tmp_path, log, writers, monkeypatch):
    first, second = writers
    first.write(log.batch(0, 1))
    second.write(log.batch(0, 1))  # knows the table, and has taken the target
    ledger = first._taken()
    monkeypatch.setattr(ledger, "check_epoch", lambda: None)  # looked before that, and commits now
    first.write(log.batch(1, 2))
    with pytest.raises(LockHeld, match="another process writes it"):
        second.write(log.batch(1, 3))
    second.open()
    second.write(log.batch(1, 5))
    everything = DeltaHarness(tmp_path / "alone", second.output.config.mode).make()
    everything.write(log.batch(0, 5))
    assert pairs(tmp_path) == pairs(tmp_path / "alone")
