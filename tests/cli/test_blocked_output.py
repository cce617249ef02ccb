"""`databus run` while an output is blocked in the system: it writes into a FIFO that nobody reads."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from databus.core import ServiceUnavailable
from databus.pipeline import STOP_S_MAX
from tests.cli.terminal import WAIT_S
from tests.commands import databus

pytestmark = pytest.mark.spark

ROWS = 5_000
PIPELINE = f"""\
name: blocked
spark: {{master: "local[2]"}}
run: {{write_ms_max: 2000}}
inputs: {{events: {{type: mock, rows_total: {ROWS}}}}}
outputs:
  shown: {{type: console, from: events, rows_max: 100000}}
  kept: {{type: files, from: events, path: out, format: json}}
"""


@pytest.fixture
def fifo(tmp_path) -> Iterator[int]:
    """The writing end of a FIFO whose reading end is held open and never read."""
    path = tmp_path / "nobody-reads"
    os.mkfifo(path)
    both = os.open(path, os.O_RDWR)
    yield both
    os.close(both)


@pytest.fixture
def running(tmp_path, fifo, request) -> Iterator[subprocess.Popen[bytes]]:
    """The pipeline, with the FIFO as its standard output. A test may give it more options."""
    (tmp_path / "databus.yml").write_text(PIPELINE)
    options = getattr(request, "param", [])
    with (tmp_path / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "databus.cli", "run", "--progress", "events", *options],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=fifo,
            stderr=errors,
            start_new_session=True,
        )
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


def wait_until(is_so: Callable[[], object], said: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, said.read_text()[-3000:]
        time.sleep(0.05)


def rows_of(folder: Path, output: str) -> int:
    """The rows that this output said it had written."""
    path = folder / "events"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return sum(each["rows"] for each in events if each["event"] == "batch" and each["output"] == output)


def test_it_delays_no_other_output_and_ctrl_c_ends_the_run(running, fifo, tmp_path):
    stderr = tmp_path / "stderr"
    wait_until(lambda: rows_of(tmp_path, "kept") == ROWS, stderr)
    assert rows_of(tmp_path, "shown") == 0
    wait_until(lambda: "does not answer" in stderr.read_text(), stderr)
    wait_until(lambda: databus("status", cwd=tmp_path).returncode == 1, stderr)  # it is a second old at most
    status = databus("status", cwd=tmp_path)
    assert "shown: hanging" in status.stderr
    assert "kept: " not in status.stderr
    family = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGINT)
    assert running.wait(STOP_S_MAX + WAIT_S) == 0
    assert "shown" in stderr.read_text(), "what was cut off is said"
    _, alive = psutil.wait_procs(family, WAIT_S)
    assert alive == []


@pytest.mark.nightly
def test_a_reload_that_it_keeps_from_ending_is_answered_and_delays_nobody_else(running, tmp_path):
    stderr, file = tmp_path / "stderr", tmp_path / "databus.yml"
    wait_until(lambda: rows_of(tmp_path, "kept") == ROWS, stderr)
    wait_until(lambda: "does not answer" in stderr.read_text(), stderr)
    changed = PIPELINE.replace("rows_max: 100000", "rows_max: 7").replace("{write_ms_max: 2000}", "{0}")
    more = "  more: {type: files, from: events, path: more, format: json}\n"
    file.write_text(changed.replace("{0}", "{write_ms_max: 2000, stop_batch_ms_max: 1000}") + more)
    two = [
        subprocess.Popen(
            [sys.executable, "-m", "databus.cli", "reload", "--wait", "8"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [each.communicate(timeout=WAIT_S) for each in two]
    assert sorted("shown: starts again" in out for out, _ in said) == [False, True], "the second has nothing to change"
    assert sorted(each.returncode for each in two) == [0, ServiceUnavailable.exit_code], said
    late = [error for _, error in said if "not running yet" in error]  # it may name `more` too, which takes its time
    assert len(late) == 1, said
    assert "shown" in late[0]
    wait_until(lambda: rows_of(tmp_path, "more") == ROWS, stderr)
    wait_until(lambda: "shown: hanging" in databus("status", cwd=tmp_path).stderr, stderr)
    running.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in stderr.read_text(), stderr)
    third = databus("reload", cwd=tmp_path)
    assert third.returncode in (2, ServiceUnavailable.exit_code), third
    assert running.wait(STOP_S_MAX + WAIT_S) == 0


@pytest.mark.nightly
def test_a_second_ctrl_c_ends_the_run_at_once(running, tmp_path):
    stderr = tmp_path / "stderr"
    wait_until(lambda: rows_of(tmp_path, "kept") == ROWS, stderr)
    running.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in stderr.read_text(), stderr)
    running.send_signal(signal.SIGINT)
    assert running.wait(WAIT_S) == 130
    assert "still writing: shown, whose batches come again" in stderr.read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("running", [["--once"]], indirect=True)
def test_with_once_it_is_given_up_and_the_exit_code_says_so(running, tmp_path):
    assert running.wait(WAIT_S * 2) == ServiceUnavailable.exit_code
    assert rows_of(tmp_path, "kept") == ROWS
    assert "did not answer within run.write_ms_max=2000" in (tmp_path / "stderr").read_text()
