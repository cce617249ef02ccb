"""Copies behind filters of what arrives without first images: a row that leaves the condition leaves the copy."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from databus.pipeline import run
from databus.sinks import read_delta
from tests.kafka_source.support import Topics
from tests.kafka_source.test_envelopes import debezium

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

PIPELINE = """\
name: orders
sources:
  events:
    type: kafka
    topics: ["{topic}"]
    format: debezium
    origin_columns: false
    schemas: {{shop.orders: {{columns: {{id: int64, name: string}}, key: [id]{nulls}}}}}
    kafka: {{bootstrap.servers: "{servers}"}}
inputs: {{events: {{type: databus}}}}
filters: {{open: {filter}}}
outputs:
  copy: {{type: delta, from: open, mode: mirror, path: lake/copy}}
  history: {{type: delta, from: open, mode: history, path: lake/history}}
"""
WHERE = {"type": "where", "where": "name = 'open'"}


def order(number: int, name: str | None) -> dict[str, Any]:
    return {"id": number, "name": name}


def once(path: Any, spark: Any) -> tuple[int, list[Any]]:
    events: list[Any] = []
    return run(path, once=True, session=spark, on_event=events.append), events


def copied(path: Any) -> list[tuple[Any, ...]]:
    found = read_delta(path / "lake/copy/orders", ["id", "name"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def written(tmp_path: Any, topics: Topics, filter_: dict[str, Any], messages: Sequence[str | None]) -> tuple[Any, str]:
    topic, path = topics.create(), tmp_path / "databus.yml"
    told = json.dumps({**filter_, "from": "events"})
    path.write_text(PIPELINE.format(topic=topic, servers=topics.bootstrap, filter=told, nulls=""))
    topics.write(topic, messages)
    return path, topic


def test_a_row_that_leaves_the_condition_leaves_the_copy(tmp_path: Any, spark: Any, kafka: Any) -> None:
    """In the same batch, in a later one, and where a delete has the key alone, as of PostgreSQL's default identity."""
    topics = Topics(kafka)
    begun = [debezium("c", None, order(number, "open")) for number in range(1, 6)]
    begun += [debezium("u", None, order(1, "done")), debezium("c", None, order(6, "done"))]
    path, topic = written(tmp_path, topics, WHERE, begun)
    assert once(path, spark)[0] == 0
    assert copied(tmp_path) == [(2, "open"), (3, "open"), (4, "open"), (5, "open")]
    later = [
        debezium("u", None, order(2, "done")),
        debezium("d", order(3, None), None),
        None,
        debezium("u", None, order(6, "open")),
        debezium("u", order(4, "open"), order(4, "done")),
    ]
    topics.write(topic, later)
    topics.write(topic, [None], key=json.dumps({"id": 5}))  # what compaction leaves of a delete
    assert once(path, spark)[0] == 0
    assert copied(tmp_path) == [(6, "open")]
    rows = read_delta(tmp_path / "lake/history/orders", ["_commit_version", "_seq", "_change_type", "id", "name"])
    alive: dict[int, str] = {}
    for row in sorted(rows.to_pylist(), key=lambda row: (row["_commit_version"], row["_seq"])):
        if row["_change_type"] in ("insert", "update_postimage"):
            alive[row["id"]] = row["name"]
        else:
            alive.pop(row["id"], None)
    assert alive == {6: "open"}
    assert "done" not in rows.column("name").to_pylist(), "what the filter leaves out is shown to nobody"


AROUND = """\
filters:
  shown: {type: sql, from: events, select: "SELECT id, concat(name, '!') AS word, name FROM shop.orders"}
  same: {type: python, from: shown, function: "same.py:same", keeps_rows: true}
  open: {type: where, from: same, where: "word = 'open!'"}
  short: {type: sql, from: open, select: "SELECT name, id FROM shop.orders"}
outputs: {copy: {type: delta, from: short, mode: mirror, path: lake/copy}}
"""


def test_so_it_does_between_filters_of_spark_s(tmp_path: Any, spark: Any, kafka: Any) -> None:
    topics = Topics(kafka)
    messages = [debezium("c", None, order(number, "open")) for number in range(1, 5)]
    path, topic = written(tmp_path, topics, WHERE, messages)
    (tmp_path / "same.py").write_text("def same(rows):\n    return rows\n")
    path.write_text(path.read_text().partition("filters:")[0] + AROUND)
    assert once(path, spark)[0] == 0
    topics.write(topic, [debezium("u", None, order(1, "done")), debezium("d", order(2, None), None)])
    assert once(path, spark)[0] == 0
    assert copied(tmp_path) == [(3, "open"), (4, "open")]


def test_a_run_stops_at_a_filter_of_spark_s_that_would_leave_rows_in_the_copy(
    tmp_path: Any, spark: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `validate` cannot know the tables, as of a relay elsewhere."""
    monkeypatch.setattr("databus.pipeline.checks._check_sources.check_definitions", lambda *_: [])
    filter_ = {"type": "sql", "table": "shop.orders", "where": "name = 'open'"}
    path, _ = written(tmp_path, Topics(kafka), filter_, [debezium("c", None, order(1, "open"))])
    code, events = once(path, spark)
    assert code != 0
    assert any("nothing would remove a row that this filter leaves out" in str(event) for event in events)
