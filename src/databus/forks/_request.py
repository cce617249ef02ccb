"""How a nursery is asked for a process; and a program that asks, in the place of Python.

As a program this is run by its path, by a Python that looks for no packages: it must start in some milliseconds, so it
imports nothing of databus, and little else.

A request is its length (four bytes, big-endian) with three files (standard input, output and error), then JSON:
arguments, environment, folder, and whether Ctrl-C is ignored. The answer is the process's id, 0 if it could not start;
later, when that has ended, its exit code, or a signal's number below zero. Who closes the connection kills the process.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence

NUMBER = struct.Struct(">i")
REQUEST_BYTES_MAX = 1 << 22
WAIT_S_MAX = 8.0
"""For the nursery, which may be importing still, by default. Spark waits ten seconds for a process."""

_ALONE_S_MAX = 1.0
_ENDED_BY_SIGNAL = 128
"""What a shell adds to the number of a signal."""


class Forked:
    """A process that a nursery has forked; not a child of ours, so only the nursery knows how it ends."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, a signal's number below zero, once it has ended; None until then."""
        return self._received(0.0)

    def wait(self, seconds_max: float | None = None) -> int:
        """Wait for its end; returns what `poll` does then. Raises `TimeoutError` if it does not end in time."""
        code = self._received(seconds_max)
        if code is None:
            raise TimeoutError(f"process {self.pid} has not ended within {seconds_max} s")
        return code

    def fileno(self) -> int:
        """Something can be read there once it has ended."""
        return self._connection.fileno()

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _received(self, seconds_max: float | None) -> int | None:
        if self._code is None:
            self._connection.settimeout(seconds_max)
            try:
                answer = self._connection.recv(NUMBER.size, socket.MSG_WAITALL)
            except (BlockingIOError, TimeoutError):
                return None
            except ConnectionError:
                answer = b""
            self._connection.close()
            whole = len(answer) == NUMBER.size
            self._code = NUMBER.unpack(answer)[0] if whole else -signal.SIGKILL  # the nursery itself was killed
        return self._code


def ask(
    path: str,
    arguments: Sequence[str],
    files: Sequence[int],
    environment: Mapping[str, str],
    wait_s_max: float = WAIT_S_MAX,
) -> Forked | None:
    """Have the nursery that listens at a path fork what `python ARGUMENTS` would be; None if it does not.

    arguments: `-m`, a module and its own. files: standard input, output and error.
    Raises `OSError` if there was no answer, and so no knowing.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(wait_s_max)
        connection.connect(path)
    except OSError:  # it is gone, and has not heard of this
        connection.close()
        return None
    request = {
        "arguments": list(arguments),
        "environment": dict(environment),
        "folder": os.getcwd(),  # noqa: PTH109 - pathlib would take as long to import as all else here
        "is_deaf": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
    }
    body = json.dumps(request).encode()
    socket.send_fds(connection, [NUMBER.pack(len(body))], files)
    connection.sendall(body)
    answer = connection.recv(NUMBER.size, socket.MSG_WAITALL)
    pid = NUMBER.unpack(answer)[0] if len(answer) == NUMBER.size else 0
    if pid == 0:
        connection.close()
        return None
    return Forked(pid, connection)


def _end_of(forked: Forked) -> int:
    """What a process ends with. When the starter of this program has ended, which hangs up its standard input, the
    process has a moment to notice that; then this program ends, and so the process is killed: it may be waiting long
    for a peer that is gone as well.
    """
    parent = os.getppid()
    watched = select.poll()
    watched.register(0, 0)  # says nothing but that
    watched.register(forked.fileno(), select.POLLIN)
    watched.poll()
    while True:
        is_left_alone = os.getppid() != parent
        try:
            return forked.wait(_ALONE_S_MAX)
        except TimeoutError:
            if is_left_alone:
                return -signal.SIGKILL


def main() -> None:
    """`_request.py PYTHON SOCKET SECONDS ARGUMENTS`: what `PYTHON ARGUMENTS` does, forked if it can be."""
    python, path, wait_s_max, *arguments = sys.argv[1:]
    if arguments[:1] == ["-m"]:
        forked = ask(path, arguments, (0, 1, 2), os.environ, float(wait_s_max))
        if forked is not None:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (1, 2):  # pipes end when the process closes them
                os.dup2(null, fd)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both
            signal.signal(signal.SIGTERM, lambda number, _: os.kill(forked.pid, number))
            code = _end_of(forked)
            os._exit(code if code >= 0 else _ENDED_BY_SIGNAL - code)
    os.execv(python, [python, *arguments])  # noqa: S606 - what was asked for, as it stands


if __name__ == "__main__":
    main()
