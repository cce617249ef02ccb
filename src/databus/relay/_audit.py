"""The audit log: who paused, resumed or read again a source, or skipped something; when, and with what result.

One line of JSON for each, in `audit.jsonl` in the relay's folder, appended and fsynced; beyond `bytes_max` that file
becomes `audit.1.jsonl`, in the place of the one before. The same goes to the structured log.
"""

import datetime as dt
import errno
import getpass
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from databus.core import DatabusError
from databus.disk import sync_folder, write_failure
from databus.operate import hide_in_text, logger_of

NAME: Final = "audit.jsonl"
_BEFORE: Final = "audit.1.jsonl"
BYTES_MAX: Final = 4 << 20
_TEXT_LENGTH_MAX: Final = 1_000
_NAMES_MAX: Final = 100

_logger = logger_of("databus.audit")


class Audit:
    """Appends to the audit log of one relay's folder; any thread."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        self._path = folder / NAME
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def note(self, action: str, who: Mapping[str, Any], asked: Mapping[str, Any], result: str) -> None:
        """Write down one action. asked: what was asked for; what is None is omitted. result: `done`, or the error,
        of which no secrets are written.

        An action is never undone because it could not be written down; that is logged as an error.
        """
        with suppress(DatabusError):  # it is in the log
            self.write(action, who, asked, result)

    def write(self, action: str, who: Mapping[str, Any], asked: Mapping[str, Any], result: str) -> None:
        """The same, for who does nothing that cannot be written down. Raises `DiskFull`, `ServiceUnavailable`."""
        entry = {
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
            "action": action,
            "who": {name: _short(value) for name, value in who.items()},
            "asked": {name: _short(value) for name, value in asked.items() if value is not None},
            "result": _short(hide_in_text(result)),
        }
        _logger.info("audit", **{name: value for name, value in entry.items() if name != "at"})
        line = json.dumps(entry, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        try:
            with self._lock:
                self._append(line)
        except OSError as error:
            _logger.error("not written to the audit log", path=str(self._path), message=str(error), **entry)  # noqa: TRY400
            raise write_failure(self._path, error) from error

    def _append(self, line: bytes) -> None:
        is_new = not self._path.exists()
        if not is_new and self._path.stat().st_size + len(line) > self._bytes_max:
            self._path.replace(self._path.with_name(_BEFORE))
            is_new = True
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # what was cut off there is a line of its own
            if os.write(fd, line) < len(line):  # the rest found no room
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        finally:
            os.close(fd)
        if is_new:
            sync_folder(self._path.parent)


def read_audit(folder: Path) -> Iterator[dict[str, Any]]:
    """The entries of a folder's audit log, the oldest first. Lines that were cut off are passed over."""
    for name in (_BEFORE, NAME):
        with suppress(FileNotFoundError), (folder / name).open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict):
                        yield entry


def operator() -> dict[str, Any]:
    """Who runs this process, for what is done at the command line."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return {"user": user, "host": socket.gethostname(), "pid": os.getpid()}


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_TEXT_LENGTH_MAX]
    if isinstance(value, list | tuple):
        return [_short(item) for item in value[:_NAMES_MAX]]
    return value
