"""The process of a server: started, stopped, killed or suspended by us, and gone when we are."""

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from databus.core import ServiceUnavailable

_STOP_S_MAX: Final = 60


class ServerProcess(ABC):
    """Base of servers. Made stopped; as a context it is started, and thrown away at the end.

    kind: its product and version. folder: gets its data and its log.
    """

    kind: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = "127.0.0.1"
        self.port = 0
        self.log_file = folder / "server.log"
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
    def start(self) -> None:
        """Start it and wait until it answers; ports are chosen at the first start and kept.

        Raises `ServerMissing`, and `ServiceUnavailable` with the end of its log if it does not come up.
        """

    @abstractmethod
    def close(self) -> None:
        """Kill it, free its ports and remove its data; its log stays."""

    @property
    def pid(self) -> int:
        """The server's process id; it must run."""
        if self._process is None:
            raise ServiceUnavailable(f"{self.kind}: not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

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

    def _launch(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
        """Start the program; returns where in the log file it begins to write."""
        with self.log_file.open("ab") as log:
            log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=env,
                start_new_session=True,  # Ctrl-C at the terminal is for the caller, who then stops the server
            )
        # If this process dies, however it dies, its end of the pipe closes, and the server goes too.
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill -9 "$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return log_start

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
