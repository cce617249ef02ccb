"""Real pipelines whose targets, and whose ledgers with them, are in an object store."""

import os
import signal
import subprocess
import sys

import pytest
from deltalake import DeltaTable

from databus.core import AccessDenied, ServiceUnavailable
from databus.pipeline import compare, load_pipeline, run, validate
from tests.pipeline.projects import Project
from tests.stores.store import BUCKET, KEY, SECRET
from tests.stores.test_outputs import arrow_rows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

RUN_S_MAX = 120.0
CODE = "import sys; from databus.pipeline import run; sys.exit(run(sys.argv[1], once=True))"
TABLES = {"customers": "id", "orders": "id", "stock": "product_id"}


def sections(prefix):
    return f"""
    spark:
      master: local[2]
      settings: {{spark.driver.memory: 1g, spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1"}}
    run: {{retries_max: 0}}
    storage:
      s3:
        endpoint: ${{STORE_ENDPOINT}}
        region: eu-central-1
        access_key_id: ${{STORE_KEY}}
        secret_access_key: ${{STORE_SECRET}}
    outputs:
      copy: {{type: delta, from: shop, mode: mirror, lane: lake, path: 's3://{BUCKET}/{prefix}/copy'}}
      history: {{type: delta, from: shop, mode: history, lane: lake, path: 's3a://{BUCKET}/{prefix}/history/{{physical}}/{{table}}'}}
      files: {{type: files, from: shop, lane: lake, path: 's3://{BUCKET}/{prefix}/files'}}
    """


@pytest.fixture
def prefix(request):
    return request.node.name


@pytest.fixture
def project(tmp_path, store, prefix, monkeypatch):
    for name, value in (("ENDPOINT", store.endpoint), ("KEY", KEY), ("SECRET", SECRET)):
        monkeypatch.setenv(f"STORE_{name}", value)
    return Project(tmp_path, sections(prefix))


def assert_all_is_there(project, store, prefix):
    """Read by others: the engine with its own options, and Arrow's own client."""
    root = f"s3://{BUCKET}/{prefix}"
    for table, key in TABLES.items():
        expected = project.select(f"SELECT {key} FROM {table}")
        options = store.engine_options
        copy = DeltaTable(f"{root}/copy/{table}", storage_options=options).to_pyarrow_table()
        assert sorted((row[key],) for row in copy.to_pylist()) == sorted(expected)
        history = DeltaTable(f"{root}/history/shop/{table}", storage_options=options).to_pyarrow_table().to_pylist()
        files = arrow_rows(store, f"{prefix}/files/{table}")
        for rows in (history, files):
            pairs = [(row["_commit_version"], row["_seq"]) for row in rows]
            assert len(pairs) == len(set(pairs))
            alive = {}
            for row in sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"])):
                alive[row[key]] = row["_change_type"] in ("insert", "update_postimage")
            assert {(each,) for each, is_alive in alive.items() if is_alive} == set(expected)
    found = compare(load_pipeline(project.path), "copy", wait_ms_max=5_000)
    assert found.is_identical, found.details()


def assert_no_secret(project):
    for path in project.state.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def failures(events):
    return {each["error"] for each in events if each["event"] == "failed"}


def assert_stops(project, spark, error, said):
    assert {said in each.message for each in validate(project.path)} == {True}
    assert validate(project.path, offline=True) == []
    events = []
    assert run(project.path, once=True, session=spark, on_event=events.append) == error.exit_code
    assert failures(events) == {error.__name__}
    assert SECRET not in str(events)


def assert_dies(project, point):
    log = project.folder / "pipeline.log"
    with log.open("wb") as said:
        command = [sys.executable, "-c", CODE, str(project.path)]
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "DATABUS_CRASH_AT": point})
    assert process.wait(RUN_S_MAX) == -signal.SIGKILL, log.read_text()[-3000:]
    assert SECRET not in log.read_text()


def test_wrong_keys_a_store_that_is_away_and_a_kill_lose_nothing_and_repeat_nothing(
    project, store, prefix, spark, monkeypatch, refusing
):
    """In one test, since each run of a pipeline takes seconds."""
    assert validate(project.path) == []
    project.once(spark)
    project.work(20)
    with monkeypatch.context() as patch:
        patch.setenv("STORE_ENDPOINT", refusing)
        assert_stops(project, spark, AccessDenied, "does not let us in")
        patch.setenv("STORE_ENDPOINT", "http://127.0.0.1:1")
        assert_stops(project, spark, ServiceUnavailable, "the store does not answer")
    assert_dies(project, "delta.mirror.after_commit")
    project.work(10)
    project.once(spark)
    assert_all_is_there(project, store, prefix)
    assert_no_secret(project)
    assert not (project.folder / "s3:").exists()
