"""The nursery's own process: it imports the modules of its arguments, and forks itself for each request.

A forked process has one thread, whatever its parent had, and locks that other threads held stay locked in it. So there
must be no other threads: a nursery in which an import has started one ends, and a caller then runs a Python of its own.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from databus.forks._request import NUMBER, REQUEST_BYTES_MAX

_LIFELINE: Final = 0
"""A pipe from the process that started this one. Nothing is written to it: it closes when that process has ended."""

_REQUEST_S_MAX: Final = 5.0
_FILES: Final = 3
_NAME_MAX: Final = 15
_OF_EACH: Final = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED"})
"""Of the variables that Python reads when it starts, those that may differ from process to process."""


@dataclass(frozen=True)
class _Request:
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    is_deaf: bool


class _Server:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._connections: dict[int, socket.socket] = {}
        self._settings = _settings(os.environ)
        for file in (listener, _LIFELINE, self._wake_read):
            self._selector.register(file, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only so that it wakes the selector
        signal.set_wakeup_fd(self._wake_write)

    def serve(self) -> _Request | None:
        """Returns in each process that was forked, with what it is to do; and None in this one, at its end."""
        is_open = True
        while is_open or self._connections:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    request = self._fork()
                    if request is not None:
                        return request
                elif key.fileobj == self._wake_read:
                    os.read(self._wake_read, 4096)
                    self._reap()
                elif key.fileobj == _LIFELINE:
                    is_open = False
                    self._selector.unregister(_LIFELINE)
                    self._selector.unregister(self._listener)
                    self._listener.close()
                else:
                    self._selector.unregister(key.fileobj)
                    if key.data in self._connections:  # it has not ended: its number is still its own
                        os.kill(key.data, signal.SIGKILL)
        return None

    def _fork(self) -> _Request | None:
        connection, _ = self._listener.accept()
        connection.settimeout(_REQUEST_S_MAX)
        files: list[int] = []
        request, pid = None, -1
        with suppress(OSError, ValueError, TypeError):  # not a request, or no room for one more process
            request = _received(connection, files)
            pid = os.fork() if self._fits(request) else -1
        if pid == 0:
            self._leave(connection, files)
            return request
        for fd in files:
            os.close(fd)
        with suppress(OSError):  # who asked has gone; the selector says so
            connection.sendall(NUMBER.pack(max(pid, 0)))
        if pid == -1:
            connection.close()
        else:
            self._connections[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ, pid)
        return None

    def _fits(self, request: _Request) -> bool:
        """Whether this Python is as one would be that starts in that environment."""
        wanted = _settings(request.environment)
        return {**self._settings, **wanted} == self._settings and len(request.arguments) > 1

    def _leave(self, connection: socket.socket, files: list[int]) -> None:
        """In a process just forked: nothing of the nursery stays."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for open_socket in (self._listener, connection, *self._connections.values()):
            open_socket.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
        for file in (self._wake_read, self._wake_write, *files):
            os.close(file)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self._connections.pop(pid, None)
            if connection is None:
                continue
            with suppress(OSError):  # the caller has gone, and waits no longer
                connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
            if connection in self._selector.get_map():
                self._selector.unregister(connection)
            connection.close()


def _settings(environment: Any) -> dict[str, str]:
    """What Python reads when it starts; Spark's own names have an underscore."""
    names = [name for name in environment if name.startswith("PYTHON") and "_" not in name and name not in _OF_EACH]
    return {name: environment[name] for name in names}


def _received(connection: socket.socket, files: list[int]) -> _Request:
    length, fds, _, _ = socket.recv_fds(connection, NUMBER.size, _FILES)
    files.extend(fds)
    (size,) = NUMBER.unpack(length)
    if not 0 < size <= REQUEST_BYTES_MAX or len(fds) != _FILES:
        raise ValueError("no request")
    body = connection.recv(size, socket.MSG_WAITALL)
    return _Request(**json.loads(body))


def _become(request: _Request, path: list[str]) -> None:
    """What `python -m MODULE ARGUMENTS` makes of itself before the module begins. path: where all look for modules."""
    environment = request.environment
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request.folder)
    own = _own_path(environment, request.folder)
    sys.path[:] = [*([] if sys.flags.safe_path else [request.folder]), *dict.fromkeys([*own, *path])]
    importlib.invalidate_caches()
    signal.signal(signal.SIGINT, signal.SIG_IGN if request.is_deaf else signal.default_int_handler)
    if environment.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.argv[:] = request.arguments[1:]
    with suppress(OSError):
        Path("/proc/self/comm").write_text(request.arguments[1][:_NAME_MAX])  # `ps -c`, `top` and `pstree` say this


def _own_path(environment: Any, folder: str) -> list[str]:
    """What PYTHONPATH says; nothing between two colons is the folder that the process is in."""
    text = environment.get("PYTHONPATH", "")
    return [entry or folder for entry in text.split(os.pathsep)] if text else []


def main() -> None:
    """`_server FOLDER LISTENER MODULES`: a socket listens already, by its file's number; the folder is removed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this, whose end is this one's
    folder, number, *modules = sys.argv[1:]
    own = _own_path(os.environ, str(Path.cwd()))
    path = [entry for entry in sys.path[0 if sys.flags.safe_path else 1 :] if entry not in own]
    try:
        for module in modules:
            importlib.import_module(module)
        threads = len(list(Path("/proc/self/task").iterdir()))
        gc.collect()
        gc.freeze()  # a collection in a process does not write to, and so copy, what it shares with all others
        request = _Server(socket.socket(fileno=int(number))).serve() if threads == 1 else None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if request is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    _become(request, path)
    runpy.run_module(request.arguments[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
