"""A relay in a process of its own, for tests, benchmarks and the demo: start, wait until it answers, kill, restart."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Final, Self

import yaml

from databus.core import ServiceUnavailable
from databus.forks import Forked, Nursery

_START_MS_MAX: Final = 30_000
_STOP_MS_MAX: Final = 20_000


class RelayProcess:
    """`databus relay` with the given configuration, its state and logs under `folder`.

    The port is chosen by the first start and kept over restarts, so that consumers find it again.
    nursery: makes what relays are forked from, for tests that start many. env: more variables for the environment of
    the next relay; modules of the nursery that read theirs at import do not see them.
    """

    nursery: ClassVar[Callable[[], Nursery] | None] = None

    def __init__(self, folder: Path, sources: Mapping[str, Any], **options: Any) -> None:
        self.folder = folder
        self.log_file = folder / "relay.stderr"
        self._config = {"listen": "127.0.0.1:0", "folder": str(folder / "relay"), "sources": dict(sources), **options}
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self.url = ""
        self.env: dict[str, str] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id; it must have been started."""
        if self._process is None:
            raise ServiceUnavailable("the relay has not been started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended since."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it answers. Raises `ServiceUnavailable` with the end of its log if it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "relay.yml"
        config.write_text(yaml.safe_dump(self._config, sort_keys=False))
        address_file = Path(self._config["folder"]) / "relay.json"
        address_file.unlink(missing_ok=True)  # an earlier process's would be taken for an answer
        with self.log_file.open("ab") as log:
            self._process = self._started(["-m", "databus.relay", str(config)], log)
        deadline = time.monotonic() + _START_MS_MAX / 1e3
        while not self._answers(address_file):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServiceUnavailable(f"the relay did not start; the end of its log:\n{self.log_end()}")
            time.sleep(0.01)
        port = self.url.rpartition(":")[2]
        self._config["listen"] = f"127.0.0.1:{port}"

    def _started(self, arguments: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes] | Forked":
        made = type(self).nursery
        env = {**os.environ, **self.env}
        forked = None if made is None else made().fork(arguments, log.fileno(), env)
        return forked or subprocess.Popen(
            [sys.executable, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env
        )

    def _answers(self, address_file: Path) -> bool:
        try:
            address = json.loads(address_file.read_text())
        except (OSError, ValueError):
            return False
        self.url = address["url"]
        return bool(address["pid"] == self.pid)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_STOP_MS_MAX / 1e3)

    def wait_until_dead(self, ms_max: int = _STOP_MS_MAX) -> int:
        """Wait for it to die by itself, as at an armed crash point; returns its exit code."""
        if self._process is None:
            raise ServiceUnavailable("the relay has not been started")
        return self._process.wait(ms_max / 1e3)

    def stop(self) -> None:
        """SIGTERM, and wait; SIGKILL if it does not end."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_MS_MAX / 1e3)
        except (subprocess.TimeoutExpired, TimeoutError):
            self.kill()

    def log_end(self, lines: int = 20) -> str:
        """The last lines that it logged."""
        try:
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""
