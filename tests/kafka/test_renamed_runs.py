"""What goes on under another name after it was killed: a query in its first batch, an output, a pipeline."""

import json
from typing import Any

import pytest

from databus.disk import LocalLocation
from databus.pipeline import load_pipeline, rename_output, rename_pipeline
from databus.pipeline.engine import Ledger
from databus.pipeline.engine._handle import OutputHandle
from databus.sinks.kafka._output import KafkaOutput
from tests.kafka.support import messages_in, new_prefix, rows_in
from tests.kafka.test_kafka_runs import TABLES, assert_readers_see_what_sql_selects, died, sections
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")


def pairs_in(server: Any, prefix: str) -> list[tuple[int, int]]:
    return sorted(
        (row["_commit_version"], row["_seq"])
        for table in TABLES
        for part in rows_in(server, f"{prefix}.{table}")
        for row in part
    )


def test_what_the_first_batch_from_a_version_on_has_written_counts_for_a_query_that_is_renamed(
    tmp_path: Any, spark: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, prefix = new_prefix(), new_prefix()
    project = Project(tmp_path, sections(kafka, before))
    project.once(spark)
    version = max(pairs_in(kafka, before))[0] + 1
    from_there = HEAD.replace("{type: databus,", f"{{type: databus, starting_version: {version},")
    project.write(sections(kafka, prefix).replace("topics:", "more:"), head=from_there)
    project.work(60)
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(spark)
    written = pairs_in(kafka, prefix)
    assert written
    project.work(20)
    named = sections(kafka, prefix, **{"from": "store"}).replace("topics:", "more:")
    project.write(named, head=from_there.replace("inputs: {shop:", "inputs: {store:"))
    project.once(spark)
    found = pairs_in(kafka, prefix)
    assert len({*found}) == len(found), "nothing comes twice"
    assert len(found) > len(written)
    assert found[0][0] >= version


@pytest.mark.nightly
@pytest.mark.parametrize("killed", ["before the records", "between records and ledger", "before the old ledger goes"])
def test_an_output_and_then_its_pipeline_go_on_under_other_names_where_their_buckets_stand(
    tmp_path: Any, spark: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """Its last batch is in the topics and not in the ledger."""
    prefix = new_prefix()
    project = Project(tmp_path, sections(kafka, prefix))
    project.once(spark)
    project.work(40)
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(spark)
    text = sections(kafka, prefix).replace("{topics:", "{events:")
    project.write(text)
    with monkeypatch.context() as patch:
        kill(patch, killed)
        with pytest.raises(KeyboardInterrupt):
            rename_output(load_pipeline(project.path), "topics", "events")
    rename_output(load_pipeline(project.path), "topics", "events")
    project.write(text, head=HEAD.replace("name: shop", "name: store"))
    (found,) = rename_pipeline(load_pipeline(project.path), "shop")
    assert found.records == 2
    assert {tuple(json.loads(key)[:2]) for key in keys_in(kafka, f"{prefix}.control")} == {("store", "events")}
    project.work(20)
    project.once(spark)
    assert_readers_see_what_sql_selects(project, kafka, prefix)


def kill(patch: pytest.MonkeyPatch, when: str) -> None:
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    if when == "before the records":
        patch.setattr(KafkaOutput, "take_name", end)
    elif when == "between records and ledger":
        patch.setattr(Ledger, "come_from", end)
    else:
        patch.setattr(LocalLocation, "remove", end)


def keys_in(server: Any, topic: str) -> set[bytes]:
    """Of the records that a control topic holds, once it is compacted."""
    (messages,) = messages_in(server, topic)
    last = {message.key(): message.value() for message in messages}
    return {key for key, value in last.items() if value is not None}
