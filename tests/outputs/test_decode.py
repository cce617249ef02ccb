"""Frames and typed rows become change batches with exactly the rows inside the bounds, in order."""

import itertools
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from databus.core import (
    BUS_SEQ_MIN,
    SEQ_DONE,
    ControlKind,
    CorruptData,
    SourceCheckpoint,
    StreamCut,
    UnrepresentableValue,
)
from databus.flow import decode_frames, decode_groups, decode_typed, result_table, user_rows_schema
from databus.flow._decode import decode_ranges
from databus.log import Resume
from databus.pipeline import TableControl, TableRows
from databus.schema import Column, TableSchema, sink_schema
from databus.sources.mock import MockConfig, MockSource
from databus.wire import Commit, Control, FrameGroup, FrameParser, Group, encode_group


class _Numbers:
    def number_of(self, table):
        return 1, 1


def encoded(group):
    return b"".join(bytes(buffer) for buffer in encode_group(group, _Numbers(), 1).buffers)


def collected(frames, groups, after=(0, 0), until=None, physical="shop", log="log-1"):
    """What Spark collects: one run for each group."""
    until = until or groups[-1].commit.pair
    count = len(frames)
    return pa.table(
        {
            "physical": [physical] * count,
            "scn": [group.commit.scn for group in groups],
            "seq": [group.commit.seq for group in groups],
            "log": [log] * count,
            "frames": pa.array(frames, pa.binary()),
            "after_scn": [after[0]] * count,
            "after_seq": pa.array([after[1]] * count, pa.int64()),
            "until_scn": [until[0]] * count,
            "until_seq": pa.array([until[1]] * count, pa.int64()),
        }
    )


COLUMNS = {"id": "int64", "u": "uint64", "d": "decimal(12,2)", "s": "string"}


@pytest.fixture(scope="module")
def made():
    config = MockConfig(
        schemas={"main.a": {"columns": COLUMNS}, "main.b": {"columns": {"id": "string", "v": "float64"}}},
        transactions_total=40,
        rows_per_transaction=6,
        group_transactions_max=7,
    )
    source = MockSource("shop", config)
    source.start(Resume())
    groups = []
    while (group := source.poll(0)) is not None:
        groups.append(group)
    return {table.fingerprint: table for table in source.tables()}, groups, [encoded(group) for group in groups]


def pairs(batch, source=None):
    return [
        (row["_commit_version"], row["_seq"])
        for item in batch.items
        if isinstance(item, TableRows) and source in (None, item.table.source)
        for row in item.rows.select(["_commit_version", "_seq"]).to_pylist()
    ]


def all_pairs(groups):
    return sorted(
        (row["_commit_version"], row["_seq"])
        for group in groups
        for rows in group.rows
        for row in rows.batch.select(["_commit_version", "_seq"]).to_pylist()
    )


def test_all_rows_come_as_few_tables_in_order_and_sink_types(made):
    tables, groups, frames = made
    (batch,) = decode_frames(collected(frames[::-1], groups[::-1], until=groups[-1].commit.pair), tables.__getitem__)
    assert len(batch.items) == 2
    assert sorted(pairs(batch)) == all_pairs(groups)
    for item in batch.items:
        assert item.rows.schema.equals(user_rows_schema(item.table))
        assert pairs(batch, item.table.source) == sorted(pairs(batch, item.table.source))
    unsigned = next(item for item in batch.items if item.table.source == "main.a").rows.column("u")
    assert unsigned.type == pa.decimal128(20, 0)
    assert max(value for value in unsigned.to_pylist() if value is not None) > Decimal(2**63)


@pytest.mark.parametrize(
    ("after", "until"),
    [((3, 2), (31, 4)), ((0, 0), (1, 1)), ((7, None), (8, None)), ((5, 4), (5, 5)), ((6, 3), (6, 3))],
)
def test_rows_beyond_the_bounds_are_dropped(made, after, until):
    tables, groups, frames = made
    (batch,) = decode_frames(collected(frames, groups, after, until), tables.__getitem__)
    low, high = ((scn, (1 << 40) - 1 if seq is None else seq) for scn, seq in (after, until))
    assert sorted(pairs(batch)) == [pair for pair in all_pairs(groups) if low < pair <= high]
    assert (batch.start.pair, batch.end.log) == (low, "log-1")


