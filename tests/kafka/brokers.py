"""A second broker beside a first one, so that a partition can be without its leader while the cluster answers."""

import shutil

from databus.testing.servers._kafka import _EMPTY, Kafka

BROKER = 2
_DIRECTORY = "psOcwuR7vrQo6BuPQCx4Sg"


class SecondBroker(Kafka):
    """Belongs to the cluster of another server, which is broker and controller."""

    def __init__(self, folder, first):
        super().__init__(folder)
        self.first = first

    def _program(self, folder):
        clients, controller = self.port, self.first._ports[1].number
        self.settings = {
            "process.roles": "broker",
            "node.id": BROKER,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{clients}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients}",
        }
        data = self.folder / "data"
        if not data.exists():
            shutil.copytree(folder / _EMPTY, data)
            own = {"version": 1, "cluster.id": self.cluster_id, "node.id": BROKER, "directory.id": _DIRECTORY}
            (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        return super()._program(folder)
