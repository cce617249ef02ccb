"""A command in a terminal of its own, as a person sees it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Self

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
WAIT_S = 120.0


class Terminal:
    """`databus ARGUMENTS` behind a pseudo-terminal. Use as a context manager; what is left running is killed."""

    def __init__(self, *arguments: object, cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "databus.cli", *map(str, arguments)],
            cwd=cwd,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"},
            start_new_session=True,
        )
        os.close(theirs)
        self._raw = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(WAIT_S)
        os.close(self._ours)

    def _read(self) -> None:
        try:
            while piece := os.read(self._ours, 1 << 16):
                self._raw += piece
        except OSError:  # Linux says so when the other side has closed
            return

    @property
    def shown(self) -> str:
        """Everything that was ever shown, without the codes that place and colour it."""
        return _CONTROL.sub("", self._raw.decode(errors="replace"))

    def wait_for(self, words: str) -> None:
        """Wait until these words have been shown."""
        deadline = time.monotonic() + WAIT_S
        while words not in self.shown:
            assert time.monotonic() < deadline, f"{words!r} did not come: {self.shown[-3000:]}"
            assert self._reader.is_alive() or words in self.shown, self.shown[-3000:]  # ended, and all was read
            time.sleep(0.05)
