"""A pipeline that begins at a version and is killed in its first batch goes on, whatever its query is called then."""

from typing import Any

import pytest

from databus.pipeline.engine._handle import OutputHandle
from tests.kafka.support import new_prefix, rows_in
from tests.kafka.test_kafka_runs import TABLES, died, sections
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
