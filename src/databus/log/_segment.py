"""Segments: the files that a log is made of; what stands at the head of each, and how bytes are read from one.

A segment is a run of whole groups. It is written by one process, only at its end, and read by many. Its header:

  0  magic           4 bytes   b"DBS1"
  4  version         u16       2
  6  reserved        u16       0
  8  header length   u32       a multiple of 64; the first frame stands there
 12  facts length    u32
 16  schemas length  u32
 20  facts CRC-32C   u32       over bytes 0..20 and the facts
 24  schemas CRC     u32
 28  reserved        u32       0
 32  facts           JSON, see `SegmentHeader`; then the schemas in force, JSON; then zeros up to the header length

A header is durable before the first frame is written behind it, and so is all of the segment before.
"""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from crc32c import crc32c

from databus.core import CorruptData, Identity, LimitExceeded, Pair, UnsupportedFeature
from databus.log._schemas import SchemaVersion, version_json
from databus.wire import Commit, OpenSnapshot

MAGIC: Final = b"DBS1"
VERSION: Final = 2
HEADER_BYTES_MAX: Final = 256 << 20
_FIXED: Final = struct.Struct("<4sHHIIIIII")

ORIGIN: Final = Commit(0, 0, "", {}, 0)
"""What stands before the first group of a new log."""


