"""A signal that reaches no wait of the main thread: it came just before that began, or went to another thread."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from databus.client import load_checkpoint
from tests.client.conftest import captured, mock

END_S_MAX = 60
BEGIN = """
import signal, sys, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()  # the one that the system gives it to
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
"""
WAYS = {
    "tail": """
        from databus.cli import main
        sys.argv = ["databus", "tail", "--from", "beginning", "--relay", sys.argv[1]]
        main()
    """,
    "a client that runs": """
        from databus.client import Client
        Client(sys.argv[1], Consumer()).run()
    """,
    "a client that is waited for": """
        from databus.client import Client
        client = Client(sys.argv[1], Consumer())
        client.start()
        client.join()
    """,
    "a relay": """
        from pathlib import Path
        from databus.relay import load_relay, run_relay
        Path("relay.yml").write_text("listen: '127.0.0.1:0'\\nfolder: log\\nsources: {shop: {type: mock}}\\n")
        run_relay(load_relay(Path("relay.yml")), ready=lambda _: print("ready", flush=True))
    """,
}
CONSUMER = """
from databus.client import Consumer as Base
class Consumer(Base):
    def on_end_window(self, window):
        print(window.scn, flush=True)
"""


ENDS = {
    "run": "client.run()",
    "with": "with client: client.run()",
    "join": "client.start(); client.join()",
}
SERVICE = """
import sys, time
from databus.client import Client, Consumer as Base, FileCheckpoints
class Consumer(Base):
    def on_end_window(self, window):
        if window.scn == 2 and not self.failed:
            self.failed = True
            raise OSError("a callback of ours")
        print(window.scn, flush=True)
    failed = False
    def on_stop_consumption(self):
        print("stopped", flush=True)
client = Client(sys.argv[1], Consumer(), checkpoints=FileCheckpoints("c.json"))
"""


@pytest.mark.parametrize("end", ENDS)
def test_sigterm_ends_a_client_in_order_and_nothing_of_the_librarys_is_on_stdout(relay_of, tmp_path, end):
    relay = relay_of(shop=mock(transactions_total=3, group_transactions_max=1))
    captured(relay, 3)
    command = [sys.executable, "-c", SERVICE + ENDS[end], relay.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        lines = []
        while "3\n" not in lines:
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
        os.kill(process.pid, signal.SIGTERM)
        try:
            left, said = process.communicate(timeout=END_S_MAX)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert left == "stopped\n"
    assert set(lines) == {"1\n", "2\n", "3\n"}, "what the library logs goes to `logging`"
    assert load_checkpoint(tmp_path / "c.json").sources["shop"].scn == 3
    assert "callback failed call=end_window" in said
    assert "Traceback" in said
    assert "OSError: a callback of ours" in said


@pytest.mark.parametrize("way", WAYS)
def test_it_is_handled_although_nothing_else_happens(relay_of, tmp_path, way):
    relay = relay_of(shop=mock(transactions_total=3))
    captured(relay, 3)
    consumer = CONSUMER if "client" in way else ""
    command = [sys.executable, "-c", BEGIN + consumer + textwrap.dedent(WAYS[way]), relay.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        lines = 1 if way == "a relay" else 3
        for _ in range(lines):
            assert process.stdout.readline(), process.stderr.read()
        os.kill(process.pid, signal.SIGINT)
        try:
            _, said = process.communicate(timeout=END_S_MAX)
        finally:
            process.kill()
    assert process.returncode in (0, 1, 130, -signal.SIGINT), said


SLOW_PANDAS = """
import time
print("importing pandas", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["tail", "a client that runs"])
def test_it_is_heard_while_arrow_has_pandas_imported(relay_of, tmp_path, way):
    """Arrow imports it at the first use of many functions, and takes any exception then for its absence."""
    relay = relay_of(shop=mock(transactions_total=3))
    captured(relay, 3)
    (tmp_path / "pandas.py").write_text(SLOW_PANDAS)
    command = [sys.executable, "-c", "import sys\n" + CONSUMER + textwrap.dedent(WAYS[way]), relay.url]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout.readline() == "importing pandas\n", process.stderr.read()
        os.kill(process.pid, signal.SIGINT)
        try:
            left, said = process.communicate(timeout=END_S_MAX)
        finally:
            process.kill()
    assert process.returncode in (0, 1, 130, -signal.SIGINT), said
    assert left == ""
