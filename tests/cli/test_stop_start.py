"""Ctrl-C during `databus run` while Spark starts: it is not waited for, and nothing of it is left."""

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from databus.pipeline import STOP_S_MAX
from tests.cli.terminal import WAIT_S, Terminal
from tests.cli.test_stop import assert_nothing_is_left
from tests.commands import databus

pytestmark = pytest.mark.spark

PIPELINE = """\
name: early
spark: {master: "local[1]"}
inputs: {events: {type: mock, rows_total: 50}}
outputs: {kept: {type: files, from: events, path: out}}
"""
HANGING_JAVA = """\
#!/bin/sh
case "$*" in *org.apache.spark.launcher.Main*) exec {java} "$@" ;; esac
touch {begun}
exec sleep 600
"""


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "databus.yml").write_text(PIPELINE)
    return tmp_path


def java_that(folder: Path, script: str, **named: object) -> Path:
    """A home of Java whose `java` is this script."""
    home = folder / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(script.format(java=os.path.realpath(shutil.which("java") or ""), **named))
    java.chmod(0o755)
    return home


def test_a_java_that_does_not_answer_is_ended_and_named(project, monkeypatch):
    begun = project / "begun"
    monkeypatch.setenv("JAVA_HOME", str(java_that(project, HANGING_JAVA, begun=begun)))
    with Terminal("run", cwd=project) as terminal:
        deadline = time.monotonic() + WAIT_S
        while not begun.exists():
            assert time.monotonic() < deadline, terminal.shown[-3000:]
            time.sleep(0.05)
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(STOP_S_MAX + WAIT_S) == 0
        terminal.wait_for("stopped; cut off: starting Spark")
        assert_nothing_is_left(project, family)


def test_a_spark_that_is_still_starting_is_not_waited_for(project):
    with Terminal("run", cwd=project) as terminal:
        terminal.wait_for("starting Spark")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(STOP_S_MAX + WAIT_S) == 0
        terminal.wait_for("stopped; cut off: starting Spark")
        _, alive = psutil.wait_procs(family, WAIT_S)
        assert alive == []


def test_a_java_that_ends_at_once_is_named_with_what_it_said(project, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java_that(project, "#!/bin/sh\necho no room for a heap\nexit 3\n")))
    answer = databus("run", "--once", cwd=project)
    assert answer.returncode == 75
    assert "Spark's Java process ended with code" in answer.stderr
    assert "it said: no room for a heap" in answer.stderr.replace("\n", " ")
