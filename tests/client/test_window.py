"""Windows against the history they were made from: whatever the groups and parts, the order is the original's."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from databus.client import Batcher, Splitter, windows_of
from databus.core import (
    BUS_SEQ_MIN,
    SEQ_DONE,
    UNREAD_TABLES,
    ChangeType,
    ControlKind,
    CorruptData,
    SourceCheckpoint,
)
from databus.schema import Column, TableSchema, frame_schema
from databus.wire import Commit, Control, FrameParser, Group, OpenSnapshot, Rows, encode_group
from tests.client.stub import Numbers

TABLES = [
    TableSchema(f"main.t{n}", (Column("id", "int64", nullable=False), Column("at", "timestamptz")), ("id",))
    for n in range(4)
]
BY_PRINT = {table.fingerprint: table for table in TABLES}
UPDATE = (ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)


def batch_of(table, rows, *, snapshot=False):
    """rows: (change type, scn, seq, id)."""
    kinds, scns, seqs, ids = (list(column) for column in zip(*rows, strict=True))
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([None if i % 7 == 3 else i * 1_000_001 for i in ids], pa.timestamp("us", "UTC")),
        pa.array([int(kind) for kind in kinds], pa.int8()),
        pa.array(scns, pa.int64()),
        pa.array(seqs, pa.int64()),
        pa.array([scn * 10 for scn in scns], pa.timestamp("us", "UTC")),
        pa.array([f"tx{scn}" for scn in scns]).dictionary_encode(),
        pa.array([snapshot] * len(ids)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=frame_schema(table))


def commit_of(scn, seq, *, continues=False):
    return Commit(scn, seq, f"tx{scn}", {"n": scn}, scn * 10, continues=continues)


def parsed(groups):
    numbers = Numbers()
    parser = FrameParser("test")
    out = []
    for group in groups:
        left = memoryview(b"".join(bytes(buffer) for buffer in encode_group(group, numbers, 1).buffers))
        while left:
            space = parser.space()
            count = min(len(space), len(left))
            space[:count] = left[:count]
            left = left[count:]
            out += parser.received(count)
    parser.finish()
    return out


def flat(window):
    """What a window holds, as the history is written: a control, then images in order."""
    out = []
    if window.control is not None:
        out.append(("control", window.control.source, *window.control.pair))
    for row in window.rows():
        if row.before is not None and row.after is not None:
            out.append((row.source, row.scn, row.seq - 1, UPDATE[0], row.before["id"]))
        image = row.after if row.after is not None else row.before
        out.append((row.source, row.scn, row.seq, row.change_type, image["id"]))
    return out


@st.composite
def histories(draw):
    """Items in order, and the groups that carry them. An item is an image or a control, under its window's key."""
    groups, items, ends = [], [], []
    pending: list[tuple[int, tuple]] = []
    seq, first_ns = 0, BUS_SEQ_MIN

    def flush(scn, seq, *, continues=False, control=None, snapshot=False):
        rows = tuple(
            Rows(
                TABLES[number], batch_of(TABLES[number], [row for n, row in pending if n == number], snapshot=snapshot)
            )
            for number in sorted({n for n, _ in pending})
        )
        groups.append(Group(commit_of(scn, seq, continues=continues), rows, control, snapshot=snapshot))
        pending.clear()

    key = 0
    for scn in range(1, draw(st.integers(1, 12)) + 1):
        seq = 0
        parts = draw(st.sampled_from([1, 1, 1, 2, 3]))
        if parts > 1 and pending:
            flush(scn - 1, last_seq)  # noqa: F821 - there was one before
        for part in range(parts):
            for _ in range(draw(st.integers(0 if parts == 1 else 1, 5))):
                number = draw(st.integers(0, 3))
                identity = draw(st.integers(0, 9))
                kinds = draw(st.sampled_from([(ChangeType.INSERT,), (ChangeType.DELETE,), UPDATE]))
                for kind in kinds:
                    seq += 1
                    pending.append((number, (kind, scn, seq, identity)))
                    items.append((key, (f"shop/{TABLES[number].source}", scn, seq, kind, identity)))
            if parts > 1:
                is_last = part == parts - 1
                flush(scn, seq, continues=not is_last)
                key += 0 if is_last else 1
        key += 1
        last_seq = seq
        if draw(st.booleans()) and pending:
            flush(scn, seq)
        if draw(st.integers(0, 5)) == 0:  # what the bus itself puts between two transactions
            if pending:
                flush(scn, seq)
            first_ns += 1_000
            table = TABLES[draw(st.integers(0, 3))]
            control = None
            if draw(st.booleans()):
                kind = draw(st.sampled_from([ControlKind.SNAPSHOT_BEGIN, ControlKind.SNAPSHOT_END]))
                body = {"kind": kind, "source": table.source, "generation": first_ns}
                control = Control(kind, table, scn, first_ns, body)
                items.append((key, ("control", f"shop/{table.source}", scn, first_ns)))
            for n in range(draw(st.integers(0 if control else 1, 4))):
                number = TABLES.index(table)
                pending.append((number, (ChangeType.INSERT, scn, first_ns + 1 + n, n)))
                items.append((key, (f"shop/{table.source}", scn, first_ns + 1 + n, ChangeType.INSERT, n)))
            flush(scn, first_ns + 9, control=control, snapshot=True)
            key += 1
    if pending:
        flush(scn, last_seq)
    ends = [group.commit for group in groups]
    return groups, items, ends


