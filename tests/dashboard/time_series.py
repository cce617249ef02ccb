"""InfluxDB and VictoriaMetrics from Debian: databases that take pushed numbers; tests ask whether they hold them."""

import http.client
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from databus.core import ServiceUnavailable
from databus.testing.servers._debian import DebianPackages, unpacked_own_packages, unpacked_packages
from databus.testing.servers._ports import Port
from databus.testing.servers._server_process import ServerProcess

_PACKAGES: Final = DebianPackages("bookworm", ("prometheus",))
_START_S_MAX: Final = 60.0
_ASK_S_MAX: Final = 30.0
_ASK_S: Final = 0.02
_INFLUX: Final = """\
reporting-disabled = true
bind-address = "127.0.0.1:{inner}"
[meta]
dir = "{folder}/meta"
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
[http]
bind-address = "127.0.0.1:{port}"
log-enabled = false
[monitor]
store-enabled = false
"""


class TimeSeriesServer(ServerProcess):
    """One of them. Made stopped; as a context it is started, and thrown away at the end."""

    package: str
    program: str
    ready: str
    """The path that answers once it is up."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports: list[Port] = []

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    @property
    def push_url(self) -> str:
        """Where it takes InfluxDB's lines."""
        raise NotImplementedError

    def samples(self, metric: str) -> list[tuple[Mapping[str, str], float]]:
        """What it holds of a metric: the labels and the value of each series, the newest."""
        raise NotImplementedError

    def prepare(self) -> Path:
        """Fetch it, if need be. Raises `ServerMissing`."""
        return unpacked_own_packages(f"{self.package}-v1", [[self.package]])

    def start(self) -> None:
        tree = self.prepare()
        self._ports = self._ports or [Port.claim(), Port.claim()]
        self.port = self._ports[0].number
        begins = self._launch([str(tree / self.program), *self._options()])
        deadline = time.monotonic() + _START_S_MAX
        while not self._answers():
            if not self.is_running or time.monotonic() > deadline:
                raise ServiceUnavailable(f"{self.kind} did not come up: {self.log_file.read_text()[begins:][-500:]}")
            time.sleep(_ASK_S)  # it says so by answering alone

    def _options(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        try:
            self.ask("GET", self.ready)
        except (OSError, http.client.HTTPException):
            return False
        return True

    def ask(self, method: str, path: str, **given: str) -> str:
        """Send a request; returns the body of the answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_ASK_S_MAX)
        try:
            connection.request(method, f"{path}?{urlencode(given)}" if given else path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def close(self) -> None:
        self.kill()
        for port in self._ports:
            port.close()
        self._ports.clear()


class InfluxDb(TimeSeriesServer):
    """InfluxDB 1, with a database `databus`."""

    kind = "influxdb"
    package = "influxdb"
    program = "usr/bin/influxd"
    ready = "/ping"

    @property
    def push_url(self) -> str:
        return f"{self.url}/write?db=databus"

    def _options(self) -> list[str]:
        file = self.folder / "influxdb.conf"
        file.write_text(_INFLUX.format(folder=self.folder, port=self.port, inner=self._ports[1].number))
        return ["run", "-config", str(file)]

    def start(self) -> None:
        super().start()
        self.ask("POST", "/query", q="CREATE DATABASE databus")

    def samples(self, metric: str) -> list[tuple[Mapping[str, str], float]]:
        query = f'SELECT last(value) FROM "{metric}" GROUP BY *'
        answer: Any = json.loads(self.ask("GET", "/query", db="databus", q=query))
        every = answer["results"][0].get("series", ())
        return [(series["tags"], float(series["values"][0][1])) for series in every]


class VictoriaMetrics(TimeSeriesServer):
    """VictoriaMetrics, one node."""

    kind = "victoria-metrics"
    package = "victoria-metrics"
    program = "usr/bin/victoria-metrics"
    ready = "/health"

    @property
    def push_url(self) -> str:
        return f"{self.url}/write"

    def _options(self) -> list[str]:
        data = self.folder / "data"
        return [f"-storageDataPath={data}", f"-httpListenAddr={self.host}:{self.port}", "-influxSkipSingleField"]

    def samples(self, metric: str) -> list[tuple[Mapping[str, str], float]]:
        self.ask("GET", "/internal/force_flush")
        match = {"match[]": metric}
        lines = self.ask("GET", "/api/v1/export", **match).splitlines()
        every: list[Any] = [json.loads(line) for line in lines]
        return [
            (
                {name: label for name, label in series["metric"].items() if name != "__name__"},
                float(series["values"][-1]),
            )
            for series in every
        ]


def promtool() -> Path:
    """The program, fetched if need be. Raises `ServerMissing`."""
    return unpacked_packages("promtool-v1", _PACKAGES) / "usr/bin/promtool"