class End(NamedTuple):
    """The end of a group in the log: the place behind its commit frame, and what that frame said."""

    segment: int
    offset: int
    commit_offset: int
    """Where the commit frame begins; -1 for the origin of a log."""
    commit: Commit
    max_commit_us: int
    """The latest commit time of all groups up to here."""

    @property
    def place(self) -> tuple[int, int]:
        """(segment, offset): comparable."""
        return self.segment, self.offset

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        commit = self.commit
        return {
            "segment": self.segment,
            "offset": self.offset,
            "commit_offset": self.commit_offset,
            "max_commit_us": self.max_commit_us,
            "scn": commit.scn,
            "seq": commit.seq,
            "txid": commit.txid,
            "commit_us": commit.commit_us,
            "continues": commit.continues,
            "has_unread": commit.has_unread,
            "position": dict(commit.position),
            "snapshots": {name: snapshot.to_json() for name, snapshot in commit.snapshots.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "End":
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        commit = Commit(
            int(value["scn"]),
            int(value["seq"]),
            str(value["txid"]),
            dict(value["position"]),
            int(value["commit_us"]),
            {name: OpenSnapshot.from_json(snapshot) for name, snapshot in value["snapshots"].items()},
            continues=bool(value["continues"]),
            has_unread=bool(value["has_unread"]),
        )
        place = int(value["segment"]), int(value["offset"]), int(value["commit_offset"])
        return cls(*place, commit, int(value["max_commit_us"]))


@dataclass(frozen=True)
class SegmentHeader:
    """What a segment says of itself."""

    log: str
    physical: str
    identity: Identity
    number: int
    timeline: int
    created_us: int
    before: End
    """The end of the last group before its first frame."""
    published: End
    """The end of the last whole transaction: before `before` where the segment begins inside a transaction."""
    previous_bytes: int
    """Length of the segment before, 0 for the first."""
    in_force: Mapping[int, int] = field(default_factory=dict)
    """Fingerprint by source id before the first frame."""
    undo: Mapping[int, int] = field(default_factory=dict)
    """What to set back in `in_force` when the log is cut back to `published`."""
    header_bytes: int = 0

    def _facts(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "physical": self.physical,
            "identity": {
                "uuid": self.identity.uuid,
                "scheme": self.identity.scheme,
                "description": self.identity.description,
            },
            "number": self.number,
            "timeline": self.timeline,
            "created_us": self.created_us,
            "before": self.before.to_json(),
            "published": self.published.to_json(),
            "previous_bytes": self.previous_bytes,
            "in_force": fingerprints_to_json(self.in_force),
            "undo": fingerprints_to_json(self.undo),
        }

    def encode(self, schemas: Sequence[SchemaVersion]) -> bytes:
        """The header's bytes. schemas: the definitions that `in_force` names, so that a segment explains itself.

        Raises `LimitExceeded` for a header that `load` would not read.
        """
        facts = json.dumps(self._facts(), separators=(",", ":")).encode()
        table = json.dumps(
            [{"id": s.source_id, "version": s.version, **version_json(s.table)} for s in schemas], separators=(",", ":")
        ).encode()
        header_bytes = (_FIXED.size + len(facts) + len(table) + 63) & ~63
        if header_bytes > HEADER_BYTES_MAX:
            raise LimitExceeded(
                f"{self.physical}: the head of a segment would take {header_bytes} bytes, and the most is "
                f"{HEADER_BYTES_MAX}: {len(self.in_force)} tables are captured. Capture fewer in one physical source"
            )
        fixed = bytearray(_FIXED.size)
        _FIXED.pack_into(fixed, 0, MAGIC, VERSION, 0, header_bytes, len(facts), len(table), 0, crc32c(table), 0)
        struct.pack_into("<I", fixed, 20, crc32c(facts, crc32c(fixed[:20])))
        return bytes(fixed + facts + table).ljust(header_bytes, b"\0")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the header of the segment at `path`; its schemas are left alone.

        Raises `CorruptData` naming the file, `UnsupportedFeature` for one that another version of databus wrote.
        """
        with path.open("rb") as file:
            fixed = file.read(_FIXED.size)
            if len(fixed) < _FIXED.size or fixed[:4] != MAGIC:
                raise CorruptData(
                    f"{path} at 0: no segment starts here (found {fixed[:4].hex()}, expected {MAGIC.hex()})"
                )
            _, version, _, header_bytes, facts_bytes, schemas_bytes, crc, _, _ = _FIXED.unpack(fixed)
            if _FIXED.size + facts_bytes + schemas_bytes > header_bytes or header_bytes > HEADER_BYTES_MAX:
                raise CorruptData(f"{path} at 8: a segment header of {header_bytes} bytes is not possible")
            facts = file.read(facts_bytes)
        if crc32c(facts, crc32c(fixed[:20])) != crc:
            raise CorruptData(f"{path} at 0: the segment header's checksum is not {crc:08x}")
        if version != VERSION:
            raise UnsupportedFeature(
                f"{path} at 4: segment version {version}; this databus reads version {VERSION}. Install the version "
                f"of databus that wrote it, or use another folder for a new log"
            )
        try:
            return cls._from_facts(json.loads(facts), header_bytes)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"{path} at {_FIXED.size}: the segment header is not readable: {error!r}") from error

    @classmethod
    def _from_facts(cls, facts: Mapping[str, Any], header_bytes: int) -> Self:
        return cls(
            log=str(facts["log"]),
            physical=str(facts["physical"]),
            identity=Identity(**facts["identity"]),
            number=int(facts["number"]),
            timeline=int(facts["timeline"]),
            created_us=int(facts["created_us"]),
            before=End.from_json(facts["before"]),
            published=End.from_json(facts["published"]),
            previous_bytes=int(facts["previous_bytes"]),
            in_force=fingerprints_from_json(facts["in_force"]),
            undo=fingerprints_from_json(facts["undo"]),
            header_bytes=header_bytes,
        )


def fingerprints_to_json(by_id: Mapping[int, int]) -> dict[str, str]:
    """Fingerprints by source id, as JSON holds 64-bit numbers safely."""
    return {str(source_id): f"{fingerprint:016x}" for source_id, fingerprint in by_id.items()}


def fingerprints_from_json(value: Mapping[str, str]) -> dict[int, int]:
    """Read what `fingerprints_to_json` wrote."""
    return {int(source_id): int(fingerprint, 16) for source_id, fingerprint in value.items()}


class SegmentFile:
    """An open segment; the descriptor lives as long as somebody holds this object, whatever happens to the name."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self.fd = os.open(path, flags | os.O_CLOEXEC)

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)

    def size(self) -> int:
        """The file's length now."""
        return os.fstat(self.fd).st_size


class Segment:
    """One segment of an open log. `sealed_bytes`: its length once the next one has begun, None before."""

    __slots__ = ("header", "path", "sealed_bytes")

    def __init__(self, path: Path, header: SegmentHeader, sealed_bytes: int | None) -> None:
        self.path = path
        self.header = header
        self.sealed_bytes = sealed_bytes

    @property
    def number(self) -> int:
        """Its place in the log, from 1."""
        return self.header.number

    @property
    def first_offset(self) -> int:
        """Where its first frame stands."""
        return self.header.header_bytes

    @property
    def before(self) -> Pair:
        """The pair before its first frame."""
        return self.header.before.commit.pair

    def index_path(self) -> Path:
        """Its index's file."""
        return self.path.with_suffix(".idx")


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment; names sort as numbers do."""
    return folder / f"{number:012d}.seg"


def segment_numbers(folder: Path) -> list[int]:
    """The numbers of the segments in `folder`, ascending."""
    return sorted(int(path.stem) for path in folder.glob("*.seg") if path.stem.isdigit())
