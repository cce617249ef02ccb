"""Positions: one rule, whoever applies it. A relay goes by commit frames, a client by the controls it is given."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from databus.core import BUS_SEQ_MIN, SEQ_DONE, UNREAD_TABLES, ControlKind, Pair, SourceCheckpoint
from databus.wire import (
    COMMIT,
    Commit,
    Header,
    OpenSnapshot,
    done_by,
    is_inside_transaction,
    is_of_other_log,
    pack_header,
    position_after,
    position_at,
    resumes_after,
    seq_at,
    snapshots_after,
    snapshots_at,
    unpack_header,
)
from databus.wire._header import CONTINUES, UNREAD

TABLES = ("main.a", "main.b", "main.c")
SEQS = st.integers(0, 5) | st.just(SEQ_DONE) | st.integers(BUS_SEQ_MIN, BUS_SEQ_MIN + 5)
PAIRS = st.tuples(st.integers(0, 5), SEQS)
SNAPSHOTS = st.dictionaries(st.sampled_from([*TABLES, UNREAD_TABLES]), st.integers(0, 3))


@dataclass
class Step:
    """One group: the control that it holds, if it holds one, and its commit."""

    commit: Commit
    control: tuple[str, ControlKind, int] | None = None

    @property
    def header(self) -> Header:
        commit = self.commit
        flags = (CONTINUES if commit.continues else 0) | (UNREAD if commit.has_unread else 0)
        raw = pack_header(
            COMMIT,
            flags=flags,
            first=commit.pair,
            last=commit.pair,
            commit_us=commit.commit_us,
            capture_us=0,
            position=commit.position_bytes(),
        )
        return unpack_header(memoryview(raw), "test")


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Groups in order: transactions, snapshots that begin and end or whose table is dropped, tables that wait."""
    steps: list[Step] = []
    open_: dict[str, OpenSnapshot] = {}
    scn, seq, generation = 1, 0, 0
    for _ in range(draw(st.integers(1, 25))):
        act, name = (
            draw(st.sampled_from(["logged", "logged", "begin", "end", "drop", "chunk"])),
            draw(st.sampled_from(TABLES)),
        )
        control = None
        if act in ("logged", "drop"):
            scn, seq = scn + 1, draw(st.integers(1, 3))
        else:
            seq = max(seq + 1, BUS_SEQ_MIN)
        if act == "begin":
            generation += 1
            open_ = {**open_, name: OpenSnapshot(generation, None, (scn, seq))}
            control = (name, ControlKind.SNAPSHOT_BEGIN, generation)
        elif act in ("end", "drop"):
            gone = open_.get(name)
            open_ = {each: value for each, value in open_.items() if each != name}
            if act == "end" and gone is not None:
                control = (name, ControlKind.SNAPSHOT_END, gone.generation)
        commit = Commit(scn, seq, f"tx{scn}", {"n": scn}, scn, open_, has_unread=draw(st.booleans()))
        steps.append(Step(commit, control))
    return steps


def by_controls(snapshots: Mapping[str, int], steps: list[Step], reads: frozenset[str]) -> Mapping[str, int]:
    for step in steps:
        if step.control is not None and step.control[0] in reads:
            name, kind, generation = step.control
            snapshots = snapshots_after(snapshots, name, kind, {"generation": generation})
        snapshots = snapshots_at(snapshots, step.header)
    return snapshots


@given(histories(), st.data(), st.sets(st.sampled_from(TABLES)).map(frozenset))
def test_what_is_open_is_the_same_by_the_commit_frames_and_by_the_controls(
    steps: list[Step], data: st.DataObject, reads: frozenset[str]
) -> None:
    """Law: a reader of any tables, from anywhere in a history to anywhere behind, in any number of pieces."""
    start = data.draw(st.integers(0, len(steps)))
    first = steps[start - 1].commit if start else Commit(1, 0, "tx1", {}, 0)
    position = position_at(first.pair, continues=False, uuid="u", txid=first.txid, ts_us=0, log="here", snapshots={})
    given_out: Mapping[str, int] = {}
    while start < len(steps):
        stop = data.draw(st.integers(start + 1, len(steps)))
        given_out = by_controls(given_out, steps[start:stop], reads)
        position = position_after(
            steps[stop - 1].commit, position, uuid="u", log="here", is_given=lambda name: name in reads
        )
        assert position.snapshots == given_out
        start = stop


@given(histories(), st.booleans())
def test_a_reader_has_done_what_the_commit_says(steps: list[Step], continues: bool) -> None:
    """Law: the pair of the position after a commit is what is done by it, in a whole transaction and inside one."""
    commit = steps[-1].commit
    commit = replace(commit, continues=continues and commit.seq < BUS_SEQ_MIN)
    position = position_after(commit, SourceCheckpoint(), uuid="u", log="here")
    assert position.pair == done_by(commit) == done_by(Step(commit).header)


@given(PAIRS, st.booleans(), SNAPSHOTS)
def test_a_position_means_a_log_just_where_another_cannot_continue(
    pair: Pair, continues: bool, snapshots: dict[str, int]
) -> None:
    """Law: inside a transaction, behind what the bus put there, with snapshots open; else any log serves."""
    position = position_at(pair, continues=continues, uuid="u", txid="", ts_us=0, log="here", snapshots=snapshots)
    is_exact = seq_at(pair, continues=continues) is not None
    assert (position.log is not None) == (is_exact or bool(snapshots))
    assert is_of_other_log(position, "there") == (position.log is not None)
    assert not is_of_other_log(position, "here")
    assert position.pair == (pair if is_exact else (pair[0], SEQ_DONE))
    assert SourceCheckpoint.from_json(position.to_json(), "test") == position


@given(st.lists(PAIRS, min_size=1, unique=True).map(sorted), PAIRS)
def test_another_log_repeats_a_transaction_or_nothing_logged_and_never_skips(rows: list[Pair], stands_at: Pair) -> None:
    """Law: what comes in the same log is what is above; in another one that, and all of a transaction that is not done.

    What the bus put behind a transaction is new there, since each log has its own.
    """
    same, other = ([row for row in rows if row > resumes_after(stands_at, is_other_log=each)] for each in (False, True))
    assert same == [row for row in rows if row > stands_at]
    assert set(same) <= set(other)
    again = {row for row in set(other) - set(same) if row[1] < BUS_SEQ_MIN}
    assert {scn for scn, _ in again} <= {stands_at[0]}
    assert not again or is_inside_transaction(stands_at)
