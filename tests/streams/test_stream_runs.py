"""A pipeline into a process, as users run it."""

import json
from typing import Any

import pytest

from databus.core import FatalError
from databus.pipeline._handle import OutputHandle
from tests.http.test_http_runs import IN_PARTS
from tests.pipeline.projects import Project
from tests.streams.support import KEEP, kept


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
