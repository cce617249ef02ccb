"""Child processes that end when their parent does, however that ends.

A child waits for the end of its standard input, a pipe from its parent: the pipe closes with the parent's process,
after kill -9 too, and the child stops in order then. The parent has `start_child` and `end_child`, the child
`end_with_parent`.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

_Output = int | IO[bytes]


def start_child(
    command: Sequence[str], *, stdout: _Output, stderr: _Output, pass_fds: Collection[int] = (), cwd: Path | None = None
) -> "subprocess.Popen[bytes]":
    """Start a program that calls `end_with_parent`."""
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        cwd=cwd,
        start_new_session=True,  # Ctrl-C is for the parent, which ends its children when it has done its own
    )


def end_child(process: "subprocess.Popen[bytes]", s_max: float) -> None:
    """End a child in order, or by force if it takes longer than `s_max`. If it has ended already, clean up after it."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(s_max)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_with_parent(by: signal.Signals, s_max: float) -> None:
    """Stop this process when its parent has ended: by this signal, or by force if it takes longer than `s_max`."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
        os.kill(os.getpid(), by)
        time.sleep(s_max)  # the signal ends the process in good order meanwhile, and this thread with it
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
