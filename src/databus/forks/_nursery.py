"""A nursery as who starts it sees it: processes forked from it, and a program that stands for Python."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from databus.forks import _request
from databus.forks._request import Forked, ask

_NO_THREADS: Final[Mapping[str, str]] = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What NumPy and PyArrow would start when they are imported."""

_WAITING_MAX: Final = 128


class Nursery:
    """Ends with `close`, or with the process that has started it; what was forked from it goes on.

    modules: what it imports, in that order. environment: variables that its process gets besides ours. wait_s_max: how
    long a request waits for an answer, which comes when all modules are imported. Linux only: elsewhere libraries are
    not made for being forked.
    """

    def __init__(
        self,
        modules: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        wait_s_max: float = _request.WAIT_S_MAX,
    ) -> None:
        self._wait_s_max = wait_s_max
        self.folder = Path(mkdtemp(prefix="databus-forks-"))
        self._path = str(self.folder / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._path)
            listener.listen(_WAITING_MAX)
            number = listener.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - our own Python
                [sys.executable, "-m", "databus.forks._server", str(self.folder), str(number), *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[number],
                env={**os.environ, **_NO_THREADS, **(environment or {})},
            )

    def fork(self, arguments: Sequence[str], output: int, environment: Mapping[str, str]) -> Forked | None:
        """A process of this nursery, as `python ARGUMENTS` would be, without input; None if it cannot be.

        output: the file that standard output and error are.
        """
        with Path(os.devnull).open("rb") as null:
            return ask(self._path, arguments, (null.fileno(), output, output), environment, self._wait_s_max)

    def python(self) -> Path | None:
        """A program to start in the place of Python: forked where it can be, and else as ever. None if the folder for
        temporary files does not let programs start.
        """
        program = self.folder / "python"
        command = [sys.executable, "-I", "-S", _request.__file__, sys.executable, self._path, str(self._wait_s_max)]
        program.write_text(f'#!/bin/sh\nexec {" ".join(map(_quoted, command))} "$@"\n', encoding="utf-8")
        program.chmod(0o700)
        return program if os.access(program, os.X_OK) else None

    def close(self) -> None:
        """End it; it goes when all that was forked from it has."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._process.stdin.close()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
