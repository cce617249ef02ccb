"""A standalone master of Spark with two workers, which share with the driver's process nothing but the machine."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

import databus
from databus.link import RelayClient
from databus.testing.servers._ports import Port

WAIT_S = 90.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # starts sooner, runs slower
HOME = Path(pyspark.__file__).parent
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"

NOTES = """
import os, sys
_notes = open(os.path.join({folder!r}, str(os.getpid())), "a", buffering=1)
sys.addaudithook(lambda event, given: _notes.write(str(given[0]) + "\\n") if event == "import" else None)
"""
"""A module `sitecustomize`: has each Python note what it imports. Forked ones write into the file of the first."""


@dataclass
class Cluster:
    """Where the master answers, and the folder of each worker. settings: of Spark, for small executors."""

    master: str
    folder: Path
    settings: dict[str, str]
    workers: list[psutil.Process]

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs that run now."""
        children = (each for worker in self.workers for each in worker.children())
        return [each for each in children if _is_executor(each)]

    def working(self) -> list[psutil.Process]:
        """Those that have started a Python, as the first task makes them do."""
        return [each for each in self.executors() if _children(each)]

    def imported(self) -> set[str]:
        """What the executors' Pythons have imported."""
        notes = self.folder / "notes"
        return {line for path in notes.iterdir() for line in path.read_text().splitlines()}


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # one that was killed just now has no command any more
        return "ExecutorBackend" in " ".join(process.cmdline())
    return False


def kill_all_of(executor: psutil.Process) -> None:
    """Kill an executor with its Python processes, as a machine that loses its power does."""
    for each in [executor, *_children(executor)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(process.children(recursive=True))
    return []


_claims: list[Port] = []  # until the end of this process


def free_port() -> int:
    """A port that nobody else gets before something listens there."""
    _claims.append(Port.claim())
    return _claims[-1].number


def _hiding(folders: Sequence[Path]) -> list[str]:
    """What stands before a command so that it sees empty folders there; nothing where the system does not let us."""
    mounts = " && ".join(f"mount -t tmpfs tmpfs {shlex.quote(str(each))}" for each in folders)
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    try:
        done = subprocess.run([*command, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return command if done.returncode == 0 else []


@contextlib.contextmanager
def cluster(folder: Path, hidden: Sequence[Path]) -> Iterator[Cluster]:
    """Two workers of one core each. Their home, their folders and their Python are not the driver's; they do not see
    what is hidden, nor where databus is installed, as far as the system can hide it.
    """
    code = Path(databus.__file__).parents[1]
    before = _hiding([*hidden, *([] if HOME.is_relative_to(code) else [code])])
    for name in ("home", "notes", "site", "bin"):
        (folder / name).mkdir(parents=True)
    (folder / "site" / "sitecustomize.py").write_text(NOTES.format(folder=str(folder / "notes")))
    python = folder / "bin" / PYTHON
    python.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" -s "$@"\n')
    python.chmod(0o755)
    port, ui = free_port(), free_port()
    java = Path(shutil.which("java") or "java").parent
    environment = {
        **{name: os.environ[name] for name in ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "LANG") if name in os.environ},
        "PATH": f"{folder / 'bin'}:{java}:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} -Dspark.deploy.maxExecutorRetries=-1",
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
    log = folder / "cluster.log"
    with log.open("ab") as out:
        processes = [
            subprocess.Popen([*before, *command], env=environment, stdout=out, stderr=out, cwd=folder / "home")
            for command in commands
        ]
    try:
        deadline = time.monotonic() + WAIT_S
        while _alive_workers(ui) < 2:
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)  # the master does not tell when they have come
        settings = {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            "spark.executorEnv.PYTHONPATH": str(folder / "site"),
        }
        yield Cluster(master, folder, settings, [psutil.Process(each.pid) for each in processes[1:]])
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


def _alive_workers(ui: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ui}/json/", timeout=5) as answer:
            return sum(each["state"] == "ALIVE" for each in json.load(answer)["workers"])
    except (OSError, ValueError):  # at first nothing answers, then a page for people does
        return 0


def captured(client: RelayClient, rows: int) -> None:
    """Wait until the relay has read so many rows, which the shop has."""
    deadline = time.monotonic() + WAIT_S
    while client.states()[0]["snapshotRows"] < rows or client.head("shop").published.snapshots:
        assert time.monotonic() < deadline, client.states()
        time.sleep(0.1)  # a question and an answer each time
