"""The control socket of a running pipeline: one line of JSON as the request, one as the answer.

    {"verb": "pause", "outputs": ["copy"]}
    {"outputs": ["copy"]}        or        {"error": "InputError", "message": "..."}

It is in the pipeline's state folder, and only its owner may open it. A path too long for a socket is reached through a
descriptor of the folder. Start with `ControlServer` and `ask`.
"""

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from databus.core import (
    Clock,
    ConfigError,
    DatabusError,
    FatalError,
    InputError,
    ServiceUnavailable,
    StateDiffers,
    SystemClock,
    TransientError,
)
from databus.formats import answer_in_json
from databus.operate import hide_in_text, logger_of
from databus.pipeline.graph import holder_of
from databus.pipeline.telling import in_background

SOCKET: Final = "control.sock"
_PATH_BYTES_MAX: Final = 100  # Linux has room for 107, others for 103
_REQUEST_BYTES_MAX: Final = 1 << 16
_ANSWER_BYTES_MAX: Final = 1 << 24
_REQUEST_S_MAX: Final = 5.0
_ANSWER_S_MAX: Final = 120.0
_ASK_AGAIN_MS: Final = 50
_ACCEPT_AGAIN_S: Final = 1.0
"""After an error of `accept`, such as too many open files."""
_AT_ONCE: Final = 8
"""Commands that are answered at the same time."""
_CREDENTIALS: Final = struct.Struct("3i")
_KINDS: Final[Mapping[str, type[DatabusError]]] = {
    kind.__name__: kind for kind in (StateDiffers, ConfigError, InputError, ServiceUnavailable, FatalError)
}

_logger = logger_of("databus.pipeline")

Handle = Callable[[str, Mapping[str, Any], str], Mapping[str, Any]]
"""Carries out a verb, given the request and who sent it; raises `DatabusError`. Called by several threads."""


class ControlServer:
    """Use as a context manager; answers from threads of its own. Where no socket can be, a warning is logged."""

    def __init__(self, folder: Path, handle: Handle) -> None:
        self._folder = folder
        self._handle = handle
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._listener: socket.socket | None = None
        self._ending = threading.Event()

    def __enter__(self) -> None:
        """Listen. This process holds the state's lock, so it may remove the socket that a killed one left behind."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                (self._folder / SOCKET).unlink()
            with _short(self._folder) as path:
                listener.bind(path)
            (self._folder / SOCKET).chmod(0o600)  # nobody can connect before `listen`
            listener.listen(_AT_ONCE)
        except OSError as error:
            listener.close()
            _logger.warning("no commands are taken", socket=str(self._folder / SOCKET), why=str(error))
            return
        self._listener = listener
        in_background("control", lambda: self._accept(listener))

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread that accepts
            self._listener.close()
            with suppress(OSError):
                (self._folder / SOCKET).unlink()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            self._slots.acquire()
            try:
                connection, _ = listener.accept()
            except OSError as error:
                self._slots.release()
                if self._ending.wait(_ACCEPT_AGAIN_S):
                    return
                _logger.warning("a command could not be taken; tried again", why=str(error))
                continue
            in_background("control-answer", lambda connection=connection: self._answer(connection))  # type: ignore[misc]  # bound now

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):  # the sender may be gone
                answer = self._answered(connection)
                connection.settimeout(_REQUEST_S_MAX)
                connection.sendall(json.dumps(answer, default=str).encode() + b"\n")
        finally:
            self._slots.release()

    def _answered(self, connection: socket.socket) -> Mapping[str, Any]:
        try:
            request = json.loads(_line(connection, _REQUEST_BYTES_MAX, _REQUEST_S_MAX))
            verb = str(request["verb"])
        except (ValueError, KeyError, TypeError) as error:
            return {"error": "InputError", "message": f"not a request of one line of JSON with a `verb`: {error!r}"}
        try:
            answer = self._handle(verb, request, _asker(connection))
        except DatabusError as error:
            kind = next((name for name, error_class in _KINDS.items() if isinstance(error, error_class)), None)
            kind = kind or ("ServiceUnavailable" if isinstance(error, TransientError) else "FatalError")
            answer = {"error": kind, "message": hide_in_text(str(error))}
        except Exception as error:
            _logger.exception("a command ended by a defect", verb=verb)
            answer = {"error": "FatalError", "message": hide_in_text(f"a defect: {type(error).__name__}: {error}")}
        return answer


def ask(folder: Path, verb: str, **request: Any) -> dict[str, Any]:
    """The answer of the pipeline that runs with this state.

    Raises what it raised, `InputError` if none runs, `ServiceUnavailable` if it does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_REQUEST_S_MAX)
            _connect(connection, folder)
            connection.sendall(json.dumps({"verb": verb, **request}).encode() + b"\n")
            answer = answer_in_json(_line(connection, _ANSWER_BYTES_MAX, _ANSWER_S_MAX))
    except (OSError, ValueError) as error:
        raise _unanswered(folder, error) from error
    if not isinstance(answer, dict):
        raise _unanswered(folder, TypeError("not an object"))
    if "error" in answer:
        raise _KINDS.get(str(answer["error"]), FatalError)(str(answer.get("message", "it does not say why")))
    return answer


def _connect(connection: socket.socket, folder: Path, clock: Clock | None = None) -> None:
    """Waits while too many others are connecting: each of them has `_REQUEST_S_MAX` to send its request."""
    clock = clock or SystemClock()
    deadline = clock.monotonic_s() + 2 * _REQUEST_S_MAX
    with _short(folder) as path:
        while True:
            try:
                return connection.connect(path)
            except BlockingIOError:  # the listener's queue is full
                if clock.monotonic_s() > deadline:
                    raise
                clock.sleep_ms(_ASK_AGAIN_MS)  # nothing signals when the queue has room


def _unanswered(folder: Path, error: Exception) -> DatabusError:
    holder = holder_of(folder)
    if holder is None:
        return InputError("this pipeline does not run; start it with `databus run`")
    if isinstance(error, PermissionError):
        return InputError(f"{folder / SOCKET}: {error.strerror}; only the user who runs the pipeline may ask it")
    return ServiceUnavailable(
        f"{folder / SOCKET}: the pipeline that runs as {holder} does not answer: {error}. It may be "
        "starting or ending, or run on another machine: ask it there"
    )


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """The path of the socket, short enough for the system."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield path
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"  # Linux only; elsewhere an error says so
    finally:
        os.close(fd)


def _line(connection: socket.socket, bytes_max: int, s_max: float, clock: Clock | None = None) -> bytes:
    """Up to the end of a line. Raises `ValueError` for one that is too long or has no end, `TimeoutError`."""
    clock = clock or SystemClock()
    deadline = clock.monotonic_s() + s_max
    read = b""
    while not read.endswith(b"\n"):
        connection.settimeout(max(deadline - clock.monotonic_s(), 0.001))
        piece = connection.recv(1 << 16)
        if not piece or len(read) + len(piece) > bytes_max:
            raise ValueError("the line has no end" if not piece else f"the line is longer than {bytes_max} bytes")
        read += piece
    return read


def _asker(connection: socket.socket) -> str:
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return "unknown"
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return f"process {pid} of user {uid}"
