"""A topic that somebody removes takes its messages along: the output says so, and does not fill another one."""

import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from databus.pipeline import run
from tests.kafka.support import new_prefix, rows_in
from tests.kafka.test_kafka_runs import sections
from tests.pipeline.projects import WAIT_S, Project

CHANGE = "UPDATE orders SET total_cents = total_cents + 1"


def remove_topic(server: Any, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.delete_topics([name])[name].result(30)
    deadline = time.monotonic() + WAIT_S
    while name in admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # brokers do not tell when a topic is gone


def pipeline_of(server: Any, prefix: str, **options: Any) -> str:
    return sections(server, prefix, request_ms_max=10_000, **options)


def failures(events: Any) -> list[str]:
    return [event["message"] for event in events if event["event"] == "failed"]


def test_a_topic_removed_between_two_runs_stops_the_output_until_it_may_go_on(
    tmp_path: Any, engine: Any, kafka: Any
) -> None:
    prefix, events = new_prefix(), []
    project = Project(tmp_path, pipeline_of(kafka, prefix))
    project.once(engine)
    remove_topic(kafka, f"{prefix}.orders")
    project.execute(CHANGE)
    assert run(project.path, once=True, session=engine, on_event=events.append) != 0
    (told,) = failures(events)
    assert f"topic {prefix}.orders was removed" in told
    assert "`databus snapshot shop main.orders`" in told
    project.write(pipeline_of(kafka, prefix, on_gap="continue"))
    project.once(engine)
    orders = len(project.select("SELECT id FROM orders"))
    assert sum(map(len, rows_in(kafka, f"{prefix}.orders"))) == 2 * orders  # an update is two messages; none twice
    project.write(pipeline_of(kafka, prefix))
    project.execute(CHANGE)
    project.once(engine)
    assert sum(map(len, rows_in(kafka, f"{prefix}.orders"))) == 4 * orders


@pytest.mark.nightly
def test_a_topic_removed_while_it_is_written_stops_the_output(tmp_path: Any, engine: Any, kafka: Any) -> None:
    """Brokers make a topic by themselves for who writes to one that is gone (`auto.create.topics.enable`)."""
    prefix = new_prefix()
    project = Project(tmp_path, pipeline_of(kafka, prefix))
    with project.running(engine) as running:
        running.event(event="batch")
        running.wait_for(lambda: rows_in(kafka, f"{prefix}.orders"), "the orders")
        remove_topic(kafka, f"{prefix}.orders")
        project.execute(CHANGE)
        running.thread.join(WAIT_S)
        assert not running.thread.is_alive(), running.events
    assert any(f"topic {prefix}.orders was removed" in told for told in failures(running.events)), running.events


def test_a_table_without_a_row_has_no_topic_and_none_is_missed(tmp_path: Any, engine: Any, kafka: Any) -> None:
    prefix = new_prefix()
    project = Project(tmp_path, pipeline_of(kafka, prefix, controls="none", on_schema_change="follow"))
    project.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY)")
    project.once(engine)
    project.once(engine)
    project.execute("INSERT INTO notes VALUES (1)")
    project.once(engine)
    assert [row["id"] for part in rows_in(kafka, f"{prefix}.notes") for row in part] == [1]
