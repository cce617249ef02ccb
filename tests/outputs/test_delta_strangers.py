"""What others do to our tables with engines of their own: files in Spark's older form, conditions, changed rows."""

import datetime as dt
import json
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.schema import Field, PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from databus.core import CorruptData, UnsupportedFeature
from databus.flow import Here, Restage
from databus.schema import Column, TableSchema
from databus.sinks import delta_batches, read_delta
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._output_harness import assert_holds
from databus.testing._staged_writes import write_batch
from tests.outputs.harnesses import DeltaHarness, FilesHarness, ids, log_of, noted_of, order, still_has
from tests.outputs.test_delta_at_once import stage
from tests.outputs.test_delta_merge import SharedHarness

TIMES = TableSchema(
    "main.times", (Column("k", "int64"), Column("until", "timestamptz"), Column("local", "timestamp")), ("k",)
)
FAR = dt.datetime(9999, 12, 31, 23, 59, 59, 123456, dt.UTC)
OLD = dt.datetime(1, 1, 1, 0, 0, 0, 1, dt.UTC)


def times(key):
    value = (FAR, OLD)[key % 2]
    return {"k": key, "until": value, "local": value.replace(tzinfo=None)}


def arranged_by_spark(path):
    """Its files joined to one, as delta-spark's OPTIMIZE does it: times with a zone are INT96, without bounds."""
    table = DeltaTable(path)
    rows = table.to_pyarrow_dataset().to_table()
    ours = [index for index, field in enumerate(rows.schema) if pa.types.is_timestamp(field.type) and field.type.tz]
    for index in ours:
        name = rows.schema.names[index]
        rows = rows.set_column(index, name, rows.column(name).cast(pa.timestamp("us")))
    made = Path(path, f"part-00000-{time.time_ns()}.snappy.parquet")
    pq.write_table(rows, made, use_deprecated_int96_timestamps=True)
    now = time.time_ns() // 1_000_000
    stats = f'{{"numRecords": {rows.num_rows}}}'
    added = AddAction(made.name, made.stat().st_size, {}, now, data_change=False, stats=stats)
    gone = [
        RemoveAction(each["path"], False, now, partition_values={}, size=each["size_bytes"])
        for each in pa.table(table.get_add_actions()).to_pylist()
    ]
    table.create_write_transaction([added, *gone], "append", table.schema())


def test_times_of_any_year_stay_what_they_are_in_files_that_spark_has_arranged(mirror):
    """INT96, as Spark writes it, is nanoseconds to Arrow, into which the year 9999 does not fit: it became 1816."""
    log = ChangeLog()
    log.begin()
    for key in range(4):
        log.insert(TIMES, times(key))
    log.begin().insert(TIMES, times(9))
    first, second = log.batches([4])
    write_batch(mirror.make(), first)
    path = mirror.make().table_path("shop", TIMES.source)
    arranged_by_spark(path)
    held = [*delta_batches(path)]
    assert {row["k"]: row["until"] for batch in held for row in batch.to_pylist()} == {
        key: times(key)["until"] for key in range(4)
    }
    write_batch(mirror.make(), second)
    found = {row["k"]: row for row in read_delta(path).to_pylist()}
    assert {key: {name: row[name] for name in TIMES.names} for key, row in found.items()} == {
        key: times(key) for key in (0, 1, 2, 3, 9)
    }


def test_joined_files_of_a_history_keep_times_that_spark_has_written(tmp_path):
    harness = DeltaHarness(tmp_path, "history", compact_every_commits=1)
    log = ChangeLog()
    for key in range(3):
        log.begin().insert(TIMES, times(key))
    first, second, third = log.batches([1, 2])
    write_batch(harness.make(), first)
    path = harness.make().table_path("shop", TIMES.source)
    arranged_by_spark(path)
    write_batch(harness.make(), second)
    write_batch(harness.make(), third)
    assert len(DeltaTable(path).file_uris()) < 3, "some were joined"
    assert {row["k"]: row["until"] for row in read_delta(path).to_pylist()} == {k: times(k)["until"] for k in range(3)}


def arranged_and_emptied(path):
    """As of a table that has rested so long that nobody keeps what it was made of before."""
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)


def changed_and_put_back(path):
    table = DeltaTable(path)
    table.delete("id = 1")
    table.restore(table.version() - 1)


