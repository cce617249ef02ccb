"""A consumer to be killed: `python -m tests.client.victim URL FOLDER UNTIL CHECKPOINT_MS`.

Each window's effect is one line appended to FOLDER/effects, its SCN and a digest of its rows; each run begins with the
checkpoint that it found. A line that was written survives SIGKILL.
"""

import os
import sys
from hashlib import blake2b
from pathlib import Path

from databus.client import Client, ClientConfig, Consumer, FileCheckpoints, FollowConfig, load_checkpoint


class Recorder(Consumer):
    def __init__(self, folder: Path, until: int) -> None:
        self.fd = os.open(folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.until = until
        self.client: Client | None = None
        self.digest = blake2b(digest_size=8)

    def on_start_window(self, window):
        self.digest = blake2b(digest_size=8)

    def on_data_events(self, changes):
        for row in changes.rows():
            self.digest.update(repr((row.source, row.pair, row.before, row.after)).encode())

    def on_end_window(self, window):
        os.write(self.fd, f"{window.scn} {self.digest.hexdigest()}\n".encode())
        if window.scn >= self.until:
            self.client.stop()


def main() -> None:
    url, folder, until, checkpoint_ms = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    path = folder / "checkpoint.json"
    found = load_checkpoint(path)
    consumer = Recorder(folder, until)
    os.write(consumer.fd, f"start {found.sources['shop'].scn if found else 0}\n".encode())
    follow = FollowConfig(backoff_first_ms=5, backoff_ms_max=50)
    config = ClientConfig(follow=follow, checkpoint_ms=checkpoint_ms)
    consumer.client = Client(url, consumer, checkpoints=FileCheckpoints(path), config=config)
    consumer.client.run()


if __name__ == "__main__":
    main()
