"""Kafka as a cluster of three nodes, on the loopback."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from databus.testing.servers import Kafka

_NODES: Final = 3
_REPLICATED: Final = {
    "default.replication.factor": _NODES,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": _NODES,
    "transaction.state.log.replication.factor": _NODES,
    "transaction.state.log.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": _NODES,
    "share.coordinator.state.topic.min.isr": 2,
}


class ThreeBrokers:
    """Three nodes, each of them broker and controller: of each partition three replicas, of which two have to be in
    sync. As a context they are started, and thrown away at the end. nodes: to be killed, suspended and started again.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.nodes = [Kafka(folder / f"{number}", **options) for number in range(1, _NODES + 1)]
        for number, node in enumerate(self.nodes, 1):
            node.node_id = number
            node.claim_ports()
        voters = ",".join(f"{node.node_id}@{node.host}:{node._ports[1].number}" for node in self.nodes)
        for node in self.nodes:
            node.settings = {
                "node.id": node.node_id,
                "controller.quorum.voters": voters,
                **_REPLICATED,
                **node.settings,
            }

    @property
    def bootstrap(self) -> str:
        """What clients call `bootstrap.servers`."""
        return ",".join(node.bootstrap for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start those that do not run, and wait until they answer. Raises what `JavaServer.start` does."""
        self.nodes[0].prepare()
        with ThreadPoolExecutor(_NODES) as pool:  # none answers before it has another one beside it
            list(pool.map(Kafka.start, self.nodes))

    def close(self) -> None:
        """See `JavaServer.close`."""
        for node in self.nodes:
            node.close()
