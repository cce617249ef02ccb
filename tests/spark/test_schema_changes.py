"""The typed shape never reads across a change of the table's schema; controls are shown, passed over, or stop it."""

import json
from pathlib import Path
from typing import Any

import pytest

from databus.core import SchemaChanged, UnsupportedFeature
from databus.schema import Column, TableSchema
from tests.spark.conftest import StartRelay, drain, load_batch, load_stream, offsets_in, wait_until_captured
from tests.spark.script import control, insert, schema, transaction, write

pytestmark = pytest.mark.spark

OLD = TableSchema("main.t", (Column("id", "int32"), Column("name", "string")), ("id",))
NEW = TableSchema("main.t", (Column("id", "int64"), Column("name", "string"), Column("more", "bool")), ("id",))
OTHER = TableSchema("main.t", (Column("id", "string"), Column("name", "string")), ("id",))

BEFORE = [
    transaction(schema(OLD)),
    transaction(insert(OLD, id=1, name="a")),
    transaction(insert(OLD, id=2, name="b")),
]
AFTER = [
    transaction(insert(OLD, id=3, name="c"), schema(NEW, **{"class": 2}), insert(NEW, id=4, more=True)),
    transaction(insert(NEW, id=1 << 40, name="e", more=False)),
]  # fmt: skip
TYPED = {"shape": "typed", "sources": "main.t"}
FULL = {**TYPED, "meta": "full"}


def _control_of(row: dict[str, Any]) -> dict[str, Any] | None:
    return None if row["_control"] is None else json.loads(row["_control"])


