"""A server of Java's on the loopback, as tests, benchmarks and demos want it: one process, which dies with ours."""

import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from databus.core import ServiceUnavailable
from databus.testing.servers._maven import java
from databus.testing.servers._ports import Port

_START_S_MAX: Final = 90
_STOP_S_MAX: Final = 30
_LINES_MAX: Final = 30


class JavaServer(ABC):
    """One node. Made stopped; as a context it is started, and thrown away at the end.

    folder: gets its data and its log. heap_mb: of its Java. settings: more lines for its configuration.
    """

    kind: ClassVar[str]

    def __init__(self, folder: Path, *, heap_mb: int = 512, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.heap_mb = heap_mb
        self.settings = dict(settings or {})
        self.host = "127.0.0.1"
        self.port = 0
        self.log_file = folder / "server.log"
        self._ports: list[Port] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind} on port {self.port})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def prepare(self) -> Path:
        """Fetch what is missing, and return the folder of its program. Raises `ServerMissing`."""

    @abstractmethod
    def _program(self, folder: Path) -> list[str]:
        """What Java is given behind its own options. folder: that of `prepare`; called at each start."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it is ready for work; asked again and again while it starts."""

    @property
    def pid(self) -> int:
        """The process id of its Java; it must run."""
        if self._process is None:
            raise ServiceUnavailable(f"{self.kind}: not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it answers; the ports are chosen at the first start and kept.

        Raises `ServerMissing`, and `ServiceUnavailable` with the end of its log if it does not come up.
        """
        if self.is_running:
            return
        program = self.prepare()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._ports:
            self._ports = [Port.claim(), Port.claim()]
            self.port = self._ports[0].number
        command = [java(), *self._java_options(), *self._program(program)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"},
            )
        # If this process dies, however it dies, its end of the pipe closes, and the server goes too.
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill -9 "$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until_it_answers()
        except ServiceUnavailable:
            self.kill()
            raise

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while True:
            if self._answers():
                return
            if not self.is_running or time.monotonic() > deadline:
                lines = self.log_file.read_text(errors="replace").splitlines()[-_LINES_MAX:]
                raise ServiceUnavailable(f"{self.kind} did not start; {self.log_file}:\n" + "\n".join(lines))
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut it down properly; SIGKILL if it does not end."""
        try:
            self._end(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self.kill()

    def suspend(self) -> None:
        """SIGSTOP, and wait until it stands still: connections stay open and nothing answers, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill it, free its ports and remove its data; its log stays."""
        self.kill()
        for port in self._ports:
            port.close()
        self._ports = []
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(_STOP_S_MAX)
        if self._watch is not None:
            self._watch.kill()
            self._watch.wait()
            if self._watch.stdin is not None:
                self._watch.stdin.close()
            self._watch = None

    def _java_options(self) -> list[str]:
        # A test's server is small and short-lived: a heap that grows, one thread that collects, little compiling.
        return ["-Xms64m", f"-Xmx{self.heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
