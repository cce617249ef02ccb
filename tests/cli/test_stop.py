"""Ctrl-C during `databus run` while an output does not answer: how long it is waited for, and a second Ctrl-C."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from databus.pipeline import load_pipeline
from databus.pipeline.graph._state import StateLock
from tests.cli.terminal import WAIT_S, Terminal

pytestmark = pytest.mark.spark

PIPELINE = """\
name: stuck
spark: {master: "local[1]"}
inputs: {events: {type: mock, rows_total: 50}}
outputs: {slow: {type: stuck, from: events}}
"""
PLUGIN = """\
import threading
from typing import Literal

from databus.pipeline import Delivery, Output, OutputConfig


class StuckConfig(OutputConfig):
    type: Literal["stuck"] = "stuck"


class Stuck(Output):
    config_model = StuckConfig
    delivery = Delivery.AT_LEAST_ONCE

    def write(self, batch):
        (self.context.folder / "begun").touch()
        threading.Event().wait()
"""


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A pipeline whose output, a user's own, never ends its first batch."""
    installed = tmp_path / "installed"
    about = installed / "stuck-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[databus.outputs]\nstuck = stuck:Stuck\n")
    (installed / "stuck.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(installed)  # for `load_pipeline` here
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=":")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "databus.yml").write_text(PIPELINE)
    return folder


def press_ctrl_c_while_it_writes(terminal: Terminal, project: Path) -> list[psutil.Process]:
    """Returns the processes that belong to the run."""
    deadline = time.monotonic() + WAIT_S
    while not (project / "begun").exists():
        assert terminal.process.poll() is None, terminal.shown[-3000:]
        assert time.monotonic() < deadline, terminal.shown[-3000:]
        time.sleep(0.05)
    family = psutil.Process(terminal.process.pid).children(recursive=True)
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("waiting for the batch that slow is writing")
    return family


def assert_nothing_is_left(project: Path, family: list[psutil.Process]) -> None:
    """No process, and no lock."""
    assert family
    _, alive = psutil.wait_procs(family, WAIT_S)
    assert alive == []
    config = load_pipeline(project / "databus.yml").config
    lock = StateLock(config.state, config.name)
    lock.take()
    lock.release()


def test_an_output_that_does_not_answer_is_abandoned_and_named(project):
    with Terminal("run", cwd=project) as terminal:
        family = press_ctrl_c_while_it_writes(terminal, project)
        assert terminal.process.wait(WAIT_S) == 0
        terminal.wait_for("stopped; not waited for: slow, whose batch comes again")
        assert_nothing_is_left(project, family)


@pytest.mark.nightly
def test_a_second_ctrl_c_does_not_wait_for_it(project):
    with Terminal("run", cwd=project) as terminal:
        family = press_ctrl_c_while_it_writes(terminal, project)
        assert "a second Ctrl-C does not wait" in terminal.shown
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(WAIT_S) == 130
        terminal.wait_for("databus: not waited for any longer: waiting for the batch that slow is writing")
        assert_nothing_is_left(project, family)
