"""A client that parks, to be killed: `python -m tests.client.parking_victim URL FOLDER`.

It refuses the note `bad` until FOLDER/mended is there. What it takes is a line in FOLDER/effects, which survives
SIGKILL.
"""

import os
import sys
from pathlib import Path

from databus.client import Client, ClientConfig, Consumer, FileCheckpoints


class Recorder(Consumer):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fd = os.open(folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.lines: list[str] = []

    def on_start_window(self, window):
        self.lines = []

    def on_data_events(self, changes):
        for row in changes.rows():
            if row["note"] == "bad" and not (self.folder / "mended").exists():
                raise ValueError("no such note")
            self.lines.append(f"{row['id']} {row.scn} {row.seq}\n")

    def on_end_window(self, window):
        os.write(self.fd, "".join(self.lines).encode())


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    config = ClientConfig(checkpoint_ms=0, retries_max=1, retry_first_ms=1, retry_ms_max=1)
    checkpoints = FileCheckpoints(folder / "checkpoint.json")
    consumer = Recorder(folder)
    Client(
        url, consumer, checkpoints=checkpoints, config=config, on_failure="park", dead_letters=folder / "letters"
    ).run()


if __name__ == "__main__":
    main()
