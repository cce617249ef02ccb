"""PreparedStore: XA transactions between their prepare and their commit, in a file beside the log.

Their rows come in the server's log with the prepare; whether they are committed, it says at any time later. So they are
kept, durably before the relay's log goes beyond the prepare, until the relay's log is durable beyond the commit.

One file of records, appended to: a prepared transaction with its events, or the end of one. What is on it for later
than where the relay's log ends is dropped when it is opened: the server's log brings it again.
"""

import os
import struct
import tempfile
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from databus.core import CorruptData, LimitExceeded, make_scn, source_name
from databus.disk import disk_full, is_no_room, make_folder, replace_file, replacing
from databus.log import Resume
from databus.sources.mysql._config import BinlogConfig, MysqlConfig
from databus.sources.mysql._rolled_back_rows import selection_of
from databus.sources.mysql.binlog._compressed import whole_events
from databus.sources.mysql.binlog._prepared import tables_in
from databus.sources.mysql.snapshot import XaHistory

_FILE: Final = "prepared"
_MAGIC: Final = b"databus prepared 1\n"
# mark, kind, is whole, bytes of the id, SCN, selection, CRC of the events, their bytes, CRC of all this and the id
_HEAD: Final = struct.Struct("<4sBBHQIIQI")
_MARK: Final = b"xa\r\n"
_PREPARED, _ENDED, _ALTERED = 1, 2, 3
_MEMORY_BYTES_MAX: Final = 1 << 20  # of one transaction that is not in the file yet
_PIECE_BYTES: Final = 1 << 20
_OPEN_MAX: Final = 1 << 16  # transactions that are prepared and not decided
_GARBAGE_BYTES_MAX: Final = 16 << 20  # of ended transactions, before the file is compacted


@dataclass(slots=True)
class _Entry:
    """One prepared transaction."""

    xid: str
    scn: int
    is_whole: bool
    size_bytes: int
    crc: int
    data: bytes | None = None
    """Its events, while they are not in the file."""
    offset: int = -1
    """Where its events begin in the file; -1 while they are not there."""
    ended: int = 0
    """The SCN of its commit or rollback; 0 before that."""
    altered: str = ""
    """One of its tables that a statement has changed since the prepare; empty if none was."""
    altered_scn: int = 0
    """The SCN of that statement."""