def splitter(start=None, until=None):
    made = Splitter("shop", start or SourceCheckpoint(uuid="u"), BY_PRINT.__getitem__, until)
    made.connected("u", "log")
    return made


@settings(max_examples=150, deadline=None)
@given(histories())
def test_any_interleaving_of_transactions_over_tables_in_groups_comes_back_in_its_order(history):
    groups, items, _ = history
    split = splitter()
    windows = [window for group in parsed(groups) for window in split.split(group)]
    assert [item for window in windows for item in flat(window)] == [item for _, item in items]
    full = [window for window in windows if not window.is_empty]
    assert [flat(window) for window in full] == [
        [item for k, item in items if k == key] for key in dict.fromkeys(k for k, _ in items)
    ], "a window is one transaction, one part of it, or one chunk"


@settings(max_examples=60, deadline=None)
@given(histories())
def test_after_the_position_of_any_window_exactly_the_windows_behind_it_come(history):
    groups, _, _ = history
    received = parsed(groups)
    split = splitter()
    windows = [window for group in received for window in split.split(group)]
    for number, window in enumerate(windows):
        again = splitter(window.position)
        rest = [item for group in received for each in again.split(group) for item in flat(each)]
        assert rest == [item for each in windows[number + 1 :] for item in flat(each)]


@settings(max_examples=60, deadline=None)
@given(histories(), st.integers(1, 40))
def test_batches_hold_the_same_rows_as_the_windows_in_them(history, rows_max):
    groups, items, _ = history
    split, batcher, batches = splitter(), Batcher(rows_max), []
    for group in parsed(groups):
        for window in split.split(group):
            batches += [batch for batch in [batcher.add(window)] if batch is not None]
    batches += [batch for batch in [batcher.take()] if batch is not None]
    by_rows = [item for batch in batches for item in flat_of_batch(batch)]
    assert by_rows == [item for _, item in items]
    for batch in batches:
        assert not any(window.has_control for window in batch.windows[1:]), "a control stands before the rows"
        assert sum(table.num_rows for table in batch.tables().values()) == len(batch)
        for source, table in batch.tables().items():
            pairs = list(zip(table["_commit_version"].to_pylist(), table["_seq"].to_pylist(), strict=True))
            assert pairs == [(i[1], i[2]) for i in flat_of_batch(batch) if i[0] == source]


def flat_of_batch(batch):
    return [item for window in batch.windows for item in flat(window)]


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_until_a_transaction_nothing_behind_it_comes_and_nothing_before_it_is_missing(history, data):
    groups, items, ends = history
    assume(ends)
    until = (data.draw(st.integers(1, ends[-1].scn)), SEQ_DONE)
    split = splitter(until=until)
    windows = [window for group in parsed(groups) for window in split.split(group)]
    found = [item for window in windows for item in flat(window)]
    assert found == [item for _, item in items if (item[2:4] if item[0] == "control" else item[1:3]) <= until]
    assert split.is_done
    assert all(window.position.pair <= until for window in windows)


def rows_group(rows, commit, table=TABLES[0]):
    return Group(commit, (Rows(table, batch_of(table, rows)),))


def test_the_last_window_of_a_group_stands_at_the_groups_end_though_its_rows_end_before():
    """What a subscriber of few tables sees: nothing of his in the last transactions, and still they are behind him."""
    group = rows_group([(ChangeType.INSERT, 3, 1, 1)], commit_of(9, 4))
    (window,) = windows_of(parsed([group])[0], physical="shop", table_of=BY_PRINT.__getitem__)
    assert (window.scn, window.txid, window.commit_us) == (3, "tx3", 30)
    assert (window.position.scn, window.position.txid, window.position.ts_us) == (9, "tx9", 90)


def test_a_group_without_rows_moves_the_position_and_shows_nothing():
    (window,) = splitter().split(parsed([Group(commit_of(5, 0))])[0])
    assert window.is_empty
    assert window.position == SourceCheckpoint("u", 5, None, "tx5", 50)


