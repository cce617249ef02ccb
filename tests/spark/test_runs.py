"""Runs are whole groups, byte for byte, wherever the network cuts the stream."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.core import CorruptData, StreamCut
from databus.schema import Column, TableSchema
from databus.spark._runs import FrameRun, RunCutter
from databus.wire import Commit, Rows
from tests.spark.kit import encoded, parsed
from tests.spark.strategies import batch_of

T = TableSchema("main.t", (Column("id", "int64"), Column("n", "string")), ("id",))


def _group(scn: int, rows: int, width: int = 1) -> bytes:
    images = [{"id": i, "n": "x" * width} for i in range(rows)]
    return encoded([Rows(T, batch_of(T, images, scn))] if rows else [], Commit(scn, max(rows, 1), f"t{scn}", {}, 0))


def _cut(raw: bytes, pieces: list[int], run_bytes: int) -> list[FrameRun]:
    cutter = RunCutter("relay", run_bytes)
    runs: list[FrameRun] = []
    at, turn = 0, 0
    while at < len(raw):
        space = cutter.space()
        count = min(len(space), len(raw) - at, pieces[turn % len(pieces)])
        space[:count] = raw[at : at + count]
        runs += cutter.received(count)
        at, turn = at + count, turn + 1
    rest = cutter.finish()
    return [*runs, rest] if rest else runs


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    st.integers(64, 6000),
)
def test_runs_are_the_stream_cut_only_between_groups(rows: list[int], pieces: list[int], run_bytes: int) -> None:
    groups = [_group(scn, count) for scn, count in enumerate(rows, 1)]
    runs = _cut(b"".join(groups), pieces, run_bytes)
    assert b"".join(bytes(run.frames) for run in runs) == b"".join(groups)
    for run in runs:
        inside = parsed(bytes(run.frames))
        assert inside[-1].commit == run.commit
        assert all(len(run.frames) - len(groups[each.commit.last_scn - 1]) < run_bytes for each in inside[-1:])


def test_a_group_larger_than_any_buffer_is_one_run() -> None:
    large = _group(1, 3000, 500)
    runs = _cut(large + _group(2, 1), [4096], 1024)
    assert [len(run.frames) for run in runs] == [len(large), len(_group(2, 1))]


def test_runs_keep_their_bytes_while_later_ones_are_received() -> None:
    groups = [_group(scn, 20) for scn in range(1, 50)]
    runs = _cut(b"".join(groups), [700], 2000)
    assert b"".join(bytes(run.frames) for run in runs) == b"".join(groups)


@pytest.mark.parametrize("kept", [1, 100, 128, 400])
def test_a_stream_that_ends_inside_a_group_is_cut_and_says_where(kept: int) -> None:
    whole = _group(1, 5)
    raw = whole + _group(2, 5)[:kept]
    with pytest.raises(StreamCut, match=f"relay, byte {len(whole)}"):
        _cut(raw, [333], 1 << 20)


def test_bytes_that_no_relay_wrote_are_corrupt_and_say_where() -> None:
    whole = _group(1, 5)
    with pytest.raises(CorruptData, match=f"relay, byte {len(whole)}"):
        _cut(whole + b"<html>" * 100, [333], 1 << 20)
