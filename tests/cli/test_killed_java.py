"""`databus run` whose Java process is killed, as where memory runs out: one line says so, and the run ends in order."""

import os
import signal

import psutil
import pytest

from databus.core import ServiceUnavailable
from tests.cli.live import WAIT_S, Live

OUTPUTS = """\
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: "copy/{table}"}
  log: {type: delta, from: shop, mode: history, path: "log/{table}"}
"""


@pytest.mark.nightly
@pytest.mark.spark
def test_one_line_says_how_java_ended_and_the_code_has_a_supervisor_start_it_again(tmp_path):
    with Live(tmp_path, OUTPUTS) as live:
        live.start()
        live.wait_until_copied("copy")
        assert live.process is not None
        family = psutil.Process(live.process.pid).children(recursive=True)
        (java,) = [each for each in family if each.name() == "java"]
        os.kill(java.pid, signal.SIGKILL)
        assert live.process.wait(WAIT_S) == ServiceUnavailable.exit_code, live.said[-6000:]
        _, alive = psutil.wait_procs(family, WAIT_S)
        assert alive == []
        assert "Traceback" not in live.said
        assert "ConnectionRefused" not in live.said
        lines = [each for each in live.said.splitlines() if "killed by signal 9 (SIGKILL)" in each]
        assert [each for each in lines if each.startswith("databus: ")] == lines[-1:]
        assert len(lines) == 2  # the log's, and the reason of the exit code
        assert str(live.state / "spark" / "spark.log") in lines[0]
        (stopped,) = live.events(event="stopped")
        assert stopped["failed"] == stopped["cut_off"] == []
