"""Files of a log, one after the other: how one ends, and whether the next begins with what it ends with.

A server ends a file with an event that names the next one, or one that says that it was shut down; after a crash, with
neither. Each file begins with the GTIDs of all files before it. So what is missing at the end of a file, or between two
of them, shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from databus.sources.mysql.binlog._event_types import CHECKSUM_BYTES, FILE_MAGIC, HEADER_BYTES, EventType, parse_format
from databus.sources.mysql.binlog._gtid import GtidSet, join_intervals, parse_tagged, uuid_text

_BLOCK_BYTES: Final = 8 << 20
_GTIDS_A_WALK: Final = 1 << 16
_HEAD_EVENTS_MAX: Final = 3
_HEAD_EVENT_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class DomainGtids:
    """MariaDB's: the last number of each server in each domain."""

    last: Mapping[tuple[int, int], int]

    def __bool__(self) -> bool:
        return bool(self.last)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for (domain, server), number in sorted(self.last.items()))


Gtids = GtidSet | DomainGtids


def beyond(gtids: Gtids, other: Gtids) -> Gtids:
    """What `gtids` has and `other` has not."""
    if isinstance(gtids, GtidSet) and isinstance(other, GtidSet):
        return gtids.subtract(other)
    if isinstance(gtids, DomainGtids) and isinstance(other, DomainGtids):
        return DomainGtids({key: number for key, number in gtids.last.items() if other.last.get(key, -1) < number})
    return gtids


def together(gtids: Gtids, other: Gtids) -> Gtids:
    """Both; of MariaDB's, `other` is the later one."""
    if isinstance(gtids, GtidSet) and isinstance(other, GtidSet):
        names = sorted(gtids.parts.keys() | other.parts.keys())
        return GtidSet(
            {name: join_intervals((*gtids.parts.get(name, ()), *other.parts.get(name, ()))) for name in names}
        )
    if isinstance(gtids, DomainGtids) and isinstance(other, DomainGtids):
        return DomainGtids({**gtids.last, **other.last})
    raise ValueError("GTIDs of two kinds")


@dataclass(frozen=True, slots=True)
class FileEnd:
    """How a file of the log ends."""

    before: Gtids | None
    """The GTIDs of all files before it; None where the file does not say."""
    own: Gtids
    """The GTIDs in the file, without the last one."""
    last: Gtids
    """The last GTID of the file (of MariaDB: of its domain)."""
    anonymous: int
    """How many of its transactions have no GTID."""
    rotates_to: str
    """The file that it names as the next; empty if it names none."""
    is_stopped: bool
    """Its last event says that the server was shut down."""


@dataclass(frozen=True, slots=True)
class FileHead:
    """How a file of the log begins."""

    before: Gtids | None
    """The GTIDs of all files before it; None where the file does not say."""
    has_checksum: bool
    """Whether its events end in a checksum."""


def file_head(path: Path) -> FileHead:
    """Read how a file begins. Raises `HeadIncomplete` where that is not all there, and `OSError`."""
    has_checksum = False
    with path.open("rb") as file:
        if file.read(len(FILE_MAGIC)) != FILE_MAGIC:
            if path.stat().st_size < len(FILE_MAGIC):
                raise HeadIncomplete
            return FileHead(None, has_checksum)
        for _ in range(_HEAD_EVENTS_MAX):
            event = _event(file)
            kind = event[4]
            if kind == EventType.FORMAT_DESCRIPTION:
                has_checksum = parse_format(event).has_checksum
                continue
            body = event[HEADER_BYTES : len(event) - (CHECKSUM_BYTES if has_checksum else 0)]
            if kind == EventType.PREVIOUS_GTIDS:
                return FileHead(GtidSet.decode(body), has_checksum)
            if kind == EventType.GTID_LIST:
                return FileHead(_listed(body), has_checksum)
            break
    return FileHead(None, has_checksum)


class HeadIncomplete(Exception):
    """The head of a file is still being written, or was cut."""


def _event(file: BinaryIO) -> bytes:
    header = file.read(HEADER_BYTES)
    size = int.from_bytes(header[9:13], "little")
    if len(header) < HEADER_BYTES or not HEADER_BYTES <= size <= _HEAD_EVENT_BYTES_MAX:
        raise HeadIncomplete
    event = header + file.read(size - HEADER_BYTES)
    if len(event) < size:
        raise HeadIncomplete
    return event


def _listed(body: bytes) -> DomainGtids:
    count = int.from_bytes(body[:4], "little") & 0x0FFFFFFF
    entries = np.frombuffer(body[4 : 4 + 16 * count], np.dtype([("domain", "<u4"), ("server", "<u4"), ("n", "<u8")]))
    return DomainGtids({(int(entry["domain"]), int(entry["server"])): int(entry["n"]) for entry in entries})


def file_end(path: Path) -> FileEnd | None:
    """Read how a file ends; None where it ends inside an event, or has none. Raises `OSError`."""
    try:
        head = file_head(path)
    except HeadIncomplete:
        head = FileHead(None, has_checksum=False)
    walk = _Walk(path, head)
    if not walk.go():
        return None
    own, last = walk.gtids()
    return FileEnd(head.before, own, last, walk.anonymous, walk.rotates_to, walk.is_stopped)


