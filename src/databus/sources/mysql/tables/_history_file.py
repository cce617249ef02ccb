"""HistoryStore: a history on disk, beside the log. Appended to and fsynced before a control goes out; compacted.

One file of lines. A line is a CRC-32, an SCN, a kind, a name and a value, separated by tabs; the values of tables are
not read before the table is asked for. A batch of lines ends with a line `end` that counts them; what follows the
last of these is a write that a crash cut off, and goes away.
"""

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from databus.core import CorruptData, LimitExceeded, SourceChanged
from databus.disk import make_folder, replace_file, write_all, write_failure
from databus.sources.mysql.tables._history import HistoryChanges, TableHistory

_FILE: Final = "history"
_MAGIC: Final = b"databus history 1\n"
BYTES_MAX: Final = 256 << 20
_TAIL_BYTES_MIN: Final = 1 << 20
_MEND: Final = (
    "Restore it from a backup of this folder, or remove it: capture then begins a new history at the log's end where "
    "no DDL happened since, or with binlog_row_metadata=FULL, and says so where it cannot"
)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The consecutive lines of one append."""

    scn: int
    start: int
    """Where they begin in the file."""
    end: int
    """Where they end."""
    lines: tuple[tuple[bytes, bytes, bytes], ...]


class HistoryStore:
    """The file in `folder`. One process writes it. bytes_max: what it may grow to once compacted."""

    def __init__(self, folder: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self.path = folder / _FILE
        self._bytes_max = bytes_max
        self._fd: int | None = None
        self._size = 0
        self._base_bytes = 0  # what one full state took when it was last written

    @property
    def exists(self) -> bool:
        """Whether a history was begun here."""
        return self.path.exists()

    @property
    def bytes(self) -> int:
        """The file's size."""
        return self._size

    def begin(self, scn: int, history: TableHistory) -> None:
        """Begin again with all that `history` knows, as of `scn`. Raises `LimitExceeded`, `DiskFull`."""
        history.take_changes()
        self._replace([(scn, history.everything())])

    def load(self, scn: int, history: TableHistory) -> None:
        """Give an empty `history` what it knew at `scn`; what came later is forgotten, since it will be captured again.

        Raises `SourceChanged` if the history is missing or begins later, `CorruptData` if it is damaged.
        """
        batches = self._read()
        if not batches or batches[0].scn > scn:
            since = f"begins at SCN {batches[0].scn}" if batches else "is empty"
            raise SourceChanged(
                f"{self.path}: the history of the tables {since}, and is needed from SCN {scn}. {_MEND}"
            )
        kept = [batch for batch in batches if batch.scn <= scn]
        for batch in kept:
            history.restore(_changes_of(batch))
        history.take_changes()
        self._base_bytes = batches[0].end
        self._open()
        self._cut(kept[-1].end)

    def append(self, scn: int, changes: HistoryChanges) -> None:
        """Keep what changed at `scn`, durably. Raises as `replace_file`, and `LimitExceeded`; nothing was kept then."""
        if not changes:
            return
        if self._fd is None:
            raise AssertionError("append before begin or load")
        raw = _encoded(scn, changes)
        if self._size + len(raw) > self._bytes_max:
            raise LimitExceeded(
                f"{self.path} would exceed {self._bytes_max:,} bytes; raise history_bytes_max, or leave databases out "
                f"of the server's log that is not captured"
            )
        try:
            write_all(self._fd, [raw], self._size)
            os.fdatasync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self._size)  # no half batch may stand before the next one
            raise write_failure(self.path, error) from error
        self._size += len(raw)

    def compact(self, durable_scn: int) -> bool:
        """Put everything up to `durable_scn`, before which the log is never cut back, in one state, if that pays."""
        tail = self._size - self._base_bytes
        # The whole file is written again: that pays once what was appended is as large as the state before it.
        if tail < max(_TAIL_BYTES_MIN, self._base_bytes):
            return False
        batches = self._read()
        old = [batch for batch in batches if batch.scn <= durable_scn]
        if len(old) < 2:
            return False
        whole = HistoryChanges()
        for batch in old:
            changes = _changes_of(batch)
            whole.tables |= changes.tables
            whole.databases |= changes.databases
            whole.others |= changes.others
            whole.notes |= changes.notes
        whole.tables = {name: text for name, text in whole.tables.items() if text is not None}
        whole.databases = {name: charset for name, charset in whole.databases.items() if charset is not None}
        whole.others = {name: True for name, is_there in whole.others.items() if is_there}
        whole.notes = {note: True for note, holds in whole.notes.items() if holds}
        self._replace([(old[-1].scn, whole), *((batch.scn, _changes_of(batch)) for batch in batches[len(old) :])])
        return True

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        self.close()
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size

    def _cut(self, size: int) -> None:
        if self._fd is not None and self._size > size:
            os.ftruncate(self._fd, size)
            os.fdatasync(self._fd)
            self._size = size

    def _replace(self, batches: Iterable[tuple[int, HistoryChanges]]) -> None:
        encoded = [_encoded(scn, changes) for scn, changes in batches]
        size = len(_MAGIC) + sum(len(raw) for raw in encoded)
        if size > self._bytes_max:
            raise LimitExceeded(
                f"{self.path}: the tables of this server take {size:,} bytes, and history_bytes_max is "
                f"{self._bytes_max:,}; raise it"
            )
        make_folder(self.path.parent)
        replace_file(self.path, [_MAGIC, *encoded], durable=True)
        self._base_bytes = len(_MAGIC) + len(encoded[0])
        self._open()

    def _read(self) -> list[_Batch]:
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError as error:
            raise SourceChanged(f"{self.path}: the history of the tables is missing. {_MEND}") from error
        if not raw.startswith(_MAGIC):
            raise CorruptData(f"{self.path}: is no history of this version. {_MEND}")
        return list(_batches(raw, self.path))


