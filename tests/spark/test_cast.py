"""Frames of one table become batches in exactly the schema that Spark takes, and no value changes on the way."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.core import ChangeType, CorruptData
from databus.schema import Column, SchemaChange, TableSchema
from databus.spark._cast import Caster, InexactRowsError, between, join_frames
from databus.spark._schema import arrow_schema, typed_schema
from databus.wire import Commit, Frame, Rows
from tests.spark.kit import encoded, parsed
from tests.spark.strategies import batch_of, images, tables


def _frames(table: TableSchema, *parts: list[dict[str, object]]) -> list[Frame]:
    raw = b"".join(
        encoded([Rows(table, batch_of(table, rows, scn))], Commit(scn, len(rows), f"tx-{scn}", {}, 0))
        for scn, rows in enumerate(parts, 1)
        if rows
    )
    return [frame for group in parsed(raw) for frame in group.rows]


def _schema(table: TableSchema) -> pa.Schema:
    return arrow_schema(typed_schema(table, meta_full=True))


T = TableSchema("main.t", (Column("id", "int64"), Column("n", "string")), ("id",))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_rows_of_any_table_come_out_equal_in_the_schema_of_spark(data: st.DataObject) -> None:
    table = data.draw(tables())
    parts = data.draw(st.lists(images(table), min_size=1, max_size=4))
    frames = _frames(table, *parts)
    if not frames:
        return
    schema = _schema(table)
    batch = Caster(schema, "t").cast(join_frames(frames))
    assert batch.schema.equals(schema)
    batch.validate(full=True)
    seen = batch.select(list(table.names)).to_pylist()
    assert seen == [row for rows in parts for row in rows]
    assert batch.column("_change_type").to_pylist() == [
        ChangeType(i % 4 + 1).label for rows in parts for i in range(len(rows))
    ]
    assert batch.column("_txid").to_pylist() == [f"tx-{scn}" for scn, rows in enumerate(parts, 1) for _ in rows]
    assert batch.column("_control").null_count == len(batch)


def _as_foreign(frame: Frame, schema: pa.Schema) -> Frame:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(frame.batch.columns, schema=schema))
    return Frame(frame.header, memoryview(sink.getvalue().to_pybytes()), "x")


@pytest.mark.parametrize("more", [0, 100, 1000])
def test_bodies_that_do_not_share_a_schema_message_are_still_joined(more: int) -> None:
    first, other = _frames(T, [{"id": 1, "n": "a"}], [{"id": 2, "n": "b"}])
    foreign = _as_foreign(other, other.batch.schema.with_metadata({"by": "x" * more}))
    joined = join_frames([first, foreign])
    assert joined.select(["id", "n", "_commit_version"]).to_pylist() == [
        {"id": 1, "n": "a", "_commit_version": 1},
        {"id": 2, "n": "b", "_commit_version": 2},
    ]


@pytest.mark.parametrize("damage", ["short", "noise", "rows"])
def test_a_body_that_is_no_arrow_stream_is_corrupt_and_named(damage: str) -> None:
    frames = _frames(T, [{"id": 1, "n": "a"}], [{"id": 2, "n": "b"}])
    bad = frames[1]
    if damage == "short":
        bad = Frame(bad.header, bad.body[: len(bad.body) // 2], "the place")
    elif damage == "noise":
        bad = Frame(bad.header, memoryview(b"\xab" * len(bad.body)), "the place")
    else:
        bad = Frame(bad.header._replace(rows=7), bad.body, "the place")
    with pytest.raises(CorruptData, match="the place"):
        join_frames([frames[0], bad])
    with pytest.raises(CorruptData, match="the place"):
        join_frames([bad, frames[0]])


def _change(old: TableSchema, new: TableSchema, **more: Any) -> SchemaChange:
    return SchemaChange((9, 1), old, new, **more)


def test_rows_from_before_changes_are_renamed_filled_and_widened() -> None:
    first = TableSchema("main.t", (Column("id", "int32"), Column("p", "decimal(4,2)"), Column("gone", "string")))
    then = TableSchema("main.t", (Column("id", "int64"), Column("q", "decimal(12,3)"), Column("n", "int8")))
    last = TableSchema("main.t", (*then.columns[:2], Column("n", "int16"), Column("gone", "uint64")))
    changes = [
        _change(first, then, renamed={"p": "q"}, fill={"n": 7}, number=2),
        _change(then, last, fill={"gone": None}, number=2),
    ]
    frames = _frames(first, [{"id": -5, "p": Decimal("1.50"), "gone": "x"}])
    batch = Caster(_schema(last), "t").cast(join_frames(frames), changes)
    assert batch.schema.equals(_schema(last))
    assert batch.select(list(last.names)).to_pylist() == [{"id": -5, "q": Decimal("1.500"), "n": 7, "gone": None}]


def test_columns_that_change_their_names_for_each_others_keep_their_values() -> None:
    table = TableSchema("main.t", (Column("a", "int32"), Column("b", "int32")))
    frames = _frames(table, [{"a": 1, "b": 2}])
    swap = _change(table, table, renamed={"a": "b", "b": "a"})
    caster = Caster(_schema(table), "t")
    assert caster.cast(join_frames(frames), [swap]).select(["a", "b"]).to_pylist() == [{"a": 2, "b": 1}]
    assert caster.cast(join_frames(frames), [swap, swap]).select(["a", "b"]).to_pylist() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("number", [1, 3])
def test_a_column_that_nobody_filled_is_null_unless_the_change_hides_what_it_was(number: int) -> None:
    old = TableSchema("main.t", (Column("id", "int32"),))
    new = TableSchema("main.t", (Column("id", "int32"), Column("n", "int32")))
    frames, change = _frames(old, [{"id": 1}]), _change(old, new, number=number)
    caster = Caster(_schema(new), "t")
    if number == 1:
        assert caster.cast(join_frames(frames), [change]).column("n").to_pylist() == [None]
        return
    with pytest.raises(InexactRowsError, match="what column 'n' held in them is unknown"):
        caster.cast(join_frames(frames), [change])


def test_rows_that_lack_a_column_of_which_no_change_speaks_are_an_error() -> None:
    old = TableSchema("main.t", (Column("id", "int32"),))
    new = TableSchema("main.t", (Column("id", "int32"), Column("n", "int32")))
    with pytest.raises(InexactRowsError, match="have no column 'n'"):
        Caster(_schema(new), "t").cast(join_frames(_frames(old, [{"id": 1}])))


def test_a_narrower_type_takes_the_values_that_it_holds_and_refuses_others() -> None:
    """Also where a later change made it wide again: between the two the table could not hold them."""
    wide, narrow = (TableSchema("main.t", (Column("a", kind),)) for kind in ("int64", "int8"))
    changes = [_change(wide, narrow, number=3), _change(narrow, wide)]
    caster = Caster(_schema(wide), "t")
    assert caster.cast(join_frames(_frames(wide, [{"a": 7}])), changes).column("a").to_pylist() == [7]
    with pytest.raises(InexactRowsError, match="'a' was int64 and then int8 and then int64"):
        caster.cast(join_frames(_frames(wide, [{"a": 700}])), changes)


@pytest.mark.parametrize(
    ("old", "new"),
    [("string", "int64"), ("decimal(10,2)", "decimal(10,3)"), ("timestamp", "timestamptz"), ("binary", "string")],
)
def test_a_type_that_does_not_widen_is_an_error_that_names_column_and_types(old: str, new: str) -> None:
    before = TableSchema("main.t", (Column("a", old),))
    after = TableSchema("main.t", (Column("a", new),))
    frames = _frames(before, [{"a": Decimal("99999999.99") if old.startswith("decimal") else None}])
    for changes in ([], [_change(before, after, number=3)]):
        with pytest.raises(InexactRowsError, match=r"'a'.*" + old.split("(", maxsplit=1)[0]):
            Caster(_schema(after), "t").cast(join_frames(frames), changes)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12, unique=True).map(sorted),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_between_keeps_exactly_the_pairs_between(
    pairs: list[tuple[int, int]], after: tuple[int, int], until: tuple[int, int]
) -> None:
    table = pa.table(
        {
            "_commit_version": pa.array([p[0] for p in pairs], pa.int64()),
            "_seq": pa.array([p[1] for p in pairs], pa.int64()),
        }
    )
    kept = between(table, after, until)
    seen = list(zip(kept.column(0).to_pylist(), kept.column(1).to_pylist(), strict=True))
    assert seen == [pair for pair in pairs if after < pair <= until]
