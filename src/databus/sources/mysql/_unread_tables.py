"""Unread: the tables that are to be read and whose reading has not begun, in the order of asking. It survives a kill.

Thousands of tables may be asked for at once, and a bounded number is read at the same time. Those that wait stand,
numbered, in a file beside the log, and the position of each commit says which numbers still wait after it. The file is
durable before a commit that names its numbers goes out, and keeps all that the log may be cut back to. Where the file
is lost, it is unknown which tables waited.
"""

import json
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from databus.disk import make_folder, replace_file
from databus.log import Resume
from databus.operate import logger_of

KEY: Final = "unread"
"""In a position: which tables wait."""

_FILE: Final = "unread.json"
_VERSION: Final = 1


class Asked(NamedTuple):
    """A table that was asked for, or the rows of it that fit a condition."""

    source: str
    where: str | None = None


class Unread:
    """The queue, and its file in `folder`; without a folder it is kept in memory only. One thread."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _FILE
        self._id = uuid.uuid4().hex
        self._kept: deque[tuple[int, Asked]] = (
            deque()
        )  # as in the file: those that begun too, while a cut may need them
        self._first = self._end = 1  # the numbers of those that wait
        self._durable_first = 1

    def load(self, position: Mapping[str, Any]) -> bool:
        """Load what waits after `position`. Returns whether that is known; if not, nothing waits."""
        entry = position.get(KEY)
        if entry is None:
            return True
        first, end = int(entry["from"]), int(entry["to"])
        kept = self._read(str(entry["id"]))
        if not {number for number, _ in kept} >= set(range(first, end)):
            return False
        self._id = str(entry["id"])
        # Forget what was asked for after this position: the log was cut back to before the request.
        self._kept = deque(item for item in kept if item[0] < end)
        self._first = self._durable_first = first
        self._end = end
        return True

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def names(self) -> list[str]:
        """The tables that wait."""
        return [request.source for number, request in self._kept if number >= self._first]

    def position_entry(self) -> dict[str, Any] | None:
        """The entry of a position about it; None if nothing waits."""
        return {"id": self._id, "from": self._first, "to": self._end} if len(self) else None

    def add(self, asked: Sequence[Asked]) -> None:
        """Add these, durably, but for those that wait already. Raises what `replace_file` does; then none of
        them has been added.
        """
        waiting = {request for number, request in self._kept if number >= self._first}
        new = [request for request in dict.fromkeys(asked) if request not in waiting]
        if not new:
            return
        kept = deque(item for item in self._kept if item[0] >= min(self._durable_first, self._first))
        kept.extend(enumerate(new, self._end))
        self._write(kept)  # first: if it fails, nothing has been added
        self._kept, self._end = kept, self._end + len(new)

    def take(self) -> Asked:
        """Remove and return the one that has waited longest."""
        at = self._first - self._kept[0][0]
        self._first += 1
        return self._kept[at][1]

    def remove(self, sources: Collection[str]) -> None:
        """Have these wait no longer; durable as `add` is."""
        left = [request for number, request in self._kept if number >= self._first and request.source not in sources]
        if len(left) < len(self):
            self.clear()
            self.add(left)

    def clear(self) -> None:
        """Remove all."""
        self._first = self._end

    def durable(self, position: Mapping[str, Any]) -> None:
        """The log is never cut back to before this position."""
        entry = position.get(KEY)
        if entry is not None and entry["id"] == self._id:
            self._durable_first = max(self._durable_first, int(entry["from"]))

    def _read(self, wanted_id: str) -> list[tuple[int, Asked]]:
        if self._path is None:
            return []
        try:
            value = json.loads(self._path.read_bytes())
            if value["v"] != _VERSION or value["id"] != wanted_id:
                return []
            return [(int(number), Asked(str(source), where)) for number, source, where in value["tables"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # lost or damaged: the caller notices by the numbers that are missing

    def _write(self, kept: Sequence[tuple[int, Asked]]) -> None:
        if self._path is None:
            return
        rows = [[number, request.source, request.where] for number, request in kept]
        text = json.dumps({"v": _VERSION, "id": self._id, "tables": rows}, ensure_ascii=False)
        make_folder(self._path.parent)
        replace_file(self._path, [text.encode()], durable=True)


def unread_after(resume: Resume) -> Unread:
    """The tables that waited to be read at the log's end; if that is unknown, all that may have waited."""
    unread = Unread(resume.folder)
    if not unread.load(resume.position or {}):
        lost = [Asked(name) for name in sorted(resume.schemas) if name not in resume.snapshots]
        logger_of("databus.sources.mysql").warning(
            "which tables waited to be read is not known any more: all are read again",
            folder=str(resume.folder),
            tables=len(lost),
        )
        unread.add(lost)
    return unread