HARMLESS = {
    "arranged": lambda path: DeltaTable(path).optimize.compact(),
    "arranged by Spark": arranged_by_spark,
    "arranged and emptied": arranged_and_emptied,
    "a comment": lambda path: DeltaTable(path).alter.set_table_description("of the shop"),
    "properties": lambda path: DeltaTable(path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
    "put back": changed_and_put_back,
}


@pytest.mark.parametrize(
    ("kind", "commit"),
    [(kind, commit) for kind in ("mirror", "history") for commit in HARMLESS]
    + [("shared", "arranged and emptied"), ("shared", "a comment")],
)
def test_a_running_output_goes_on_over_commits_of_others_that_change_no_rows(tmp_path, kind, commit):
    harness = SharedHarness(tmp_path, "mirror") if kind == "shared" else DeltaHarness(tmp_path, kind)
    log = log_of(1, 2, 3, 4)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    output = harness.make()
    for at in range(2):
        output.write(log.batch(at, at + 1))
    HARMLESS[commit](output.table_path("shop", ORDERS.source))
    output.write(log.batch(2, 3))
    HARMLESS[commit](output.table_path("shop", ORDERS.source))
    output.write(log.batch(3, len(log.entries)))
    assert_holds(harness, log, [ORDERS], output.delivery)


def test_what_one_task_has_made_of_files_that_somebody_has_arranged_is_made_again(mirror):
    """Once before it reads them, when they are gone, and once before the commit."""
    log = log_of(1, 2, 3)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    output = mirror.make()
    path = output.table_path("shop", ORDERS.source)
    for at in range(2):
        output.commit(stage(output, log.batch(at, at + 1)), Here())
    arranged_and_emptied(path)
    with pytest.raises(Restage):
        output.commit(stage(output, log.batch(2, 3)), Here())
    output.commit(stage(output, log.batch(2, 3)), Here())
    staged = stage(output, log.batch(3, len(log.entries)))
    DeltaTable(path).alter.set_table_description("of the shop")
    with pytest.raises(Restage):
        output.commit(staged, Here())
    output.commit(stage(output, log.batch(3, len(log.entries))), Here())
    assert_holds(mirror, log, [ORDERS], output.delivery)


@pytest.mark.parametrize("is_in_log", [True, False], ids=["in the log", "no longer in the log"])
def test_a_running_mirror_says_which_commit_of_others_changed_its_rows(mirror, is_in_log):
    log, output = log_of(1, 2, 3), mirror.make()
    output.write(log.batch(0, 2))
    path = output.table_path("shop", ORDERS.source)
    DeltaTable(path).alter.set_table_description("of the shop")
    DeltaTable(path).delete("id = 2")
    if not is_in_log:
        DeltaTable(path).create_checkpoint()
        for version in range(3):
            Path(str(path), "_delta_log", f"{version:020d}.json").unlink()
    said = r"version 3 \(DELETE\)" if is_in_log else "no longer in its log"
    with pytest.raises(CorruptData, match=f"another program has changed its rows in {'.*' * (not is_in_log)}{said}"):
        output.write(log.batch(2, 3))


def test_a_running_history_goes_on_over_old_rows_that_somebody_removed(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    log, output = log_of(1, 2, 3), harness.make()
    output.write(log.batch(0, 2))
    DeltaTable(output.table_path("shop", ORDERS.source)).delete("id = 1")
    output.write(log.batch(2, 3))
    assert ids(harness) == [2, 3]


def test_a_running_mirror_with_columns_of_others_says_so(mirror):
    log, output = log_of(1, 2, 3), mirror.make()
    output.write(log.batch(0, 2))
    path = output.table_path("shop", ORDERS.source)
    DeltaTable(path).alter.add_columns(Field("mine", PrimitiveType("string")))
    with pytest.raises(UnsupportedFeature, match=r"mine string.*another program has changed the columns"):
        output.write(log.batch(2, 3))


def test_what_the_engine_cannot_write_is_named(mirror):
    """Row tracking asks its writers for numbers of rows."""
    log, output = log_of(1, 2, 3), mirror.make()
    output.write(log.batch(0, 2))
    path = output.table_path("shop", ORDERS.source)
    features = ["appendOnly", "invariants", "rowTracking", "domainMetadata"]
    version = DeltaTable(path).version() + 1
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    Path(str(path), "_delta_log", f"{version:020d}.json").write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(UnsupportedFeature, match=r"RowTracking.*DROP FEATURE"):
        output.write(log.batch(2, 3))


def test_a_change_data_feed_that_nobody_can_read_is_told(mirror, caplog):
    """Its columns have the names of ours."""
    log = log_of(1, 2)
    mirror.make().write(log.batch(0, 1))
    table = DeltaTable(mirror.make().table_path("shop", ORDERS.source))
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    mirror.make().write(log.batch(1, 2))
    with pytest.raises(DeltaError, match="_commit_version"):
        table.load_cdf(starting_version=0).read_all()
    assert "enableChangeDataFeed = false" in caplog.text
    assert sorted(row["id"] for row in mirror.read("shop", ORDERS)) == [1, 2]


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_table_with_a_condition_on_its_rows_is_refused(tmp_path, mode):
    """A task looks at none, so rows that break it would be in the table, where its readers trust it."""
    harness = DeltaHarness(tmp_path, mode)
    log = log_of(1, 2, 3)
    harness.make().write(log.batch(0, 2))
    path = harness.make().table_path("shop", ORDERS.source)
    DeltaTable(path).alter.add_constraint({"small": "id < 3"})
    with pytest.raises(UnsupportedFeature, match=r"small.*DROP CONSTRAINT"):
        harness.make().write(log.batch(2, 3))
    DeltaTable(path).alter.drop_constraint("small")
    harness.make().write(log.batch(2, 3))
    assert ids(harness) == [1, 2, 3]


def test_a_mirror_that_may_only_be_added_to_is_refused_with_its_way_out(mirror):
    log = log_of(1)
    log.begin().delete(ORDERS, order(1))
    mirror.make().write(log.batch(0, 1))
    DeltaTable(mirror.make().table_path("shop", ORDERS.source)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedFeature, match=r"delta.appendOnly"):
        mirror.make().write(log.batch(1, 2))


@pytest.mark.parametrize("verb", ["delete", "update", "put back after"])
def test_rows_of_a_mirror_that_somebody_changed_while_nobody_wrote_are_missed(mirror, verb):
    """The pair says that it has everything, and the next batch would go on."""
    name = f"shop/{ORDERS.source}"
    output = mirror.make()
    output.write(log_of(1, 2).batch(0, 2))
    place = noted_of(output, name)
    table = DeltaTable(output.table_path("shop", ORDERS.source))
    if verb == "update":
        table.update({"note": "'mine'"}, predicate="id = 1")
    else:
        table.delete("id = 1")
    if verb == "put back after":
        table.restore(int(place.mark.split()[0]))
    assert still_has(mirror.make(), name, place) == (verb == "put back after")


def test_a_mirror_whose_files_somebody_arranged_is_not_missed(mirror):
    output = mirror.make()
    output.write(log_of(1, 2).batch(0, 2))
    name = f"shop/{ORDERS.source}"
    place = noted_of(output, name)
    arranged_by_spark(output.table_path("shop", ORDERS.source))
    assert still_has(mirror.make(), name, place)


@pytest.mark.parametrize("kind", ["history", "mirror", "files"])
def test_tables_that_have_parts_of_a_batch_ask_for_their_rows_together(tmp_path, kind):
    """After a kill between the commits of many tables, a batch that is cut in another way concerns all of them."""
    harness = FilesHarness(tmp_path, "parquet") if kind == "files" else DeltaHarness(tmp_path, kind)
    tables = [TableSchema(f"main.t{n}", ORDERS.columns, ORDERS.key) for n in range(12)]
    log = ChangeLog()
    for number in range(2):
        log.begin()
        for table in tables:
            log.insert(table, {"id": number, "note": "", "total": Decimal(0)})
    (whole,) = log.batches([])
    first, _ = log.batches([len(tables)])
    output = harness.make()
    output.commit(stage(output, first, is_whole=False), Here())
    output = harness.make()
    with pytest.raises(Restage) as again:
        output.commit(stage(output, whole, is_whole=False), Here())
    assert len(again.value.above) == len(tables)
    write_batch(harness.make(), whole)
    for table in tables[::4]:
        assert sorted(row["id"] for row in harness.read("shop", table)) == [0, 1]


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_restore_is_missed_until_the_table_is_put_back_as_the_error_says(tmp_path, mode):
    harness, name = DeltaHarness(tmp_path, mode), f"shop/{ORDERS.source}"
    log, output = log_of(1, 2, 3, 4), harness.make()
    for at in range(3):
        output.write(log.batch(at, at + 1))
    place, table = noted_of(output, name), DeltaTable(output.table_path("shop", ORDERS.source))
    last = table.version()
    table.restore(last - 1)
    assert not still_has(harness.make(), name, place)
    with pytest.raises(CorruptData, match=f"TO VERSION AS OF {last}`"):
        output.write(log.batch(3, 4))
    table.restore(last)
    again = harness.make()
    assert still_has(again, name, place)
    again.write(log.batch(3, 4))
    assert ids(harness) == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_restore_to_before_a_commit_that_the_ledger_does_not_know_is_missed(tmp_path, mode):
    """Whoever commits is killed before the ledger knows it. The table still said that it had what was restored away."""
    harness, name = DeltaHarness(tmp_path, mode), f"shop/{ORDERS.source}"
    log, output = log_of(1, 2, 3), harness.make()
    for at in range(2):
        output.write(log.batch(at, at + 1))
    place, table = noted_of(output, name), DeltaTable(output.table_path("shop", ORDERS.source))
    known = table.version()
    output.write(log.batch(2, 3))
    assert still_has(harness.make(), name, place)
    table.update_incremental()
    table.restore(known)
    assert not still_has(harness.make(), name, place)
    table.restore(known + 1)
    assert still_has(harness.make(), name, place)