def _batches(raw: bytes, path: Path) -> Iterator[_Batch]:
    start = position = len(_MAGIC)
    lines: list[tuple[bytes, bytes, bytes]] = []
    while (end := raw.find(b"\n", position)) >= 0:
        line = raw[position:end]
        crc, _, rest = line.partition(b"\t")
        parts = rest.split(b"\t")
        if len(parts) != 4 or crc != b"%08x" % zlib.crc32(rest):
            if raw.find(b"\tend\t", end) >= 0:
                raise CorruptData(f"{path}: damaged at byte {position}. {_MEND}")
            return  # what a crash left of the last write
        position = end + 1
        if parts[1] != b"end":
            lines.append((parts[1], parts[2], parts[3]))
            continue
        if int(parts[3]) != len(lines):
            raise CorruptData(f"{path}: lines are missing before byte {end}. {_MEND}")
        yield _Batch(int(parts[0]), start, position, tuple(lines))
        start, lines = position, []


def _changes_of(batch: _Batch) -> HistoryChanges:
    changes = HistoryChanges()
    for kind, name, value in batch.lines:
        key = json.loads(name)
        if kind == b"table":
            changes.tables[key[0], key[1]] = value or None
        elif kind == b"database":
            changes.databases[key] = value.decode() or None
        elif kind == b"other":
            changes.others[key[0], key[1]] = value == b"1"
        elif kind == b"note":
            changes.notes[tuple(key)] = value == b"1"
    return changes


def _encoded(scn: int, changes: HistoryChanges) -> bytes:
    lines = [_line(scn, b"table", name, text or b"") for name, text in changes.tables.items()]
    lines += [_line(scn, b"database", name, (charset or "").encode()) for name, charset in changes.databases.items()]
    lines += [_line(scn, b"other", name, b"1" if exists else b"0") for name, exists in changes.others.items()]
    lines += [_line(scn, b"note", note, b"1" if holds else b"0") for note, holds in changes.notes.items()]
    return b"".join([*lines, _line(scn, b"end", None, b"%d" % len(lines))])


def _line(scn: int, kind: bytes, name: object, value: bytes) -> bytes:
    rest = b"%d\t%s\t%s\t%s" % (scn, kind, json.dumps(name, separators=(",", ":")).encode(), value)
    return b"%08x\t%s\n" % (zlib.crc32(rest), rest)
