"""A Kafka of one node, until Ctrl-C. Its address is in the file kafka.address."""

import signal
from pathlib import Path

from databus.testing.servers import Kafka

if __name__ == "__main__":
    with Kafka(Path.cwd() / "kafka") as server:
        Path("kafka.address").write_text(server.bootstrap)
        print(f"Kafka answers at {server.bootstrap}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
