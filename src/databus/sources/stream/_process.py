"""A process whose standard output is read as it comes, and what it says at last on standard error."""

import os
import select
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from databus.core import ConfigError

_SHOWN_LINES_MAX: Final = 5  # of standard error, in messages
_LINE_BYTES_MAX: Final = 500
_TERM_S: Final = 2.0  # between SIGTERM and SIGKILL


class Process:
    """Starts it. It leads a session of its own, so that what it starts can be ended with it."""

    def __init__(self, physical: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                list(command),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{physical}: {command[0]} cannot be started: {error}") from error
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        self._out = self._process.stdout.fileno()
        self._printed = select.poll()  # `select.select` knows no file above 1,023
        self._printed.register(self._out, select.POLLIN)
        self._lines: deque[str] = deque(maxlen=_SHOWN_LINES_MAX)
        self._listener = threading.Thread(target=self._listen, name=f"{physical} stderr", daemon=True)
        self._listener.start()

    def read(self, size: int, wait_s: float) -> bytes | None:
        """What it has printed, empty if nothing within `wait_s`; None at its end."""
        if not self._printed.poll(max(wait_s, 0) * 1e3):
            return b""
        return os.read(self._out, size) or None

    def end(self) -> str:
        """End it and all that it has started; returns how it ended, in words."""
        process = self._process
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TERM_S)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        self._listener.join(_TERM_S)
        for file in (process.stdout, process.stderr):
            if file is not None and not self._listener.is_alive():
                file.close()
        words = f"; it said: {' | '.join(self._lines)}" if self._lines else ""
        return (f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}") + words

    def wait(self, wait_s: float) -> None:
        """Give it some time to end by itself, once its output has."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)

    def _listen(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - asked for above
        while line := self._process.stderr.readline(_LINE_BYTES_MAX):
            text = line.decode(errors="replace").rstrip("\r\n")
            if text:
                self._lines.append("".join(sign if sign.isprintable() else "?" for sign in text))
