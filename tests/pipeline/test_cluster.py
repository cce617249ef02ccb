"""The same pipeline on a standalone master with two workers: what executors need travels with the job."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyspark
import pytest

from databus.link import RelayClient
from databus.pipeline import compare, load_pipeline
from databus.testing import RelayProcess
from tests.pipeline.projects import Project

pytestmark = pytest.mark.spark

WAIT_S = 90.0
RUN_S_MAX = 200.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # starts sooner, runs slower
HOME = Path(pyspark.__file__).parent

WHERE = """
import pathlib
import databus
import pyarrow.compute as pc

def note(batch):
    folder = pathlib.Path({folder!r}) / str(__import__("os").getpid())
    folder.write_text(databus.__file__)
    return batch.filter(pc.greater(batch["total_cents"], 20000))
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def cluster(folder):
    """A master and two workers of one core each; its address."""
    port, ui = free_port(), free_port()
    env = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
    }
    start = [str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy"]
    master = f"spark://127.0.0.1:{port}"
    commands = [
        [start[0], f"{start[1]}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui)]
    ]
    commands += [
        [start[0], f"{start[1]}.worker.Worker", "-h", "127.0.0.1", "-c", "1", "-m", "1g", "--webui-port", "0", "-d",
         str(folder / f"worker-{n}"), master]
        for n in (1, 2)
    ]  # fmt: skip
    with (folder / "cluster.log").open("ab") as log:
        processes = [subprocess.Popen(command, env=env, stdout=log, stderr=log) for command in commands]
    try:
        deadline = time.monotonic() + WAIT_S
        while workers_of(ui) < 2:
            assert time.monotonic() < deadline, (folder / "cluster.log").read_text()[-3000:]
            time.sleep(0.2)
        yield master
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


def workers_of(ui):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ui}/json/", timeout=5) as answer:
            return answer.read().count(b'"ALIVE"') - 1  # the master says it of itself too
    except OSError:
        return 0


FILE = """
name: shop
relay: {{url: "{relay}"}}
spark:
  settings:
    spark.executor.memory: 512m
    spark.driver.memory: 512m
    spark.driver.host: 127.0.0.1
    spark.driver.extraJavaOptions: {quick}
    spark.executor.extraJavaOptions: {quick}
inputs: {{shop: {{type: databus, tables: [shop/main.*], partitions: 2}}}}
filters:
  noted: {{type: python, from: shop, table: main.orders, function: "where.py:note"}}
outputs:
  copy: {{type: delta, from: shop, mode: mirror, path: lake/copy}}
  large: {{type: delta, from: noted, mode: mirror, path: lake/large}}
"""
CODE = "import sys; from databus.pipeline import run; sys.exit(run(sys.argv[1], once=True, master=sys.argv[2]))"


def captured(relay):
    """Wait until the relay has read what the shop has."""
    deadline = time.monotonic() + WAIT_S
    client = RelayClient(relay.url)
    while not client.sources() or client.head("shop").published.snapshots or not client.head("shop").published.scn:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_same_pipeline_runs_on_two_workers(tmp_path):
    noted = tmp_path / "noted"
    noted.mkdir()
    (tmp_path / "where.py").write_text(WHERE.format(folder=str(noted)))
    project = Project(tmp_path, "outputs: {}")
    source = {"type": "sqlite", "path": str(project.database)}
    with RelayProcess(tmp_path / "relay", {"shop": source}) as relay, cluster(tmp_path) as master:
        captured(relay)
        project.path.write_text(FILE.format(relay=relay.url, quick=QUICK))
        command = [sys.executable, "-c", CODE, str(project.path), master]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        graph = load_pipeline(project.path, master=master)
        found = compare(graph, "copy", database=project.database, wait_ms_max=10_000)
    assert found.is_identical, found.details()
    large = project.select("SELECT id FROM orders WHERE total_cents > 20000")
    assert project.copied("lake/large/orders", "id") == large
    places = {path.read_text() for path in noted.iterdir()}
    assert places
    assert all("databus.zip" in place for place in places), places
