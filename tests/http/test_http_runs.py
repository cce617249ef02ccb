"""Pipelines into a web hook, as users run them."""

import json
import threading
from typing import Any

import pytest

from databus.core import FatalError
from databus.pipeline import OutputLetters, load_pipeline, status_of
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.running._health import render_pipeline_metrics
from tests.commands import databus
from tests.http.receiver import Receiver
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

IN_PARTS = HEAD.replace("tables: [shop/main.*]", "tables: [shop/main.*], partitions: 2, max_rows_per_trigger: 300")


def sections(receiver: Receiver, **options: Any) -> str:
    given = {"type": "http", "from": "shop", "url": receiver.url, **options}
    files = {"type": "files", "from": "shop", "path": "out", "format": "json"}
    return f"outputs: {json.dumps({'hook': given, 'copy': files})}"


def died(*_: object) -> None:
    raise FatalError("killed before the ledger")


def assert_is_all_that_happened(project: Project, receiver: Receiver) -> None:
    """Without repeats, the changes of a key are in order, and what they add up to is what the database has."""
    seen: dict[tuple[int, int], Any] = {}
    last: dict[int, tuple[int, int]] = {}
    alive: dict[int, str] = {}
    for row in receiver.changes:
        pair = row["_commit_version"], row["_seq"]
        if row["_source"] != "shop/main.orders" or pair in seen:
            continue
        seen[pair] = row
        assert last.get(row["id"], (0, 0)) < pair
        last[row["id"]] = pair
        if row["_change_type"] in ("insert", "update_postimage"):
            alive[row["id"]] = row["status"]
        else:
            alive.pop(row["id"])
    assert sorted(alive.items()) == sorted(project.select("SELECT id, status FROM orders"))


def test_a_receiver_gets_every_change_in_order_whatever_happens_to_runs(
    tmp_path: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        project = Project(tmp_path, sections(receiver, buckets=2, request_rows_max=50), head=IN_PARTS)
        project.work(80)
        events = project.once(spark)
        assert {event["driver_row_bytes"] for event in events if event["event"] == "batch"} == {0}
        project.work(60)
        before = len(receiver.seen)
        with monkeypatch.context() as patch:
            patch.setattr(OutputHandle, "advance", died)
            with pytest.raises(AssertionError, match="killed before the ledger"):
                project.once(spark)
        sent = receiver.seen[before:]
        project.once(spark)
        assert_is_all_that_happened(project, receiver)
        again = {request.headers["idempotency-key"]: request.body for request in receiver.seen[before + len(sent) :]}
        for request in sent:
            assert again[request.headers["idempotency-key"]] == request.body


def test_a_target_that_hangs_delays_neither_other_outputs_nor_the_end(tmp_path: Any, spark: Any) -> None:
    over = threading.Event()
    with Receiver(lambda request: over.wait(60) and None) as receiver:
        project = Project(tmp_path, sections(receiver, request_ms_max=60_000), head=HEAD)
        with project.running(spark) as running:
            running.wait_for(lambda: receiver.seen, "a request")
            running.event(event="batch", output="copy")
            before = len(list((tmp_path / "out" / "orders").glob("*.jsonl")))
            project.work(30)
            running.wait_for(lambda: len(list((tmp_path / "out" / "orders").glob("*.jsonl"))) > before, "rows in files")
            assert not any(event.get("output") == "hook" and event["event"] == "batch" for event in running.events)
        over.set()


def test_the_status_and_the_metrics_of_a_run_say_how_many_dead_letters_there_are(tmp_path: Any, engine: Any) -> None:
    refused = b'"_source":"shop/main.orders","id":1,'
    with Receiver(lambda request: 422 if refused in request.body else None) as receiver:
        project = Project(tmp_path, sections(receiver, on_error="dead_letter"))
        project.work(20)
        project.once(engine)
    status = status_of(project.path)
    assert status is not None
    count = sum(file.count for file in OutputLetters(load_pipeline(project.path), "hook").files())
    assert count > 0
    assert {name: each["dead_letters"] for name, each in status["outputs"].items()} == {"hook": count, "copy": None}
    assert f'databus_output_dead_letters{{output="hook"}} {count:.1f}' in render_pipeline_metrics(status).decode()
    told = databus("status", str(project.path)).stdout
    assert f"hook: {count} dead letters; `databus dead-letters show {project.path} hook` says why" in told
