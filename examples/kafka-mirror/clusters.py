"""Two Kafka clusters of one node each, as they stand in two data centres: until Ctrl-C."""

import contextlib
import signal
import sys
from pathlib import Path

from databus.testing.servers import Kafka

HERE = Path.cwd()
IDS = {"east": "ZWFzdC1kYXRhLWNlbnRyZQ", "west": "d2VzdC1kYXRhLWNlbnRyZQ"}


def main() -> None:
    with contextlib.ExitStack() as stack:
        for name, cluster_id in IDS.items():
            server = stack.enter_context(Kafka(HERE / "clusters" / name, cluster_id=cluster_id))
            (HERE / f"{name}.address").write_text(server.bootstrap)
            print(f"{name}: {server.bootstrap}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    sys.exit(main())
