"""A process that is given bytes on its standard input: every wait bounded, and nothing of it left behind.

It is the leader of a session of its own, so that what it starts can be ended with it. What it prints is read as it
comes; the last lines are kept for errors.
"""

import fcntl
import os
import queue
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from databus.core import ConfigError, ServiceUnavailable

_SHOWN_LINES_MAX: Final = 5
_LINE_BYTES_MAX: Final = 500
_ANSWERS_MAX: Final = 1_000
_TERM_S: Final = 2.0
_LOOK_S: Final = 0.1


class Child:
    """Start it by making one. name: how errors call it. answers: whether what it prints on standard output is read by
    `answer`; else it is kept for errors, as what it prints on standard error always is.

    Raises `ConfigError` if it cannot be started.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str], *, answers: bool
    ) -> None:
        self._name = name
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                list(command),
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if answers else subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name}: {command[0]} cannot be started in {folder}: {error}") from error
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        self._stdin = self._process.stdin
        os.set_blocking(self._stdin.fileno(), False)
        self._room = select.poll()  # `select.select` knows no file above 1,023
        self._room.register(self._stdin, select.POLLOUT)
        self._said: deque[str] = deque(maxlen=_SHOWN_LINES_MAX)
        self._answers: queue.Queue[str] = queue.Queue(_ANSWERS_MAX)
        read = [(self._process.stderr, False)] if answers else []
        self._readers = [
            threading.Thread(target=self._read, args=pipe, name=f"reads {name}", daemon=True)
            for pipe in [*read, (self._process.stdout, answers)]
        ]
        for reader in self._readers:
            reader.start()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def how_it_ended(self) -> str:
        """In words, with its name and what it said at last."""
        return f"{self._name}: {self._how_it_ended(0)}{self._told()}"

    def write(self, content: bytes, deadline_s: float) -> None:
        """Have the system's pipe take all of this, by a time of `time.monotonic`. Raises `ServiceUnavailable`."""
        left = memoryview(content)
        file = self._stdin.fileno()
        while left:
            wait_s = deadline_s - time.monotonic()
            if wait_s <= 0:
                raise ServiceUnavailable(f"{self._name}: has not read its input in time{self._told()}")
            if not self._room.poll(min(wait_s, _LOOK_S) * 1e3):
                continue
            try:
                left = left[os.write(file, left) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise ServiceUnavailable(
                    f"{self._name}: {self._how_it_ended(deadline_s)} before it had read all of its input{self._told()}"
                ) from None

    def answer(self, deadline_s: float) -> str:
        """The next line that it prints. Raises `ServiceUnavailable` where none comes in time, or it has ended."""
        while True:
            try:
                return self._answers.get(timeout=_LOOK_S)
            except queue.Empty:
                if not self.is_alive and not self._readers[-1].is_alive() and self._answers.empty():
                    how = self._how_it_ended(deadline_s)
                    raise ServiceUnavailable(f"{self._name}: {how} without an answer{self._told()}") from None
                if time.monotonic() >= deadline_s:
                    raise ServiceUnavailable(f"{self._name}: has not answered in time{self._told()}") from None

    def finish(self, deadline_s: float) -> None:
        """Close its input and wait for it. Raises `ServiceUnavailable` unless it ends in time, with code 0, and has
        read all (which systems other than Linux do not tell).
        """
        with self._own_end() as own_end:
            with suppress(OSError):
                self._stdin.close()
            try:
                code = self._process.wait(max(deadline_s - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                raise ServiceUnavailable(f"{self._name}: has not ended in time{self._told()}") from None
            unread = _unread_bytes(own_end)
        if code:
            raise ServiceUnavailable(f"{self._name}: {_of_code(code)}{self._told()}")
        if unread:
            raise ServiceUnavailable(
                f"{self._name}: {_of_code(code)} before it had read all of its input: the last {unread} bytes"
                f"{self._told()}"
            )

    @contextmanager
    def _own_end(self) -> Iterator[int | None]:
        """An end of the pipe of its input at which it can be seen what it has not read; there, no one hears any more
        that it has closed its input.
        """
        own_end = None
        with suppress(OSError, ValueError):
            own_end = os.open(f"/proc/self/fd/{self._stdin.fileno()}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield own_end
        finally:
            if own_end is not None:
                os.close(own_end)

    def kill(self) -> None:
        """End it and all that it has started, whatever it does; callable twice."""
        with suppress(OSError):
            self._stdin.close()
        if self.is_alive:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TERM_S)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # and what it has started
            self._process.wait()
        for reader in self._readers:
            reader.join(_TERM_S)
        for file in (self._process.stdout, self._process.stderr):
            if file is not None and not any(reader.is_alive() for reader in self._readers):
                file.close()

    def _read(self, file: IO[bytes], is_answer: bool) -> None:
        while line := file.readline(_LINE_BYTES_MAX):
            text = line.decode(errors="replace").rstrip("\r\n")
            if is_answer:
                while self._answers.full():  # it says more than was asked; the newest may be the answer
                    with suppress(queue.Empty):
                        self._answers.get_nowait()
                self._answers.put_nowait(text)
            elif text:
                self._said.append("".join(char if char.isprintable() else "?" for char in text))

    def _how_it_ended(self, deadline_s: float) -> str:
        with suppress(subprocess.TimeoutExpired):
            return _of_code(self._process.wait(max(deadline_s - time.monotonic(), 0)))
        return "closed its input"

    def _told(self) -> str:
        for reader in self._readers:
            reader.join(_LOOK_S)
        return f"; it said: {' | '.join(list(self._said))}" if self._said else ""


def _unread_bytes(file: int | None) -> int:
    """How many bytes stand in a pipe."""
    if file is None:
        return 0
    return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)


def _of_code(code: int) -> str:
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {signal.Signals(-code).name}"