def test_a_running_query_stops_before_the_change_and_its_restart_begins_with_it(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    script = tmp_path / "script.jsonl"
    relay = start_relay({"shop": write(script, BEFORE)}, len(BEFORE))
    loaded_before = load_stream(spark, relay, **FULL)
    assert drain(loaded_before, tmp_path / "c").rows.column("id").to_pylist() == [1, 2]
    relay.stop()
    write(script, [*BEFORE, *AFTER])
    relay.start()
    wait_until_captured(relay.url, "shop", 5)

    with pytest.raises(SchemaChanged, match=f"{OLD.fingerprint:016x} to {NEW.fingerprint:016x} at SCN 4"):
        drain(loaded_before, tmp_path / "c")
    stood = list(offsets_in(tmp_path / "c").values())[-1]["sources"]["shop"]
    assert (stood["scn"], stood["seq"]) == (4, 1), "everything before the change has been read, and nothing after"

    rows = drain(load_stream(spark, relay, **FULL), tmp_path / "c").rows.to_pylist()
    assert rows[0]["_change_type"] == "control"
    said = _control_of(rows[0])
    assert said is not None
    assert said["kind"] == "schema"
    assert (rows[0]["id"], rows[0]["_commit_version"], rows[0]["_seq"]) == (None, 4, 2)
    assert [(row["id"], row["more"]) for row in rows[1:]] == [(4, True), (1 << 40, False)]


def test_the_rows_before_the_change_are_read_before_the_query_stops(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    script = tmp_path / "script.jsonl"
    relay = start_relay({"shop": write(script, BEFORE)}, len(BEFORE))
    loaded_before = load_stream(spark, relay, **TYPED)
    relay.stop()
    write(script, [*BEFORE, *AFTER])
    relay.start()
    wait_until_captured(relay.url, "shop", 5)
    seen: list[int] = []
    query = (
        loaded_before.writeStream.foreachBatch(lambda batch, _: seen.extend(row.id for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    with pytest.raises(Exception, match="SchemaChanged"):
        query.awaitTermination(60)
    assert seen == [1, 2, 3]


def test_older_rows_are_read_in_the_schema_of_now_widened_and_with_nulls(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    relay = start_relay({"shop": write(tmp_path / "script.jsonl", [*BEFORE, *AFTER])}, 5)
    stream = drain(load_stream(spark, relay, **TYPED), tmp_path / "c")
    assert {3, 4} not in [set(rows.column("id").to_pylist()) & {3, 4} for rows in stream.batches.values()]
    batch = load_batch(spark, relay, **TYPED).orderBy("id").collect()
    expected = [(1, "a", None), (2, "b", None), (3, "c", None), (4, None, True), (1 << 40, "e", False)]
    assert [(row.id, row.name, row.more) for row in batch] == expected
    assert [(row["id"], row["name"], row["more"]) for row in stream.rows.to_pylist()] == expected


def test_older_rows_that_do_not_fit_the_schema_of_now_are_an_error_and_can_be_read_in_theirs(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    script = write(tmp_path / "script.jsonl", [*BEFORE, transaction(schema(OTHER), insert(OTHER, id="x"))])
    relay = start_relay({"shop": script}, 4)
    with pytest.raises(
        Exception, match=r"UnsupportedFeature: shop/main\.t: rows at SCN 2.*'id' was int32.*starting_version: 4"
    ):
        load_batch(spark, relay, **TYPED).collect()
    old = load_batch(spark, relay, **TYPED, schemaFingerprint=f"{OLD.fingerprint:016x}", endingVersion=3)
    assert [row.id for row in old.orderBy("id").collect()] == [1, 2]
    new = load_batch(spark, relay, **TYPED, startingVersion=4)
    assert [row.id for row in new.collect()] == ["x"]


RENAMED = TableSchema("main.t", (Column("id", "int32"), Column("label", "string")), ("id",))
CITY = TableSchema("main.t", (*RENAMED.columns, Column("city", "string")), ("id",))
MOVED = [
    *BEFORE,
    transaction(schema(RENAMED, renamed={"name": "label"}), insert(RENAMED, id=3, label="c")),
    transaction(schema(CITY, fill={"city": "Bern"}, **{"class": 2}), insert(CITY, id=4, label="d", city="Rome")),
]
MOVED_ROWS = [(1, "a", "Bern"), (2, "b", "Bern"), (3, "c", "Bern"), (4, "d", "Rome")]


def test_older_rows_keep_their_values_through_a_rename_and_hold_what_a_new_column_was_filled_with(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    relay = start_relay({"shop": write(tmp_path / "script.jsonl", MOVED)}, 5)
    stream = drain(load_stream(spark, relay, **TYPED), tmp_path / "c").rows.to_pylist()
    assert [(row["id"], row["label"], row["city"]) for row in stream] == MOVED_ROWS
    batch = load_batch(spark, relay, **TYPED, partitions=3)
    assert [(row.id, row.label, row.city) for row in batch.orderBy("id").collect()] == MOVED_ROWS
    assert batch.where("city = 'Bern'").count() == 3
    assert [row.town for row in batch.selectExpr("id", "city AS town").orderBy("id").collect()] == [
        city for _, _, city in MOVED_ROWS
    ]


def test_each_batch_says_through_which_later_changes_its_rows_have_gone(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    relay = start_relay({"shop": write(tmp_path / "script.jsonl", MOVED)}, 5)
    read = load_stream(spark, relay, **FULL, schemaChanges="ahead", maxRowsPerTrigger=1)
    batches = drain(read, tmp_path / "c").batches
    told = []
    for batch in batches.values():
        rows = sorted(batch.to_pylist(), key=lambda row: (row["_commit_version"], row["_seq"]))
        first = _control_of(rows[0]) or {}
        changes = [tuple(each["pair"]) for each in first["changes"]] if first.get("kind") == "schema_ahead" else []
        told.append(([row["id"] for row in rows if row["_change_type"] != "control"], changes))
    assert told == [([1], [(4, 1), (5, 1)]), ([2], [(4, 1), (5, 1)]), ([3], [(4, 1), (5, 1)]), ([4], [(5, 1)])]


def test_rows_that_cannot_be_made_exact_are_left_out_where_a_snapshot_follows(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    changed = transaction(schema(OTHER, **{"class": 3}), insert(OTHER, id="x"))
    relay = start_relay({"shop": write(tmp_path / "script.jsonl", [*BEFORE, changed])}, 4)
    left = load_batch(spark, relay, **TYPED, inexact="leave_out")
    assert [row.id for row in left.collect()] == ["x"]


def test_a_control_stops_typed_rows_unless_it_is_asked_for_or_ignored(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    truncated = [*BEFORE, transaction(control(OLD, "truncate"), insert(OLD, id=9, name="z"))]
    relay = start_relay({"shop": write(tmp_path / "script.jsonl", truncated)}, 4)
    with pytest.raises(UnsupportedFeature, match=r"(?s)shop/main\.t.*'truncate'.*SCN 4.*meta=full.*controls=ignore"):
        drain(load_stream(spark, relay, **TYPED), tmp_path / "c1")
    with pytest.raises(Exception, match=r"UnsupportedFeature: shop/main\.t: a control of kind 'truncate'"):
        load_batch(spark, relay, **TYPED).collect()
    passed = drain(load_stream(spark, relay, **TYPED, controls="ignore"), tmp_path / "c2")
    assert passed.rows.column("id").to_pylist() == [1, 2, 9]
    full = drain(load_stream(spark, relay, **FULL), tmp_path / "c3").rows.to_pylist()
    assert [(row["_commit_version"], row["_change_type"], row["id"]) for row in full] == [
        (2, "insert", 1), (3, "insert", 2), (4, "control", None), (4, "insert", 9),
    ]  # fmt: skip
    assert _control_of(full[2]) == {"kind": "truncate", "source": "main.t"}
    assert full[2]["_txid"] == "0-4"


def test_another_tables_controls_do_not_concern_a_typed_query(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    other = TableSchema("main.u", (Column("id", "int64"),), ("id",))
    lines = [
        transaction(schema(OLD), schema(other), insert(OLD, id=1, name="a")),
        transaction(control(other, "truncate"), insert(OLD, id=2, name="b")),
    ]
    relay = start_relay({"shop": write(tmp_path / "script.jsonl", lines)}, 2)
    assert drain(load_stream(spark, relay, **TYPED), tmp_path / "c").rows.column("id").to_pylist() == [1, 2]
