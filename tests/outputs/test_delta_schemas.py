"""Delta copies of tables whose columns change."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from databus.core import ControlKind, LimitExceeded, UnsupportedFeature
from databus.flow import Here
from databus.schema import Column, TableSchema, converts_exactly, widens_to
from databus.sinks.delta import run_all
from databus.testing._change_log import ChangeLog
from tests.outputs.harnesses import DeltaHarness, versions
from tests.outputs.test_delta_merge import SharedHarness

NARROW = TableSchema("main.t", (Column("id", "int64"), Column("v", "float64"), Column("w", "string")), ("id",))


def schema_log(to, change_class, values=(1.0, 2.5), **body):
    log = ChangeLog().begin()
    for number, value in enumerate(values):
        log.insert(NARROW, {"id": number, "v": value, "w": "w"})
    log.begin().schema(to, change_class, **body)
    return log


def table(*columns):
    return TableSchema("main.t", (Column("id", "int64"), *(Column(*column) for column in columns)), ("id",))


def test_mirror_drops_and_renames_in_one_commit(mirror):
    to = table(("value", "float64"))
    log = schema_log(to, 1, renamed={"v": "value"})
    mirror.make().write(log.batch(0, 2))
    version = versions(mirror, NARROW)
    mirror.make().write(log.batch(2, 3))
    assert versions(mirror, NARROW) == version + 1
    rows = sorted(mirror.read("shop", to), key=lambda row: row["id"])
    assert [(row["value"], row["_commit_version"], row["_seq"], len(row)) for row in rows] == [
        (1.0, 1, 1, 4),
        (2.5, 1, 2, 4),
    ]


def test_fill_leaves_pairs_alone_and_takes_rows_below_the_control_only(mirror):
    to = table(("v", "float64"), ("w", "string"), ("rate", "decimal(6,3)"))
    log = schema_log(to, 2, fill={"rate": "1.250"})
    log.begin().insert(to, {"id": 9, "v": 0.0, "w": "", "rate": None})
    mirror.make().write(log.batch(0, 4))
    rows = sorted(mirror.read("shop", to), key=lambda row: row["id"])
    assert [(row["rate"], row["_commit_version"]) for row in rows] == [
        (Decimal("1.250"), 1),
        (Decimal("1.250"), 1),
        (None, 3),
    ]


def test_fill_that_comes_late_leaves_younger_rows(mirror):
    to = table(("v", "float64"), ("w", "string"), ("rate", "decimal(6,3)"))
    log = schema_log(to, 2, fill={"rate": "1.250"})
    log.begin().insert(to, {"id": 9, "v": 0.0, "w": "", "rate": Decimal(7)})
    output = mirror.make()
    output.write(log.batch(0, 4))
    copy = output._copies["shop", NARROW.source]
    run_all([copy.kind.control(log.entries[2], copy.target.stored())], Here())
    rows = sorted(mirror.read("shop", to), key=lambda row: row["id"])
    assert [row["rate"] for row in rows] == [Decimal("1.250"), Decimal("1.250"), Decimal(7)]


def test_class_3_empties_a_mirror_whose_values_do_not_convert(mirror):
    to = table(("v", "int32"), ("w", "string"))
    log = schema_log(to, 3)
    mirror.make().write(log.batch(0, 2))
    version = versions(mirror, NARROW)
    mirror.make().write(log.batch(2, 3))
    assert mirror.read("shop", to) == []
    assert versions(mirror, NARROW) == version + 1
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, to, generation=1)
    log.snapshot(to, [{"id": 0, "v": 1, "w": "w"}, {"id": 1, "v": 3, "w": "w"}])
    log.bus_control(ControlKind.SNAPSHOT_END, to, generation=1, begin=list(begin.pair), complete=True)
    mirror.make().write(log.batch(3, len(log.entries)))
    assert sorted(row["v"] for row in mirror.read("shop", to)) == [1, 3]


def test_class_3_keeps_values_that_convert_exactly(mirror):
    to = table(("v", "int32"), ("w", "string"))
    log = schema_log(to, 3, values=(1.0, -7.0))
    mirror.make().write(log.batch(0, 3))
    assert sorted(row["v"] for row in mirror.read("shop", to)) == [-7, 1]


def test_class_1_that_would_change_values_stops(mirror):
    log = schema_log(table(("v", "int32"), ("w", "string")), 1)
    with pytest.raises(UnsupportedFeature, match="do not become the new type exactly"):
        mirror.make().write(log.batch(0, 3))
    assert sorted(row["v"] for row in mirror.read("shop", NARROW)) == [1.0, 2.5]


def test_rewrite_stops_at_its_limit_and_names_it(tmp_path):
    harness = DeltaHarness(tmp_path, "mirror", rewrite_bytes_max=10)
    with pytest.raises(LimitExceeded, match="rewrite_bytes_max=10"):
        harness.make().write(schema_log(table(("v", "float64")), 1).batch(0, 3))


def test_mirror_follows_a_table_that_was_dropped_and_made_again_with_other_columns(mirror):
    """`DROP TABLE`, `CREATE TABLE`: no `schema` control comes, for there are no rows that have to become others."""
    other = TableSchema("main.t", (Column("w", "int32"), Column("more", "string")), ("w",))
    log = ChangeLog().begin()
    log.insert(NARROW, {"id": 1, "v": 1.5, "w": "a"})
    log.begin().control(ControlKind.DROP, NARROW)
    log.begin().insert(other, {"w": 7, "more": "b"})
    log.begin().update(other, {"w": 7, "more": "b"}, {"w": 8, "more": "c"})
    for start, end in ((0, 1), (1, 2), (2, 3), (3, 5)):
        mirror.make().write(log.batch(start, end))
    assert [(row["w"], row["more"], len(row)) for row in mirror.read("shop", other)] == [(8, "c", 4)]


def test_rows_in_another_schema_without_its_control_stop_a_mirror(mirror):
    other = table(("v", "float64"), ("w", "string"), ("more", "string"))
    log = ChangeLog().begin()
    log.insert(NARROW, {"id": 1, "v": 1.5, "w": ""})
    log.begin().insert(other, {"id": 2, "v": 1.5, "w": "", "more": ""})
    mirror.make().write(log.batch(0, 1))
    with pytest.raises(UnsupportedFeature, match=r"more string.*without the `schema` control"):
        mirror.make().write(log.batch(1, 2))


def test_history_keeps_dropped_columns_and_takes_renamed_ones_as_new(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    to = table(("value", "float64"))
    log = schema_log(to, 1, renamed={"v": "value"}, fill={"value": 9.0})
    log.begin().insert(to, {"id": 5, "value": 5.0})
    harness.make().write(log.batch(0, 4))
    rows = sorted(harness.read("shop", to), key=lambda row: row["id"])
    assert [(row["v"], row["w"], row["value"]) for row in rows] == [
        (1.0, "w", None),
        (2.5, "w", None),
        (None, None, 5.0),
    ]


def test_history_stops_at_a_type_that_does_not_widen(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    log = schema_log(table(("v", "string"), ("w", "string")), 3)
    with pytest.raises(UnsupportedFeature, match=r"v of main.t became string.*holds double.*databus rebuild"):
        harness.make().write(log.batch(0, 3))
    assert len(harness.read("shop", NARROW)) == 2


def test_history_takes_a_narrower_type_as_what_it_has(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    wide, narrow = table(("v", "int64")), table(("v", "int16"))
    log = ChangeLog().begin()
    log.insert(wide, {"id": 1, "v": 2**40})
    log.begin().schema(narrow, 3)
    log.begin().insert(narrow, {"id": 2, "v": -5})
    harness.make().write(log.batch(0, 3))
    assert sorted(row["v"] for row in harness.read("shop", wide)) == [-5, 2**40]


def test_one_and_a_half_never_becomes_one():
    assert not converts_exactly(pa.array([1.0, 1.5]), pa.int64())
    assert converts_exactly(pa.array([1.0, None]), pa.int64())
    assert not converts_exactly(pa.array([2**53 + 1]), pa.float64())
    assert not converts_exactly(pa.array([0.1]), pa.float32())
    assert not converts_exactly(pa.array(["1"]), pa.int64())
    assert widens_to(pa.int32(), pa.decimal128(10, 0))
    assert not widens_to(pa.int64(), pa.decimal128(18, 0))


@pytest.mark.parametrize(
    ("harness", "made_by"),
    [(DeltaHarness, "a fill"), (DeltaHarness, "another type"), (DeltaHarness, "a drop"), (SharedHarness, "a fill")],
)
def test_a_mirror_gets_its_first_column_of_local_times_and_can_still_be_opened(tmp_path, harness, made_by):
    """The commit went through, and nobody could open the table from then on, for it did not say what columns it has."""
    harness, noon = harness(tmp_path, "mirror"), dt.datetime(2026, 1, 31, 12)  # noqa: DTZ001 - without a zone
    to = table(("v", "timestamp")) if made_by != "a fill" else table(("v", "float64"), ("at", "timestamp"))
    log = schema_log(to, 3)
    log.entries.pop()
    if made_by == "a drop":
        log.control(ControlKind.DROP, NARROW)
        log.begin()
    elif made_by == "a fill":
        log.schema(to, 2, fill={"at": "2026-01-31T12:00:00.000000"})
    else:
        log.schema(to, 3)
    log.begin().insert(to, {"id": 9, "v": noon} if made_by != "a fill" else {"id": 9, "v": 1.0, "at": noon})
    for batch in log.batches([2]):
        harness.make().write(batch)
    rows = {row["id"]: row.get("at", row["v"]) for row in harness.read("shop", to)}
    assert rows == ({0: noon, 1: noon, 9: noon} if made_by == "a fill" else {9: noon})
    found = DeltaTable(harness.make().table_path("shop", "main.t"))
    assert found.protocol().reader_features == ["timestampNtz"]