class PreparedStore:
    """See `binlog.Prepared`. scn: where the relay's log ends; what was prepared later is forgotten.

    folder: nowhere durable without one. selection: what is captured, as text; a transaction of which something else was
    omitted is forgotten when that changes. bytes_max: what all of them may take. `history` gets each of them.
    """

    def __init__(
        self, physical: str, folder: Path | None, *, scn: int, timeline: int, selection: str, bytes_max: int
    ) -> None:
        self._physical = physical
        self._folder = folder
        self._timeline = timeline
        self._selection = zlib.crc32(selection.encode())
        self._bytes_max = bytes_max
        self._entries: dict[str, list[_Entry]] = {}
        self._unwritten: list[_Entry] = []
        self._unwritten_bytes = 0
        self._ended: deque[_Entry] = deque()
        self._live_bytes = 0
        self._count = 0
        self._open_count = 0
        self._is_unsynced = False
        self._spool: IO[bytes] | None = None
        self._spool_crc = 0
        self.history = XaHistory()
        self._file = self._opened()
        self._size = len(_MAGIC)
        self._load(scn)

    @property
    def has_ended(self) -> bool:
        """Whether `durable` has something to forget."""
        return bool(self._ended)

    def clear(self) -> None:
        """Forget all: a part of the log was lost, and may have committed what was prepared, or rolled it back."""
        self._entries, self._unwritten, self._ended, self._live_bytes, self._count = {}, [], deque(), 0, 0
        self._open_count = self._unwritten_bytes = 0
        self._truncate(len(_MAGIC))

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._spool is not None:
            self._spool.close()

    # What the scanner calls

    def begin(self) -> None:
        """See `Prepared.begin`."""
        if self._spool is not None:
            self._spool.close()
        folder = None if self._folder is None else str(self._folder)
        self._spool = tempfile.SpooledTemporaryFile(_MEMORY_BYTES_MAX, dir=folder)  # noqa: SIM115 - closed later
        self._spool_crc = 0

    def add(self, event: bytes) -> None:
        """See `Prepared.add`. Raises `LimitExceeded`, `DiskFull`."""
        assert self._spool is not None  # noqa: S101 - it was begun
        with self._telling():
            self._spool.write(event)
        self._spool_crc = zlib.crc32(event, self._spool_crc)
        if self._spool.tell() + self._live_bytes > self._bytes_max:
            raise LimitExceeded(
                f"{self._physical}: XA transactions that are prepared and not decided take more than "
                f"prepared_bytes_max ({self._bytes_max}); decide them (XA RECOVER names them), or raise the limit"
            )

    def take(self) -> Iterator[bytes]:
        """See `Prepared.take`."""
        spool, self._spool = self._spool, None
        assert spool is not None  # noqa: S101 - it was begun
        spool.seek(0)
        with spool:
            yield from whole_events(iter(lambda: spool.read(_PIECE_BYTES), b""), 1 << 62)

    def prepare(self, xid: str, ordinal: int, *, is_whole: bool) -> None:
        """See `Prepared.prepare`."""
        spool, self._spool = self._spool, None
        assert spool is not None  # noqa: S101 - it was begun
        with spool:
            entry = _Entry(xid, make_scn(self._timeline, ordinal), is_whole, spool.tell(), self._spool_crc)
            self.history.prepared(xid, entry.scn)
            spool.seek(0)
            if entry.size_bytes <= _MEMORY_BYTES_MAX:
                entry.data = spool.read()
                self._unwritten.append(entry)
                self._unwritten_bytes += entry.size_bytes
            else:
                self._write(entry, iter(lambda: spool.read(_PIECE_BYTES), b""))
        self._note(entry)
        if self._unwritten_bytes > _MEMORY_BYTES_MAX:
            self._write_all(0)

    def commit(self, xid: str, ordinal: int) -> Iterator[bytes] | None:
        """See `Prepared.commit`."""
        scn = make_scn(self._timeline, ordinal)
        self.history.committed(xid, scn)
        entry = self._end(xid, scn)
        return None if entry is None else self._pieces(entry)

    def altered(self, xid: str) -> str:
        """See `Prepared.altered`."""
        return next((entry.altered for entry in self._entries.get(xid, ()) if entry.altered and not entry.ended), "")

    def forget(self, xid: str, ordinal: int) -> None:
        """See `Prepared.forget`."""
        self._end(xid, make_scn(self._timeline, ordinal))

    # What the session calls

    @property
    def has_open(self) -> bool:
        """Whether a transaction is prepared and neither committed nor rolled back."""
        return bool(self._open_count)

    def alter(self, tables: Collection[tuple[str, str]], scn: int) -> None:
        """A statement changes these tables, (database, name), while what is prepared may have rows of them."""
        names = {(database.casefold(), name.casefold()) for database, name in tables}
        for entry in (candidate for entries in self._entries.values() for candidate in entries):
            if entry.ended or entry.altered:
                continue
            touched = [
                table for table in tables_in(self._pieces(entry)) if (table[0].casefold(), table[1].casefold()) in names
            ]
            if touched:
                entry.altered, entry.altered_scn = source_name(*min(touched)), scn
                if entry.offset >= 0:
                    self._append_altered(entry)

    def sync(self, scn: int) -> None:
        """Write everything to disk that is open at `scn`. Raises `DiskFull`."""
        if self._unwritten:
            self._write_all(scn)
        if self._is_unsynced:
            with self._telling():
                self._file.flush()
                os.fsync(self._file.fileno())
            self._is_unsynced = False

    def durable(self, scn: int) -> None:
        """The relay's log is never cut back to before `scn`: what had ended by then is not needed any more."""
        is_any = False
        while self._ended and self._ended[0].ended <= scn:
            entry = self._ended.popleft()
            self._drop(entry)
            is_any = True
        if not is_any:
            return
        if not self._count:
            self._truncate(len(_MAGIC))
        # What is live is copied: that pays once the file has more garbage than that.
        elif self._size - self._live_bytes > max(_GARBAGE_BYTES_MAX, self._live_bytes):
            self._compact()

    # Entries

    def _note(self, entry: _Entry) -> None:
        if self._open_count >= _OPEN_MAX:
            raise LimitExceeded(
                f"{self._physical}: more than {_OPEN_MAX} XA transactions are prepared and not decided; decide them "
                f"(XA RECOVER names them)"
            )
        self._entries.setdefault(entry.xid, []).append(entry)
        self._live_bytes += entry.size_bytes
        self._count += 1
        self._open_count += 1

    def _end(self, xid: str, scn: int) -> _Entry | None:
        """The transaction of that id that is open at `scn` ends there."""
        open_entries = [entry for entry in self._entries.get(xid, ()) if not entry.ended and entry.scn <= scn]
        if not open_entries:
            return None
        for entry in open_entries:  # of an older one, the end was passed over
            entry.ended = scn
            self._open_count -= 1
            self._ended.append(entry)
            if entry.offset >= 0:
                self._append(_ENDED, entry.xid, scn, is_whole=True, crc=0, size=0)
        return open_entries[-1]

    def _drop(self, entry: _Entry) -> None:
        left = [other for other in self._entries[entry.xid] if other is not entry]
        if left:
            self._entries[entry.xid] = left
        else:
            del self._entries[entry.xid]
        self._live_bytes -= entry.size_bytes
        self._count -= 1
        if entry.data is not None:
            self._unwritten = [other for other in self._unwritten if other is not entry]
            self._unwritten_bytes -= entry.size_bytes

    def _pieces(self, entry: _Entry) -> Iterator[bytes]:
        return whole_events(iter([entry.data]) if entry.data is not None else self._read(entry), 1 << 62)

    def _read(self, entry: _Entry) -> Iterator[bytes]:
        """Its events, from the file. The file may be appended to or compacted meanwhile."""
        done, crc = 0, 0
        while done < entry.size_bytes:
            self._file.flush()
            piece = os.pread(self._file.fileno(), min(entry.size_bytes - done, _PIECE_BYTES), entry.offset + done)
            crc = zlib.crc32(piece, crc)
            done += len(piece)
            if not piece or (done == entry.size_bytes and crc != entry.crc):
                raise CorruptData(
                    f"{self._file.name} at {entry.offset}: the XA transaction {entry.xid} there is damaged; remove the "
                    f"file: it is read again from the server's log"
                )
            yield piece

    # The file

    def _opened(self) -> IO[bytes]:
        if self._folder is None:
            file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
            file.write(_MAGIC)
            return file  # type: ignore[no-any-return]
        make_folder(self._folder)
        path = self._folder / _FILE
        if not path.exists() or path.stat().st_size < len(_MAGIC):
            replace_file(path, [_MAGIC], durable=True)
        return path.open("r+b")

    def _load(self, scn: int) -> None:
        """Read what is there, up to what a crash cut off."""
        end = os.fstat(self._file.fileno()).st_size
        if self._folder is None:
            return
        if os.pread(self._file.fileno(), len(_MAGIC), 0) != _MAGIC:
            raise CorruptData(
                f"{self._file.name}: it does not begin with {_MAGIC!r}; remove it: the server's log is read again"
            )
        entries, at = self._records(scn, end)
        for entry in entries:
            if not entry.ended:
                self._note(entry)
        self._truncate(at if self._count else len(_MAGIC))

    def _records(self, scn: int, end: int) -> tuple[list[_Entry], int]:
        """What was prepared up to `scn`, and where the last whole record ends."""
        entries: dict[tuple[str, int], _Entry] = {}
        at = len(_MAGIC)
        while (record := self._record(at, end)) is not None:
            kind, entry, selection, at = record
            if entry.scn > scn or entry.scn >> 55 != self._timeline:
                continue
            if kind in (_ENDED, _ALTERED):
                for older in entries.values():
                    if older.xid != entry.xid or older.scn > entry.scn or older.ended:
                        continue
                    if kind == _ENDED:
                        older.ended = entry.scn
                    else:
                        older.altered = os.pread(self._file.fileno(), entry.size_bytes, entry.offset).decode()
                        older.altered_scn = entry.scn
            elif entry.is_whole or selection == self._selection:
                entries[entry.xid, entry.scn] = entry
        return list(entries.values()), at

    def _record(self, at: int, end: int) -> tuple[int, _Entry, int, int] | None:
        """Kind, entry and selection of the record at a place, and where the next is; None if none is whole there."""
        head = os.pread(self._file.fileno(), _HEAD.size, at)
        if len(head) < _HEAD.size:
            return None
        mark, kind, is_whole, id_bytes, scn, selection, crc, size, check = _HEAD.unpack(head)
        xid = os.pread(self._file.fileno(), id_bytes, at + _HEAD.size)
        offset = at + _HEAD.size + id_bytes
        if mark != _MARK or offset + size > end or zlib.crc32(xid, zlib.crc32(head[:-4])) != check:
            return None
        return kind, _Entry(xid.decode(), scn, bool(is_whole), size, crc, None, offset), selection, offset + size

    def _write_all(self, scn: int) -> None:
        """Append what is only in memory, but what has ended by `scn`."""
        for entry in self._unwritten:
            if not entry.ended or entry.ended > scn:
                assert entry.data is not None  # noqa: S101 - it is unwritten
                self._write(entry, iter([entry.data]))
                if entry.ended:
                    self._append(_ENDED, entry.xid, entry.ended, is_whole=True, crc=0, size=0)
            else:
                entry.data = None  # a log that is cut back to before its end is so to before its prepare, too
        self._unwritten, self._unwritten_bytes = [], 0

    def _write(self, entry: _Entry, pieces: Iterator[bytes]) -> None:
        self._append(_PREPARED, entry.xid, entry.scn, is_whole=entry.is_whole, crc=entry.crc, size=entry.size_bytes)
        entry.offset = self._size
        with self._telling():
            for piece in pieces:
                self._file.write(piece)
        self._size += entry.size_bytes
        entry.data = None
        if entry.altered:
            self._append_altered(entry)

    def _append_altered(self, entry: _Entry) -> None:
        record = self._altered_record(entry)
        with self._telling():
            self._file.seek(self._size)
            self._file.write(record)
        self._size += len(record)
        self._is_unsynced = True

    def _altered_record(self, entry: _Entry) -> bytes:
        name = entry.altered.encode()
        head = self._head(_ALTERED, entry.xid, entry.altered_scn, is_whole=True, crc=zlib.crc32(name), size=len(name))
        return head + name

    def _append(self, kind: int, xid: str, scn: int, *, is_whole: bool, crc: int, size: int) -> None:
        record = self._head(kind, xid, scn, is_whole=is_whole, crc=crc, size=size)
        with self._telling():
            self._file.seek(self._size)
            self._file.write(record)
        self._size += len(record)
        self._is_unsynced = True

    def _head(self, kind: int, xid: str, scn: int, *, is_whole: bool, crc: int, size: int) -> bytes:
        name = xid.encode()
        head = _HEAD.pack(_MARK, kind, is_whole, len(name), scn, self._selection, crc, size, 0)[:-4]
        return head + zlib.crc32(name, zlib.crc32(head)).to_bytes(4, "little") + name

    def _truncate(self, size: int) -> None:
        self._file.flush()
        self._file.truncate(size)
        self._size = size

    def _compact(self) -> None:
        """Keep only what is still needed, in a new file."""
        if self._folder is None:
            return
        path = self._folder / _FILE
        moved: list[tuple[_Entry, int]] = []
        with replacing(path) as file:
            file.write(_MAGIC)
            for entry in [
                candidate for entries in self._entries.values() for candidate in entries if candidate.offset >= 0
            ]:
                file.write(
                    self._head(
                        _PREPARED, entry.xid, entry.scn, is_whole=entry.is_whole, crc=entry.crc, size=entry.size_bytes
                    )
                )
                moved.append((entry, file.tell()))
                for piece in self._read(entry):
                    file.write(piece)
                if entry.altered:
                    file.write(self._altered_record(entry))
                if entry.ended:
                    file.write(self._head(_ENDED, entry.xid, entry.ended, is_whole=True, crc=0, size=0))
            size = file.tell()
        self._file.close()
        self._file, self._size = path.open("r+b"), size
        for entry, offset in moved:  # not before: until then, `_read` reads the old file
            entry.offset = offset

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_no_room(error):
                raise disk_full(self._folder or Path(tempfile.gettempdir()), error) from error
            raise


def open_store(physical: str, config: MysqlConfig | BinlogConfig, resume: Resume, timeline: int) -> PreparedStore:
    """What a session that begins at `resume` holds."""
    return PreparedStore(
        physical,
        resume.folder,
        scn=resume.scn,
        timeline=timeline,
        selection=selection_of(config),
        bytes_max=config.prepared_bytes_max,
    )


def forget_prepared(folder: Path | None) -> None:
    """Delete the file: a part of the log is passed over, which may decide what is prepared. Capture looks again."""
    if folder is not None:
        (folder / _FILE).unlink(missing_ok=True)