def test_end_of_a_transaction_is_told_from_a_place_inside_it(made):
    tables, groups, frames = made
    end = groups[0].commit
    (whole,) = decode_frames(collected(frames[:1], groups[:1]), tables.__getitem__)
    assert (whole.end.scn, whole.end.seq, whole.end.txid) == (end.scn, None, end.txid)
    (part,) = decode_frames(collected(frames[:1], groups[:1], until=(end.scn, end.seq - 1)), tables.__getitem__)
    assert part.end.seq == end.seq - 1


def test_part_of_a_transaction_that_continues_keeps_its_seq(made):
    tables, groups, _ = made
    first = groups[0]
    commit = Commit(first.commit.scn, first.commit.seq, "t", {}, 0, continues=True)
    group = Group(commit, first.rows)
    (batch,) = decode_frames(collected([encoded(group)], [group]), tables.__getitem__)
    assert batch.end.seq == first.commit.seq


def test_controls_stand_between_the_rows_before_and_after_them(made):
    tables, groups, frames = made
    table = next(iter(tables.values()))
    scn = groups[0].commit.scn
    pair = (scn, BUS_SEQ_MIN + 5)
    control = Control(ControlKind.TRUNCATE, table, *pair, {"kind": "truncate", "source": table.source})
    middle = Group(Commit(*pair, "t", {}, 0), (), control)
    run = collected([frames[0], encoded(middle), *frames[1:]], [groups[0], middle, *groups[1:]])
    (batch,) = decode_frames(run, tables.__getitem__)
    mine = [item for item in batch.items if item.table.source == table.source]
    assert [type(item) for item in mine] == [TableRows, TableControl, TableRows]
    assert (mine[1].kind, mine[1].pair) == (ControlKind.TRUNCATE, pair)
    (later,) = decode_frames(collected([encoded(middle)], [middle], after=pair), tables.__getitem__)
    assert later.items == ()


def test_each_physical_source_is_a_batch_of_its_own(made):
    tables, groups, frames = made
    both = pa.concat_tables(
        [collected(frames, groups, physical="b"), collected(frames[:1], groups[:1], physical="a", log="log-2")]
    )
    found = decode_frames(both, tables.__getitem__)
    assert [(batch.physical, batch.end.log) for batch in found] == [("a", "log-2"), ("b", "log-1")]


