"""`databus run` on a terminal: never blank, and Ctrl-C is answered at once."""

import signal
from pathlib import Path

import pytest
import yaml

from databus.pipeline import STOP_S_MAX
from tests.cli.terminal import WAIT_S, Terminal
from tests.commands import databus


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "project"
    assert databus("init", folder).returncode == 0
    path = folder / "databus.yml"
    value = yaml.safe_load(path.read_text())
    value["relay"]["listen"] = "127.0.0.1:0"
    del value["filters"], value["tests"]
    value["outputs"] = {"copy": value["outputs"]["copy"]}
    path.write_text(yaml.safe_dump(value))
    return folder


@pytest.mark.spark
def test_it_says_what_it_waits_for_and_then_what_each_source_and_output_does(project):
    with Terminal("run", cwd=project) as terminal:
        terminal.wait_for("starting the relay")
        terminal.wait_for("starting Spark")
        terminal.wait_for("waits for the first batch")
        terminal.wait_for("0 transactions")
        assert "shop" in terminal.shown
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("stopping: SIGINT")
        assert terminal.process.wait(WAIT_S) == 0
        terminal.wait_for("stopped")


@pytest.mark.spark
def test_ctrl_c_is_answered_while_spark_starts(project):
    with Terminal("run", cwd=project) as terminal:
        terminal.wait_for("starting Spark")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("stopping: SIGINT")
        assert terminal.process.wait(STOP_S_MAX + WAIT_S) == 0
        terminal.wait_for("stopped")
        assert "has to end first" not in terminal.shown


@pytest.mark.nightly
@pytest.mark.spark
def test_a_source_that_cannot_be_captured_is_on_the_screen_with_the_reason(project):
    value = yaml.safe_load((project / "databus.yml").read_text())
    value["sources"]["shop"] = {"type": "mysql", "hosts": ["127.0.0.1"], "user": "u", "password_file": "nowhere.txt"}
    value["inputs"]["shop"]["tables"] = ["shop/*"]
    (project / "databus.yml").write_text(yaml.safe_dump(value))
    with Terminal("run", cwd=project) as terminal:
        terminal.wait_for("suspended")
        terminal.wait_for("nowhere.txt")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(WAIT_S) == 0
