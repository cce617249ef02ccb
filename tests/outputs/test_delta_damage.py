"""Delta copies on a full disk, and such that are missing, broken, or somebody else's."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from databus.core import ConfigError, ControlKind, CorruptData, DiskFull, UnsupportedFeature
from databus.schema import TableSchema
from databus.sinks import DeltaConfig
from databus.testing._change_log import ORDERS
from tests.outputs.harnesses import (
    FROM,
    ByTasks,
    DeltaHarness,
    context,
    ids,
    log_of,
    noted_of,
    order,
    room_for_files_of,
    still_has,
    versions,
)

# A disk that is full


@pytest.mark.parametrize("size", [0, 256, 1_000])
def test_a_full_disk_is_called_one_and_the_output_goes_on_when_there_is_room(either, size):
    log = log_of(*range(1, 5))
    either.make().write(log.batch(0, 1))
    output = either.make()
    with room_for_files_of(size), pytest.raises(DiskFull, match=r"lake.*Free some room"):
        output.write(log.batch(1, 4))
    output.close()
    output.open()
    output.write(log.batch(1, 4))
    assert ids(either) == [1, 2, 3, 4]


def test_no_room_to_rewrite_a_mirror_is_called_so_too(mirror):
    """There is room for the rows of the batch, and none for the file that they fall into."""
    log = log_of(*range(2_000))
    log.begin().update(ORDERS, order(7), order(7, "new"))
    mirror.make().write(log.batch(0, 2_000))
    with room_for_files_of(2_000), pytest.raises(DiskFull, match=r"lake.*Free some room"):
        mirror.make().write(log.batch(2_000, 2_002))
    mirror.make().write(log.batch(2_000, 2_002))
    assert {row["id"]: row["note"] for row in mirror.read("shop", ORDERS)}[7] == "new"


def test_a_first_table_waits_for_room_too(either):
    log = log_of(1)
    with room_for_files_of(0), pytest.raises(DiskFull):
        either.make().write(log.batch(0, 1))
    either.make().write(log.batch(0, 1))
    assert ids(either) == [1]


# Tables that are missing, broken, or somebody else's


def test_table_that_is_gone_is_missed(either):
    log = log_of(1, 2)
    either.make().write(log.batch(0, 1))
    shutil.rmtree(either.make().table_path("shop", ORDERS.source))
    with pytest.raises(CorruptData, match=r"is gone.*Restore it. Or: Have the table rebuilt"):
        either.make().write(log.batch(1, 2))


def test_a_table_that_was_restored_to_an_older_version_is_missed(either):
    """By Delta itself, which leaves what the table stores of its place as it was."""
    log = log_of(1, 2)
    name = f"shop/{ORDERS.source}"
    either.make().write(log.batch(0, 1))
    before = noted_of(either.make(), name)
    either.make().write(log.batch(1, 2))
    output = either.make()
    place = noted_of(output, name)
    assert still_has(output, name, place)
    table = DeltaTable(output.table_path("shop", ORDERS.source))
    table.delete("id = 1")
    table.restore(version_of(place))
    assert still_has(output, name, place), "to what it was when it was last written"
    table.restore(version_of(before))
    again = either.make()
    assert noted_of(again, name).pair == place.pair
    assert not still_has(again, name, place)


def version_of(place):
    return int(place.mark.split()[0])


def without_log(table):
    """Old commits are removed from its log, as upkeep of any engine does."""
    table.optimize.compact()
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table = DeltaTable(table.table_uri)
    long_ago = time.time() - 30 * 3600
    for file in Path(table.table_uri.removeprefix("file://"), "_delta_log").iterdir():
        os.utime(file, (long_ago, long_ago))
    table.create_checkpoint()
    table.cleanup_metadata()


def begun(harness):
    """An output, how far it has come, and its table."""
    log, name = log_of(*range(5)), f"shop/{ORDERS.source}"
    output = harness.make()
    for at in range(5):
        output.write(log.batch(at, at + 1))
    return noted_of(output, name), DeltaTable(output.table_path("shop", ORDERS.source))


def test_a_table_that_was_restored_is_missed_after_its_log_was_cleaned_too(either):
    place, table = begun(either)
    table.restore(version_of(place) - 2)
    without_log(table)
    assert not still_has(either.make(), f"shop/{ORDERS.source}", place)


def test_a_table_whose_files_others_joined_is_not_missed_after_its_log_was_cleaned(either):
    place, table = begun(either)
    without_log(table)
    assert still_has(either.make(), f"shop/{ORDERS.source}", place)


def test_a_history_from_which_old_rows_were_removed_is_not_missed(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    place, table = begun(harness)
    table.delete("id < 3")
    without_log(table)
    assert still_has(harness.make(), f"shop/{ORDERS.source}", place)


def test_snapshot_makes_a_table_that_is_gone_again(mirror):
    log = log_of(1)
    mirror.make().write(log.batch(0, 1))
    shutil.rmtree(mirror.make().table_path("shop", ORDERS.source))
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(1), order(7)])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    mirror.make().write(log.batch(1, 2))
    mirror.make().write(log.batch(2, len(log.entries)))
    assert ids(mirror) == [1, 7]


def test_mirror_that_would_lack_its_first_rows_is_refused(mirror):
    log = log_of(1, 2)
    with pytest.raises(UnsupportedFeature, match="from SCN 1 on, without the rows from before"):
        mirror.make().write(log.batch(1, 2))


def test_history_may_begin_anywhere(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    harness.make().write(log_of(1, 2).batch(1, 2))
    assert ids(harness) == [2]


def test_broken_log_of_a_table_is_an_error_with_the_way_out(either):
    either.make().write(log_of(1, 2).batch(0, 1))
    path = Path(either.make().table_path("shop", ORDERS.source))
    for file in (path / "_delta_log").glob("*.json"):
        file.write_text("{not json")
    with pytest.raises(CorruptData, match="Restore the folder"):
        either.make().write(log_of(1, 2).batch(1, 2))


@pytest.mark.parametrize("left", [[], ["_commit_5e0c.json.tmp"]], ids=["nothing", "an unfinished commit"])
def test_a_kill_while_a_table_is_created_is_no_damage(either, left):
    log = Path(either.make().table_path("shop", ORDERS.source)) / "_delta_log"
    log.mkdir(parents=True)
    for name in left:
        (log / name).write_text('{"commitInfo')
    either.make().write(log_of(1, 2).batch(0, 2))
    assert ids(either) == [1, 2]


def test_a_table_that_has_lost_its_log_is_an_error_with_the_way_out(either):
    either.make().write(log_of(1, 2).batch(0, 1))
    for file in (Path(either.make().table_path("shop", ORDERS.source)) / "_delta_log").iterdir():
        file.unlink()
    with pytest.raises(CorruptData, match="Restore"):
        either.make().write(log_of(1, 2).batch(1, 2))


def test_missing_file_of_a_mirror_is_an_error_and_commits_nothing(mirror):
    log = log_of(1)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    mirror.make().write(log.batch(0, 1))
    path = Path(mirror.make().table_path("shop", ORDERS.source))
    version = versions(mirror)
    for file in path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(CorruptData, match=r"Nothing was committed\. Restore"):
        mirror.make().write(log.batch(1, 3))
    assert versions(mirror) == version


def test_table_of_another_source_or_program_is_refused(tmp_path):
    harness = DeltaHarness(tmp_path, "mirror")
    path = Path(harness.make().table_path("shop", ORDERS.source))
    write_deltalake(path, pa.table({"id": [1]}))
    with pytest.raises(UnsupportedFeature, match="did not make"):
        harness.make().write(log_of(1).batch(0, 1))


def test_two_sources_never_share_a_folder(mirror):
    log = log_of(1)
    log.begin().insert(TableSchema("archive.orders", ORDERS.columns, ORDERS.key), order(1))
    with pytest.raises(ConfigError, match=r"archive.orders and shop/main.orders would both be"):
        mirror.make().write(log.batch(0, 2))


def test_renamed_pipeline_does_not_write_over_rows_whose_place_it_does_not_know(mirror):
    mirror.make().write(log_of(1).batch(0, 1))
    output = mirror.make()
    output.context = type(output.context)("renamed", "copy", output.context.folder)
    with pytest.raises(UnsupportedFeature, match="renamed pipeline"):
        output.write(log_of(1, 2).batch(0, 2))


def test_template_that_names_something_else_is_a_configuration_error(tmp_path):
    harness = DeltaHarness(tmp_path, "mirror", path="lake/{tabel}")
    with pytest.raises(ConfigError, match=r"\{physical\}, \{db\} and \{table\}"):
        harness.make().write(log_of(1).batch(0, 1))


def test_options_say_their_units_and_bounds():
    with pytest.raises(ValueError, match="compact_every_commits"):
        DeltaConfig(mode="mirror", path="x", compact_every_commits=0, **FROM)


def test_two_pipelines_in_one_folder_do_not_forget_each_others_tables(tmp_path):
    log = log_of(1, 2)
    outputs = [
        ByTasks(DeltaConfig(mode="mirror", path="lake/{physical}", **FROM), context(tmp_path, pipeline))
        for pipeline in ("one", "two")
    ]
    for number, output in enumerate(outputs):
        output.open()
        output.write(replace(log.batch(0, 1), physical=f"shop{number}"))
    for number, output in enumerate(outputs):
        output.write(replace(log.batch(1, 2), physical=f"shop{number}"))
        output.close()
        assert [*output.tables()] == [f"shop{number}/main.orders"]
