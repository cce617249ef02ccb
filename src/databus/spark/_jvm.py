"""The JVM that Spark runs in: started like `pyspark.java_gateway` does, but so that whoever waits may end it meanwhile.

What pyspark starts is unknown until it answers, which takes seconds, and for ever where Java hangs.
"""

import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyspark import SparkConf

from databus.core import ServiceUnavailable
from databus.spark._private import CONNECTION_VARIABLE, connected_gateway

_ASK_S: Final = 0.05
_SAID_BYTES_MAX: Final = 400
_SIGNAL_IN_SHELL: Final = 128  # a shell that has waited for it adds this to a signal's number
_SECRET: Final = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Settings that Spark itself does not show: the default of its `spark.redaction.regex`."""

OnProcess = Callable[["Popen[bytes]"], None]
"""Told of the JVM's process before it answers."""


def start_jvm(
    conf: SparkConf, home: Path, output: Path, on_process: OnProcess, first_on_path: str | None = None
) -> Any:
    """Start it and connect to it: a gateway of py4j. home: Spark's. output: a file for what is printed. first_on_path:
    a folder in which it looks for programs before all others.

    Raises `ServiceUnavailable` if it ends before it answers.
    """
    with TemporaryDirectory(prefix="databus-jvm-") as folder, output.open("ab") as out:
        port_file = Path(folder) / "port"
        environment = {"SPARK_HOME": str(home), "SPARK_CONNECT_MODE": "0", CONNECTION_VARIABLE: str(port_file)}
        if first_on_path is not None:
            environment["PATH"] = os.pathsep.join([first_on_path, os.environ.get("PATH", os.defpath)])
        process = Popen(  # noqa: S603 - Spark's own script, by its path
            [str(home / "bin" / "spark-submit"), *_arguments(conf)],
            stdin=PIPE,  # the JVM ends when this is closed, as it is when our process ends
            stdout=out,
            stderr=out,
            env={**os.environ, **environment, **locale_for_java(os.environ)},
            preexec_fn=_pass_over_ctrl_c,  # noqa: PLW1509 - sets one handler, as pyspark does
        )
        on_process(process)
        while not port_file.is_file():
            if process.poll() is not None:
                raise ServiceUnavailable(
                    f"Spark's Java process ended with code {process.returncode} before it answered; it said: "
                    f"{_last_words(output)} ({output} has the rest)"
                )
            time.sleep(_ASK_S)  # a new file is all that Java says; pyspark waits for it in the same way
        gateway = connected_gateway(port_file)
    gateway.proc = process
    return gateway


def locale_for_java(environ: Mapping[str, str]) -> dict[str, str]:
    """What Java's environment needs beside ours, so that both read the names of files as UTF-8.

    Python does so in the locale `C` too (PEP 540), where Java finds no path with a letter beyond ASCII.
    """
    chosen = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "C"
    return {"LC_ALL": "C.UTF-8"} if chosen in ("C", "POSIX") else {}


def how_java_ended(code: int, logs: Sequence[Path]) -> str:
    """What to say of a JVM that has ended under a session. logs: its own, and what it has printed."""
    number = -code if code < 0 else code - _SIGNAL_IN_SHELL
    files = " and ".join(map(str, logs))
    if number not in {Signal.value for Signal in signal.Signals}:
        words = _last_words(logs[-1])
        return f"Spark's Java process has ended with code {code}; it said last: {words} (its logs: {files})"
    memory = (
        ", as the system does where memory, or a container's share of it, runs out (`journalctl -k` says so)"
        if number == signal.SIGKILL
        else ""
    )
    name = signal.Signals(number).name
    return f"Spark's Java process has ended: killed by signal {number} ({name}){memory}. Its logs: {files}"


def _last_words(output: Path) -> str:
    """The end of what was printed, in one line."""
    try:
        printed = output.read_bytes()
    except FileNotFoundError:
        printed = b""
    words = " ".join(printed[-_SAID_BYTES_MAX:].decode(errors="replace").split())
    return words or "nothing"


def _arguments(conf: SparkConf) -> list[str]:
    """What everybody on this machine may read. Secrets reach the JVM over its socket, before it makes its context."""
    shown = ((name, value) for name, value in conf.getAll() if not _SECRET.search(name))
    settings = [part for name, value in shown for part in ("--conf", f"{name}={value}")]
    return [*settings, *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))]


def _pass_over_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