def test_cut_or_flipped_bytes_are_errors_that_name_the_run(made):
    tables, groups, frames = made
    with pytest.raises(StreamCut, match=r"shop, run up to"):
        decode_frames(collected([frames[0][:-1]], groups[:1]), tables.__getitem__)
    broken = bytearray(frames[0])
    broken[len(broken) // 2] ^= 1
    with pytest.raises(CorruptData, match=r"shop, run up to .*checksum"):
        decode_frames(collected([bytes(broken)], groups[:1]), tables.__getitem__)


TABLE = TableSchema("main.a", tuple(Column(name, kind) for name, kind in COLUMNS.items()), ("id",))


def typed(rows):
    schema = pa.schema([*user_rows_schema(TABLE), pa.field("_control", pa.string())])
    base = {"_commit_timestamp": 0, "_txid": "t", "_snapshot": False}
    return pa.Table.from_pylist([{**base, **row} for row in rows], schema=schema)


def test_typed_rows_in_any_order_are_cut_at_their_controls():
    body = {"kind": "truncate", "source": "main.a"}
    rows = typed(
        [
            {"id": 2, "_commit_version": 3, "_seq": 1, "_change_type": "insert"},
            {"_commit_version": 2, "_seq": 2, "_change_type": "control", "_control": json.dumps(body)},
            {"id": 1, "_commit_version": 2, "_seq": 1, "_change_type": "insert"},
        ]
    )
    end = SourceCheckpoint(scn=3, log="log-1")
    batch = decode_typed(rows, TABLE, "shop", SourceCheckpoint(), end)
    assert [type(item) for item in batch.items] == [TableRows, TableControl, TableRows]
    assert [item.rows["id"].to_pylist() for item in batch.items if isinstance(item, TableRows)] == [[1], [2]]
    assert (batch.items[1].pair, dict(batch.items[1].body)) == ((2, 2), body)


def test_typed_value_that_its_column_cannot_hold_is_an_error():
    wide = typed([{"id": 1, "_commit_version": 1, "_seq": 1, "_change_type": "insert"}])
    wide = wide.set_column(2, "d", pa.array([Decimal("1.005")], pa.decimal128(12, 3)))
    with pytest.raises(UnrepresentableValue, match=r"main\.a\.d"):
        decode_typed(wide, TABLE, "shop", SourceCheckpoint(), SourceCheckpoint(scn=1, log="log-1"))


def test_table_of_a_result_has_its_columns_and_the_key_if_it_is_left():
    schema = pa.schema([*sink_schema(TABLE), pa.field("_commit_version", pa.int64())])
    table = result_table("main.a", schema, ("id",))
    assert [(column.name, column.type) for column in table.columns] == [
        ("id", "int64"),
        ("u", "decimal(20,0)"),
        ("d", "decimal(12,2)"),
        ("s", "string"),
    ]
    assert table.key == ("id",)
    assert result_table("main.a", schema.remove(0), ("id",)).key == ()
    with pytest.raises(UnrepresentableValue, match="cast it in the filter"):
        result_table("main.a", pa.schema([("x", pa.list_(pa.int8()))]), ())


# Ranges


def received(frames: list[bytes]) -> list[FrameGroup]:
    """Groups as a client has them."""
    parser, groups = FrameParser("test"), []
    for frame in frames:
        parser.space()[: len(frame)] = frame
        groups += parser.received(len(frame))
    return groups


@pytest.mark.parametrize("batch_bytes", [1, 3_000, 1 << 30])
def test_a_range_is_cut_into_batches_that_together_hold_it_once_and_in_order(made, batch_bytes):
    tables, groups, frames = made
    after, until = (3, 2), (30, SEQ_DONE)
    pieces = [([group], "log-1") for group in received(frames)]
    batches = list(decode_groups(pieces, "shop", after, until, tables.__getitem__, batch_bytes))
    assert len(batches) > 1 or batch_bytes == 1 << 30
    wanted = [pair for pair in all_pairs(groups) if after < pair <= until]
    assert sorted(pair for batch in batches for pair in pairs(batch)) == wanted
    assert batches[0].start.pair == after
    assert batches[-1].end.pair == until
    for earlier, later in itertools.pairwise(batches):
        assert earlier.end.pair == later.start.pair
        assert max(pairs(earlier)) <= earlier.end.pair < min(pairs(later))
        assert earlier.end.txid
        assert earlier.end.log == "log-1"


def test_ranges_are_read_in_order_from_where_they_start(made):
    tables, groups, frames = made
    begun = received(frames)
    middle = groups[2].commit
    asked = []

    def fetch(start: SourceCheckpoint, until: tuple[int, int], log: str):
        asked.append((start.pair, until, log))
        yield [each for each in begun if each.commit.last > start.pair and each.commit.last <= until], "log-1"

    half, end = (middle.scn, SEQ_DONE), (groups[-1].commit.scn, SEQ_DONE)
    rows = [
        {
            "physical": "shop",
            "start": start,
            "after_scn": low[0],
            "after_seq": low[1],
            "until_scn": top[0],
            "until_seq": top[1],
            "ranges": 3,
            "log": "log-1",
        }
        for start, low, top in [
            (json.dumps(SourceCheckpoint(scn=middle.scn).to_json()), half, end),
            (json.dumps(SourceCheckpoint(seq=0).to_json()), (0, 0), half),
        ]
    ]
    batches = list(decode_ranges(pa.Table.from_pylist(rows), fetch, tables.__getitem__))
    assert asked == [((0, 0), half, "log-1"), (half, end, "log-1")]
    assert [pair for batch in batches for pair in sorted(pairs(batch))] == all_pairs(groups)
