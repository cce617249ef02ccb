"""`databus pause`, `resume`, `drain` and `stop`: on a pipeline that runs, that was killed, and that does not run."""

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from databus.core import InputError, ServiceUnavailable
from databus.pipeline.graph._state import StateLock
from databus.pipeline.running import _control
from databus.pipeline.running._control import ControlServer, ask
from databus.pipeline.telling._resting import Rest, Resting
from tests.cli.live import HEAD, WAIT_S, Live
from tests.commands import databus, failed

OUTPUTS = """\
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: copy}
  other: {type: delta, from: shop, mode: mirror, path: other}
"""


# A process of its own: threads of other tests would close files, and need some.
WITHOUT_FILES = f"""
import json, os, resource, socket, sys, threading
from pathlib import Path
from databus.pipeline.running import _control

refused = threading.Event()
_control._logger.warning = lambda *_, **__: refused.set()
silent, asking = (socket.socket(socket.AF_UNIX) for _ in range(2))
asking.settimeout({WAIT_S})
with _control.ControlServer(Path(sys.argv[1]), lambda verb, request, asker: dict(request)):
    free = os.dup(0)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    silent.connect(sys.argv[1] + "/control.sock")  # takes the file that the accepting thread may have already
    asking.connect(sys.argv[1] + "/control.sock")
    asking.sendall(b'{{"verb": "status"}}\\n')
    print("could not be taken" if refused.wait({WAIT_S}) else "taken", flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    print(json.loads(asking.recv(1 << 16))["verb"])
"""


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_paused_output_rests_through_a_kill_and_all_is_written_in_the_end(tmp_path):
    with Live(tmp_path, OUTPUTS) as live:
        live.start()
        live.wait_until_copied("copy")
        assert live.ask("stop", "other") == "other: stopped\n"
        live.expect_state("other", "stopped")
        assert live.ask("pause", "copy") == "copy: paused\n"
        before = live.copied("copy")
        live.work()
        assert live.ask("resume", "other") == "other: resumed\n"
        live.wait_until_copied("other")
        assert live.copied("copy") == before != live.source()
        live.expect_state("copy", "paused")
        paused = databus("status", cwd=tmp_path)
        assert paused.returncode == 0, "a paused output is well"
        assert "copy    paused" in paused.stdout

        live.kill()
        assert (live.state / "control.sock").exists(), "what a killed process leaves"
        assert "does not run" in failed(databus("resume", cwd=tmp_path), 2)
        live.start()
        live.work()
        live.wait_until_copied("other")
        live.expect_state("copy", "paused")
        assert live.copied("copy") == before
        assert live.ask("resume", "copy") == "copy: resumed\n"
        live.work()
        assert live.ask("drain") == "the pipeline has ended\n"
        assert live.process is not None
        assert live.process.wait(WAIT_S) == 0, live.said[-2000:]
        assert '"why": "drained", "event": "stopping"' in live.said
        assert not (live.state / "control.sock").exists()
        ends = {each["output"]: each["position"]["scn"] for each in live.events(event="batch")}
        assert ends["copy"] == ends["other"], "both came to the same end"


def test_what_does_not_run_says_so(tmp_path):
    (tmp_path / "databus.yml").write_text(HEAD + OUTPUTS)
    for verb in ("pause", "stop"):
        assert "this pipeline does not run; start it with `databus run`" in failed(databus(verb, cwd=tmp_path), 2)


def echo(verb, request, asker):
    if verb == "refuse":
        raise InputError("no")
    return {"verb": verb, **request}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A state folder whose socket's path is longer than the path of a socket may be."""
    found = tmp_path / ("a" * 90) / ("b" * 90)
    found.mkdir(parents=True)
    return found


def test_a_socket_is_the_owner_s_and_its_path_may_be_long(folder):
    with ControlServer(folder, echo):
        assert stat.S_IMODE((folder / "control.sock").stat().st_mode) == 0o600
        assert ask(folder, "pause", outputs=["copy"]) == {"verb": "pause", "outputs": ["copy"]}
        with pytest.raises(InputError, match=r"^no$"):
            ask(folder, "refuse")
    assert not (folder / "control.sock").exists()


def test_the_socket_of_a_killed_process_is_replaced(tmp_path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control.sock"))
    with pytest.raises(InputError, match="does not run"):
        ask(tmp_path, "status")
    with ControlServer(tmp_path, echo):
        assert ask(tmp_path, "status")["verb"] == "status"


def test_a_pipeline_that_runs_and_does_not_answer_is_named(tmp_path):
    lock = StateLock(tmp_path, "shop")
    lock.take()
    try:
        with pytest.raises(ServiceUnavailable, match=f'"pid": {os.getpid()}'):
            ask(tmp_path, "status")
    finally:
        lock.release()


def test_requests_are_bounded_and_many_that_say_nothing_keep_nobody_out_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(_control, "_REQUEST_S_MAX", 3.0)

    def sent(request: bytes) -> dict[str, str]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "control.sock"))
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return json.loads(connection.makefile("rb").readline())

    with ControlServer(tmp_path, echo):
        assert "longer than" in sent(b"x" * (1 << 17))["message"]
        assert "one line of JSON" in sent(b"pause\n")["message"]
        assert "`verb`" in sent(b"{}\n")["message"]
        silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for each in silent:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # no more may wait
                each.connect(str(tmp_path / "control.sock"))
        assert ask(tmp_path, "status")["verb"] == "status"
        for each in silent:
            each.close()


def test_a_process_that_may_open_no_more_files_takes_commands_again_when_it_may(tmp_path):
    command = [sys.executable, "-c", WITHOUT_FILES, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=2 * WAIT_S)
    assert said.stdout == "could not be taken\nstatus\n"


def test_what_is_paused_is_known_to_the_next_process_and_what_is_stopped_is_not(tmp_path):
    first = Resting(tmp_path)
    first.pause(["copy", "other"])
    first.stop(["third"])
    first.drain(["fourth"])
    first.resume(["other"])
    assert [first.of([each]) for each in ("copy", "other", "third", "fourth")] == [
        Rest.PAUSED,
        None,
        Rest.STOPPED,
        Rest.DRAINING,
    ]
    again = Resting(tmp_path)
    assert [again.of([each]) for each in ("copy", "other", "third")] == [Rest.PAUSED, None, None]
    assert again.of(["other", "copy"]) is Rest.PAUSED, "a query rests if one of its outputs does"


def test_commands_come_from_many_at_once(tmp_path):
    with ControlServer(tmp_path, echo):
        said: list[str] = []
        asking = [threading.Thread(target=lambda: said.append(ask(tmp_path, "status")["verb"])) for _ in range(24)]
        for each in asking:
            each.start()
        for each in asking:
            each.join(WAIT_S)
        assert said == ["status"] * 24
