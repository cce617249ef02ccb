"""Kill -9 of the pipeline where it hurts most: nothing lost, nothing twice, the mirror identical."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from databus.pipeline import compare, load_pipeline
from tests.pipeline.projects import Project

pytestmark = pytest.mark.spark

RUN_S_MAX = 120.0
POINTS = (
    "pipeline.batch.before",
    "pipeline.batch.after",
    "delta.mirror.before_commit",
    "delta.mirror.after_commit",
    "delta.history.before_commit",
    "delta.history.after_commit",
)
SECTIONS = """
spark:
  master: local[2]
  settings: {spark.driver.memory: 1g, spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1"}
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
  history: {type: delta, from: shop, mode: history, path: lake/history}
"""
CODE = "import sys; from databus.pipeline import run; sys.exit(run(sys.argv[1], once=True))"


def start(project, **env):
    log = (project.folder / "pipeline.log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-c", CODE, str(project.path)], stdout=log, stderr=log, env={**os.environ, **env}
        )


def finish(project):
    assert start(project).wait(RUN_S_MAX) == 0, (project.folder / "pipeline.log").read_text()[-3000:]
    found = compare(load_pipeline(project.path), "copy", wait_ms_max=5_000)
    assert found.is_identical, found.details()
    for table, key in (("orders", "id"), ("customers", "id"), ("stock", "product_id")):
        project.assert_history_is_whole("lake/history", table, key)


def die_at(project, point):
    process = start(project, DATABUS_CRASH_AT=point)
    told = f"{point} was never passed:\n"
    assert process.wait(RUN_S_MAX) == -signal.SIGKILL, told + (project.folder / "pipeline.log").read_text()[-3000:]


def die_soon_after_start(project, dice):
    """At a random moment of its work, however long Spark took to come up."""
    log, end = project.folder / "pipeline.log", time.monotonic() + RUN_S_MAX
    begun = log.stat().st_size if log.exists() else 0
    process = start(project)
    while process.poll() is None and b"query started" not in log.read_bytes()[begun:] and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(dice.random() * 4)
    process.kill()
    process.wait()


def test_killed_before_and_after_a_commit_it_goes_on_where_its_tables_stand(tmp_path):
    project = Project(tmp_path, SECTIONS)
    for point in ("delta.mirror.after_commit", "delta.history.before_commit"):
        die_at(project, point)
        project.work(20)
    finish(project)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_every_point_and_at_random_moments(tmp_path, seed):
    dice = random.Random(seed)
    project = Project(tmp_path, SECTIONS, seed=seed)
    for cycle in range(int(os.environ.get("CYCLES", "200"))):
        project.work(dice.randrange(40))
        if dice.random() < 0.5:
            process = start(project, DATABUS_CRASH_AT=f"{dice.choice(POINTS)}:{dice.randint(1, 6)}")
            process.wait(RUN_S_MAX)
        else:
            die_soon_after_start(project, dice)
        if cycle % 10 == 9:
            finish(project)
            print(f"{cycle + 1} cycles")  # noqa: T201 - as above
    finish(project)
