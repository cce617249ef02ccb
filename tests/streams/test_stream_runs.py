"""A pipeline into a process, as users run it."""

import json
from typing import Any

import pytest

from databus.core import FatalError
from databus.pipeline import validate
from databus.pipeline.engine._handle import OutputHandle
from tests.http.test_http_runs import IN_PARTS
from tests.pipeline.projects import Project
from tests.streams.support import KEEP, kept

pytestmark = pytest.mark.usefixtures("relay_in_thread")


def died(*_: object) -> None:
    raise FatalError("killed before the ledger")


def test_a_process_gets_every_change_in_order_though_a_run_dies_before_its_ledger(
    tmp_path: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"type": "stream", "from": "shop", "command": KEEP["exit"]}
    project = Project(tmp_path, f"outputs: {json.dumps({'lines': given})}", head=IN_PARTS)
    project.work(50)
    project.once(spark)
    project.work(30)
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(spark)
    project.once(spark)
    alive: dict[int, str] = {}
    seen = (0, 0)
    for row in map(json.loads, kept(tmp_path)):
        pair = row["_commit_version"], row["_seq"]
        if row["_source"] != "shop/main.orders" or pair <= seen:
            continue
        seen = pair
        if row["_change_type"] in ("insert", "update_postimage"):
            alive[row["id"]] = row["status"]
        else:
            alive.pop(row["id"])
    assert sorted(alive.items()) == sorted(project.select("SELECT id, status FROM orders"))


def test_an_output_that_gets_another_name_is_warned_of_before_it_writes_all_again(tmp_path: Any, engine: Any) -> None:
    given = {"type": "stream", "from": "shop", "command": KEEP["exit"]}
    other = {"type": "stream", "from": "shop", "command": ["sh", "-c", "cat > /dev/null"]}
    project = Project(tmp_path, f"outputs: {json.dumps({'lines': given})}", head=IN_PARTS)
    project.once(engine)
    rows = len(kept(tmp_path))
    project.write(f"outputs: {json.dumps({'other': other})}", head=IN_PARTS)
    assert not validate(project.path), "an output with other options is another one"
    project.write(f"outputs: {json.dumps({'sent': {**given, 'trigger_ms': 5}})}", head=IN_PARTS)
    (warned,) = validate(project.path)
    assert (warned.path, warned.is_warning) == ("outputs.sent", True)
    assert "has the options of lines, which this file no longer has" in warned.message
    assert "what lines has written is written again" in warned.message
    assert "give it that name back; or have its input say `starting_version: " in warned.message
    events = project.once(engine)
    said = [event["event"] for event in events]
    assert str(warned) in {event.get("message") for event in events[: said.index("running")]}
    assert len(kept(tmp_path)) == 2 * rows
    assert not validate(project.path), "it has a place of its own now"


def test_a_pipeline_that_gets_another_name_is_warned_of_before_it_writes_all_again(tmp_path: Any, engine: Any) -> None:
    sections = f"outputs: {json.dumps({'lines': {'type': 'stream', 'from': 'shop', 'command': KEEP['exit']}})}"
    project = Project(tmp_path, sections, head=IN_PARTS)
    project.once(engine)
    rows = len(kept(tmp_path))
    other = IN_PARTS.replace("name: shop", "name: store")
    project.write(sections, head=other)
    (warned,) = validate(project.path)
    assert (warned.path, warned.line, warned.is_warning) == ("name", 1, True)
    assert "pipeline store is new, and has the same outputs.lines as shop, which no file here" in warned.message
    assert "what shop has written is written again" in warned.message
    (tmp_path / "other.yml").write_text(IN_PARTS + sections)
    assert not validate(project.path), "that one is a pipeline of its own"
    (tmp_path / "other.yml").unlink()
    events = project.once(engine)
    said = [event["event"] for event in events]
    assert str(warned) in {event.get("message") for event in events[: said.index("running")]}
    assert len(kept(tmp_path)) == 2 * rows
    assert not validate(project.path), "it has a place of its own now"
