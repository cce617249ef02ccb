"""Ports that stay ours: a server that is down for a moment finds its own again, whatever else is started meanwhile."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO, Final, Self

_RANGE: Final = (20_000, 32_000)  # below those that the kernel takes for outgoing connections


class Port:
    """A free port of 127.0.0.1, claimed among all processes that choose theirs here; `number`. Freed by `close`."""

    def __init__(self, number: int, claim: IO[str]) -> None:
        self.number = number
        self._claim = claim

    @classmethod
    def claim(cls, wanted: int = 0) -> Self:
        """Choose one; `wanted`, where that is free."""
        folder = Path(tempfile.gettempdir()) / f"databus-ports-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        chosen = random.SystemRandom()
        while True:
            number, wanted = wanted or chosen.randrange(*_RANGE), 0
            file = (folder / str(number)).open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, for closed connections
                    probe.bind(("127.0.0.1", number))
            except OSError:
                file.close()
                continue
            return cls(number, file)

    def close(self) -> None:
        """Let others have it."""
        self._claim.close()
