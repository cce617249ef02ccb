"""Kafka on the loopback: one node, broker and controller in one."""

import base64
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from databus.testing.servers._fetch import ServerMissing, kept
from databus.testing.servers._java_server import JavaServer, fetch_jars, java

_VERSION: Final = "4.3.1"
_COORDINATES: Final = (f"org.apache.kafka:kafka_2.13:{_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_SHA256: Final = "929899bc0205a413e019af82b4ea9cd72ca842beec55d2912c6e09780eb2d3d6"
_CLUSTER: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
_EMPTY: Final = "empty"
_ASK_S_MAX: Final = 5
_FORMAT_S_MAX: Final = 60


class Kafka(JavaServer):
    """Kafka 4.3, with all that transactions need from a cluster of one; a topic that is written to is made at once.

    settings: more of the broker's own properties. cluster_id: which clients know the cluster by. Data and port stay
    over `stop`, `kill` and `start`.
    """

    kind = "kafka-4.3"

    def __init__(self, folder: Path, *, cluster_id: str = _CLUSTER, **options: Any) -> None:
        super().__init__(folder, **options)
        self.cluster_id = cluster_id
        self.node_id = 1

    @property
    def bootstrap(self) -> str:
        """What clients call `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    def prepare(self) -> Path:
        """See `JavaServer.prepare`."""
        return kept(f"kafka-{_VERSION}-v1", _make)

    def _program(self, folder: Path) -> list[str]:
        data = self.folder / "data"
        if not data.exists():
            shutil.copytree(folder / _EMPTY, data)
            own = {"version": 1, "cluster.id": self.cluster_id, "node.id": self.node_id}
            own["directory.id"] = base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
            (data / "meta.properties").write_text(_text(own))
        clients, controller = (port.number for port in self._ports)
        settings = {
            **_properties(data, clients, controller),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.flush.offset.checkpoint.interval.ms": 60_000,
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 3_000,  # so long a broker that was killed is not let in again
            "num.network.threads": 2,
            "num.io.threads": 4,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            **self.settings,
        }
        path = self.folder / "server.properties"
        path.write_text(_text(settings))
        logs = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [logs, "-cp", f"{folder}/*", "kafka.Kafka", str(path)]

    def _answers(self) -> bool:
        """It takes requests only once it belongs to its cluster; any will do, such as for the versions it knows."""
        request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
        try:
            with socket.create_connection((self.host, self.port), timeout=_ASK_S_MAX) as connection:
                connection.sendall(request)
                return len(connection.recv(8)) > 0
        except OSError:
            return False


def _make(draft: Path) -> None:
    """Fetch the jars, and make the data folder of a cluster in which nothing has happened."""
    fetch_jars(_COORDINATES, _SHA256, draft)
    settings = draft / "format.properties"
    settings.write_text(_text(_properties(draft / _EMPTY, 9092, 9093)))
    command = [java(), "-cp", f"{draft}/*", "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FORMAT_S_MAX)
    if done.returncode != 0:
        raise ServerMissing(f"Kafka {_VERSION} could not make a data folder: {(done.stdout + done.stderr)[-800:]}")


def _properties(data: Path, clients: int, controller: int) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data,
    }


def _text(settings: dict[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
