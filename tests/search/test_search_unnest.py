"""`unnest` into indices, topics and web hooks: what is left is what SQLite finds in the JSON of its table."""

import json
import random
from typing import Any

import pytest

from databus.core import FatalError
from databus.pipeline.engine._handle import OutputHandle
from tests.http.receiver import Receiver
from tests.kafka.support import messages_in, new_prefix
from tests.pipeline.projects import Project
from tests.pipeline.test_unnest_run import BASKETS, LINES, changes

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

HEAD = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus, tables: [shop/main.baskets], max_rows_per_trigger: 7}}
"""
FILTERS = """
filters:
  lines: {type: unnest, from: shop, tables: [baskets], column: lines, columns: {sku: string, n: int32}, keep: [who]}
  named: {type: rename, from: lines, tables: [main.baskets], columns: {sku: article}}
  some: {type: where, from: named, where: "article <> 'b'"}
"""


def outputs(server: Any, kafka: Any, hook: str, prefix: str) -> str:
    index = {"type": "opensearch", "url": server.url, "buckets": 2}
    topics = {
        "type": "kafka",
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "topic": f"{prefix}.{{table}}",
        "control_topic": f"{prefix}.control",
        "create_topics": {"partitions": 2},
        "buckets": 2,
    }
    made = {
        "index": {**index, "from": "named", "index": "all-{table}"},
        "part": {**index, "from": "some", "index": "part-{table}"},
        "topics": {**topics, "from": "named"},
        "hook": {"type": "http", "url": hook, "from": "named", "format": "debezium", "buckets": 2},
    }
    return FILTERS + f"outputs: {json.dumps(made)}"


def died(*_: object) -> None:
    raise FatalError("killed before the ledger")


def replayed(changes: list[Any], lives: dict[Any, Any]) -> list[Any]:
    """What is left of each row by envelopes, which may come twice."""
    for change in changes:
        for image in (change["before"], change["after"]):
            if image is not None:
                lives.pop((image["id"], image["ordinal"]), None)
        if change["after"] is not None:
            lives[change["after"]["id"], change["after"]["ordinal"]] = change["after"]
    return list(lives.values())


def told(rows: Any) -> list[Any]:
    return sorted(((r["id"], r["who"], r["ordinal"], r["article"], r["n"]) for r in rows), key=repr)


def left_in(kafka: Any, topic: str) -> list[Any]:
    lives: dict[Any, Any] = {}
    for part in messages_in(kafka, topic):
        for message in part:
            row = json.loads(message.value())
            if "_control" in row:
                continue
            lives[row["id"], row["ordinal"]] = row if row["_change_type"] in ("insert", "update_postimage") else None
    return [row for row in lives.values() if row is not None]


@pytest.mark.nightly
def test_what_is_left_of_each_row_is_what_the_database_finds_in_its_documents(
    spark: Any, tmp_path: Any, search_servers: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Baskets shrink, grow, change keys and go; transactions come in parts; a run is killed before its ledgers."""
    server, prefix, rng = search_servers("opensearch-2.19"), new_prefix(), random.Random(seed)
    server.ask("DELETE", "/_all")
    with Receiver() as hook:
        project = Project(tmp_path, outputs(server, kafka, hook.url, prefix), head=HEAD)
        project.execute(BASKETS, *changes(rng, 20))
        project.once(spark)
        for _ in range(4):
            project.execute(*changes(rng, 12))
        with monkeypatch.context() as patch:
            patch.setattr(OutputHandle, "advance", died)
            with pytest.raises(AssertionError, match="killed before the ledger"):
                project.once(spark)
        project.execute(*changes(rng, 30))
        project.once(spark)
        wanted = project.select(LINES)
        assert told(server.documents("all-baskets").values()) == wanted
        assert told(left_in(kafka, f"{prefix}.baskets")) == wanted
        assert told(server.documents("part-baskets").values()) == [row for row in wanted if row[3] != "b"]
        assert told(replayed(hook.changes, {})) == wanted
        assert server.documents("databus-parts") == {}