def test_a_window_inside_a_group_has_its_own_transaction_and_time():
    rows = [(ChangeType.INSERT, scn, 1, scn) for scn in (1, 2, 3)]
    windows = splitter().split(parsed([rows_group(rows, commit_of(3, 1))])[0])
    assert [(w.txid, w.commit_us, w.position.scn) for w in windows] == [("tx1", 10, 1), ("tx2", 20, 2), ("tx3", 30, 3)]


OPEN = {"main.t0": OpenSnapshot(7)}


def reading(kind, scn, seq):
    """The begin or end of the reading of the first table."""
    body = {"kind": kind, "source": "main.t0", "generation": 7}
    commit = replace(commit_of(scn, seq), snapshots=OPEN if kind is ControlKind.SNAPSHOT_BEGIN else {})
    return Group(commit, (), Control(kind, TABLES[0], scn, seq, body), snapshot=True)


@pytest.mark.parametrize("then", [{}, {"main.t0": OpenSnapshot(8)}, {"main.t1": OpenSnapshot(7)}])
def test_a_snapshot_that_ends_without_a_control_does_not_stay_open_for_ever(then):
    """Its table was dropped, or is not captured any more."""
    split = splitter(SourceCheckpoint("u", 1))
    last = Group(replace(commit_of(2, 0), snapshots=then))
    groups = parsed([reading(ControlKind.SNAPSHOT_BEGIN, 1, BUS_SEQ_MIN + 1), last])
    first, second = (window.position for group in groups for window in split.split(group))
    assert (first.snapshots, first.log) == ({"main.t0": 7}, "log")
    assert (second.snapshots, second.log) == ({}, None)


def test_a_checkpoint_says_that_tables_wait_to_be_read():
    """Another log does not know of them, so the checkpoint is this log's."""
    split = splitter(SourceCheckpoint("u", 1))
    groups = parsed([Group(replace(commit_of(scn, 0), has_unread=scn == 2)) for scn in (2, 3)])
    waiting, done = (window.position for group in groups for window in split.split(group))
    assert (waiting.snapshots, waiting.log) == ({UNREAD_TABLES: 0}, "log")
    assert (done.snapshots, done.log) == ({}, None)


def test_open_snapshots_stand_in_the_checkpoint_with_their_log_until_they_end():
    begin, end = BUS_SEQ_MIN + 1, BUS_SEQ_MIN + 9
    split = splitter(SourceCheckpoint("u", 1))
    groups = parsed([
        reading(ControlKind.SNAPSHOT_BEGIN, 1, begin),
        rows_group([(ChangeType.INSERT, 2, 1, 1)], replace(commit_of(2, 1), snapshots=OPEN)),
        reading(ControlKind.SNAPSHOT_END, 2, end),
    ])  # fmt: skip
    positions = [window.position for group in groups for window in split.split(group)]
    assert [(p.scn, p.seq, p.log, dict(p.snapshots)) for p in positions] == [
        (1, begin, "log", {"main.t0": 7}),
        (2, None, "log", {"main.t0": 7}),
        (2, end, "log", {}),
    ]


def test_another_log_gives_a_transaction_again_from_its_first_row():
    """Another log may count the rows of a transaction otherwise; dropping by its numbers would lose some."""
    split = splitter()
    part = rows_group([(ChangeType.INSERT, 1, 1, 1), (ChangeType.INSERT, 1, 2, 2)], commit_of(1, 2, continues=True))
    assert [len(w) for w in split.split(parsed([part])[0])] == [2]
    assert split.connected("u", "another log"), "the consumer must be told"
    whole = rows_group([(ChangeType.INSERT, 1, n, n) for n in (1, 2, 3)], commit_of(1, 3))
    assert [len(w) for w in split.split(parsed([whole])[0])] == [3]


def test_the_same_log_goes_on_inside_a_transaction():
    split = splitter(SourceCheckpoint("u", 1, 2, "tx1", log="log"))
    whole = rows_group([(ChangeType.INSERT, 1, n, n) for n in (1, 2, 3)], commit_of(1, 3))
    (window,) = split.split(parsed([whole])[0])
    assert [row.key for row in window.rows()] == [(3,)]
    assert window.is_part


def test_rows_out_of_order_are_an_error_that_names_the_row():
    rows = [(ChangeType.INSERT, 2, 1, 1), (ChangeType.INSERT, 1, 1, 2)]
    with pytest.raises((CorruptData, ValueError), match=r"row 1|rows up to"):
        splitter().split(parsed([rows_group(rows, commit_of(3, 9))])[0])


def test_an_image_whose_other_half_a_filter_took_stands_alone():
    rows = [(UPDATE[0], 1, 1, 5), (UPDATE[1], 1, 4, 6)]
    (window,) = splitter().split(parsed([rows_group(rows, commit_of(1, 4))])[0])
    gone, put = window.rows()
    assert (gone.before["id"], gone.after) == (5, None)
    assert (put.before, put.after["id"]) == (None, 6)