class _Walk:
    """All events of a file."""

    def __init__(self, path: Path, head: FileHead) -> None:
        self._path = path
        self._head = head
        self._parts: dict[str, list[npt.NDArray[np.int64]]] = {}  # MySQL's, by the server's name
        self._last: tuple[str, int] | None = None
        self._domains: dict[tuple[int, int], int] = {}  # MariaDB's, but the last
        self._last_of_domain: tuple[tuple[int, int], int] | None = None
        self.anonymous = 0
        self.rotates_to = ""
        self.is_stopped = False

    def go(self) -> bool:
        """Whether it ends behind an event."""
        from databus.sources.mysql.binlog import _file_kernels as k

        walk, gtid_offsets = np.zeros(k.W_SIZE, np.int64), np.empty(_GTIDS_A_WALK, np.int64)
        size, at = self._path.stat().st_size, len(FILE_MAGIC)
        with self._path.open("rb") as file:
            while at < size:
                file.seek(at)
                data = np.fromfile(file, np.uint8, _BLOCK_BYTES)
                walk[k.W_AT] = walk[k.W_FOUND] = 0
                status = k.walk_events(data, gtid_offsets, walk)
                next_at = int(walk[k.W_AT])
                if status == k.WALK_BROKEN or not next_at:
                    return False
                self._take(data, gtid_offsets[: int(walk[k.W_FOUND])])
                last_bytes = int(walk[k.W_LAST_BYTES])
                if next_at <= len(data):  # else the last event is larger than the block, and was not read whole
                    self._note(int(walk[k.W_LAST_KIND]), data[next_at - last_bytes : next_at].tobytes())
                at += next_at
        self.anonymous = int(walk[k.W_ANONYMOUS])
        return at == size and bool(walk[k.W_LAST_BYTES])

    def _note(self, kind: int, event: bytes) -> None:
        self.is_stopped = kind == EventType.STOP
        self.rotates_to = ""
        if kind == EventType.ROTATE:
            end = len(event) - (CHECKSUM_BYTES if self._head.has_checksum else 0)
            self.rotates_to = event[HEADER_BYTES + 8 : end].decode("utf-8", "replace")

    def _take(self, data: npt.NDArray[np.uint8], gtid_offsets: npt.NDArray[np.int64]) -> None:
        if not len(gtid_offsets):
            return
        kind = int(data[gtid_offsets[0] + 4])
        if kind == EventType.MARIADB_GTID:
            self._take_domains(data, gtid_offsets)
            return
        tagged = data[gtid_offsets + 4] == EventType.GTID_TAGGED
        for at in gtid_offsets[tagged]:
            end = at + int.from_bytes(data[at + 9 : at + 13].tobytes(), "little")
            gtid = parse_tagged(data[at + HEADER_BYTES : end].tobytes())
            self._parts.setdefault(gtid.name, []).append(np.array([gtid.number], np.int64))
            self._last = (gtid.name, gtid.number)
        plain = gtid_offsets[~tagged]
        if not len(plain):
            return
        sids = data[plain[:, None] + np.arange(HEADER_BYTES + 1, HEADER_BYTES + 17)]
        numbers = _numbers(data, plain + HEADER_BYTES + 17, "<i8")
        for sid in np.unique(sids.view("V16").ravel()):
            mask = sids.view("V16").ravel() == sid
            self._parts.setdefault(uuid_text(sid.tobytes()), []).append(numbers[mask])
        if not tagged[-1]:
            self._last = (uuid_text(sids[-1].tobytes()), int(numbers[-1]))

    def _take_domains(self, data: npt.NDArray[np.uint8], gtid_offsets: npt.NDArray[np.int64]) -> None:
        servers = _numbers(data, gtid_offsets + 5, "<u4")
        numbers = _numbers(data, gtid_offsets + HEADER_BYTES, "<i8")
        domains = _numbers(data, gtid_offsets + HEADER_BYTES + 8, "<u4")
        keys = domains << 32 | servers
        if self._last_of_domain is not None:  # it is not the last one after all
            key, number = self._last_of_domain
            self._domains[key] = number
        for packed_key in np.unique(keys[:-1]):
            at = int(np.flatnonzero(keys[:-1] == packed_key)[-1])
            self._domains[int(packed_key) >> 32, int(packed_key) & 0xFFFFFFFF] = int(numbers[at])
        self._last_of_domain = (int(domains[-1]), int(servers[-1])), int(numbers[-1])

    def gtids(self) -> tuple[Gtids, Gtids]:
        """All but the last, and the last."""
        if isinstance(self._head.before, DomainGtids):
            return DomainGtids(self._domains), DomainGtids(dict([self._last_of_domain] if self._last_of_domain else []))
        own = GtidSet({name: _intervals(np.concatenate(parts)) for name, parts in sorted(self._parts.items())})
        if self._last is None:
            return own, GtidSet()
        name, number = self._last
        last = GtidSet({name: ((number, number),)})
        return own.subtract(last), last


def _numbers(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], kind: str) -> npt.NDArray[np.int64]:
    width = np.dtype(kind).itemsize
    numbers: npt.NDArray[np.int64] = data[at[:, None] + np.arange(width)].view(kind).ravel().astype(np.int64)
    return numbers


def _intervals(numbers: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    numbers = np.unique(numbers)
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.r_[0, breaks + 1]], numbers[np.r_[breaks, len(numbers) - 1]]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
