"""A server of Java's on the loopback, as tests, benchmarks and demos want it."""

import os
import shutil
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from databus.core import ServiceUnavailable
from databus.testing.servers._maven import java
from databus.testing.servers._ports import Port
from databus.testing.servers._server_process import ServerProcess

_START_S_MAX: Final = 200
_LINES_MAX: Final = 30


class JavaServer(ServerProcess):
    """One node. Made stopped; as a context it is started, and thrown away at the end.

    folder: gets its data and its log. heap_mb: of its Java. settings: more lines for its configuration.
    """

    def __init__(self, folder: Path, *, heap_mb: int = 512, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(folder)
        self.heap_mb = heap_mb
        self.settings = dict(settings or {})
        self._ports: list[Port] = []

    @abstractmethod
    def prepare(self) -> Path:
        """Fetch what is missing, and return the folder of its program. Raises `ServerMissing`."""

    @abstractmethod
    def _program(self, folder: Path) -> list[str]:
        """What Java is given behind its own options. folder: that of `prepare`; called at each start."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it is ready for work; asked again and again while it starts."""

    def start(self) -> None:
        """See `ServerProcess.start`."""
        if self.is_running:
            return
        program = self.prepare()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.claim_ports()
        env = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
        self._launch([java(), *self._java_options(), *self._program(program)], env)
        try:
            self._wait_until_it_answers()
        except ServiceUnavailable:
            self.kill()
            raise

    def claim_ports(self) -> None:
        """Choose them, if that is not done: others may have to know them before it starts."""
        if not self._ports:
            self._ports = [Port.claim(self.port), Port.claim()]
            self.port = self._ports[0].number

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while True:
            if self._answers():
                return
            if not self.is_running or time.monotonic() > deadline:
                lines = self.log_file.read_text(errors="replace").splitlines()[-_LINES_MAX:]
                raise ServiceUnavailable(f"{self.kind} did not start; {self.log_file}:\n" + "\n".join(lines))
            time.sleep(0.1)

    def close(self) -> None:
        """See `ServerProcess.close`."""
        self.kill()
        for port in self._ports:
            port.close()
        self._ports = []
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def _java_options(self) -> list[str]:
        # A test's server is small and short-lived: a heap that grows, one thread that collects, little compiling.
        return ["-Xms64m", f"-Xmx{self.heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
