"""The header of a frame: little-endian, a multiple of 64 bytes, checked by its own CRC-32C.

  0  magic            4 bytes   b"DBF1"
  4  kind             u8        1 rows, 2 commit, 3 control
  5  version          u8        2
  6  flags            u16       1 CONTINUES (commit), 2 SNAPSHOT (the group holds rows that were read, not logged),
                                4 PARTIAL (rows; reserved), 8 UNREAD (commit: tables are to be read whose snapshots
                                have not begun)
  8  header length    u16       a multiple of 64, position and padding included
 10  reserved         u16       0
 12  header CRC-32C   u32       over the header, with this field as zero
 16  body CRC-32C     u32
 20  rows             u32
 24  body length      u64       a multiple of 8
 32  source id        u32       0 in commit frames
 36  schema version   u32
 40  fingerprint      u64       of the TableSchema; 0 in commit frames
 48  first SCN        i64
 56  first seq        i64
 64  last SCN         i64
 72  last seq         i64
 80  commit time      i64       microseconds since 1970, of the last transaction
 88  capture time     i64       microseconds since 1970
 96  position length  u32       0 but in commit frames
100  position         bytes     JSON; then zeros up to the header length. In frames of rows with PARTIAL instead: the
                                length of the presence bitmap, u32, which stands in the body behind the Arrow stream
"""

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from databus.core import CorruptData, LimitExceeded, Pair, UnsupportedFeature

MAGIC: Final = b"DBF1"
VERSION: Final = 2
HEADER_BYTES_MIN: Final = 128
HEADER_BYTES_MAX: Final = 65_472  # the largest multiple of 64 that its u16 field holds
_FIXED: Final = struct.Struct("<4sBBHHHIIIQIIQqqqqqqI")
POSITION_OFFSET: Final = _FIXED.size
_CRC_OFFSET: Final = 12
POSITION_BYTES_MAX: Final = HEADER_BYTES_MAX - POSITION_OFFSET
POSITION_INLINE_BYTES_MAX: Final = 4096 - POSITION_OFFSET
"""How much of a position stands in the header: a reader that walks over headers reads all of it."""
BODY_BYTES_MAX: Final = 1 << 30
COMMIT_BODY_BYTES_MAX: Final = 64 << 20
FRAME_BYTES_MAX: Final = HEADER_BYTES_MAX + BODY_BYTES_MAX

ROWS: Final = 1
COMMIT: Final = 2
CONTROL: Final = 3
_BODY_BYTES_MAX: Final = {ROWS: BODY_BYTES_MAX, COMMIT: COMMIT_BODY_BYTES_MAX, CONTROL: BODY_BYTES_MAX}

CONTINUES: Final = 1
SNAPSHOT: Final = 2
PARTIAL: Final = 4
UNREAD: Final = 8
_FLAGS_KNOWN: Final = CONTINUES | SNAPSHOT | UNREAD

assert POSITION_OFFSET == 100  # noqa: S101 - the layout above, held against the code


class Header(NamedTuple):
    """One frame's header, decoded. Times are microseconds since 1970; `fingerprint` is unsigned."""

    kind: int
    flags: int
    header_bytes: int
    body_crc: int
    rows: int
    body_bytes: int
    source_id: int
    schema_version: int
    fingerprint: int
    first_scn: int
    first_seq: int
    last_scn: int
    last_seq: int
    commit_us: int
    capture_us: int
    position: bytes

    @property
    def frame_bytes(self) -> int:
        """Header and body together."""
        return self.header_bytes + self.body_bytes

    @property
    def first(self) -> Pair:
        """The pair of the first row."""
        return self.first_scn, self.first_seq

    @property
    def last(self) -> Pair:
        """The pair of the last row."""
        return self.last_scn, self.last_seq

    @property
    def continues(self) -> bool:
        """Whether this commit frame ends only a part of a transaction."""
        return bool(self.flags & CONTINUES)

    @property
    def has_unread(self) -> bool:
        """Whether this commit frame says that tables wait whose snapshots have not begun."""
        return bool(self.flags & UNREAD)

    @property
    def publishes(self) -> bool:
        """Whether this is a commit frame that ends a whole transaction."""
        return self.kind == COMMIT and not self.flags & CONTINUES


def pack_header(
    kind: int,
    *,
    flags: int = 0,
    body_crc: int = 0,
    rows: int = 0,
    body_bytes: int = 0,
    source_id: int = 0,
    schema_version: int = 0,
    fingerprint: int = 0,
    first: Pair,
    last: Pair,
    commit_us: int,
    capture_us: int,
    position: bytes = b"",
) -> bytes:
    """Encode a header, its CRC included.

    Raises ValueError where a field does not fit, and `LimitExceeded` for a body that `unpack_header` refuses.
    """
    if len(position) > POSITION_BYTES_MAX:
        raise ValueError(f"a position of {len(position)} bytes exceeds {POSITION_BYTES_MAX}")
    if kind not in _BODY_BYTES_MAX or flags & ~_FLAGS_KNOWN:
        raise ValueError(f"no frame has kind {kind} and flags {flags:#x}")
    check_body_size(kind, body_bytes, "a frame")
    header_bytes = max(HEADER_BYTES_MIN, (POSITION_OFFSET + len(position) + 63) & ~63)
    header = bytearray(header_bytes)
    try:
        _FIXED.pack_into(
            header,
            0,
            MAGIC,
            kind,
            VERSION,
            flags,
            header_bytes,
            0,
            0,
            body_crc,
            rows,
            body_bytes,
            source_id,
            schema_version,
            fingerprint,
            *first,
            *last,
            commit_us,
            capture_us,
            len(position),
        )
    except struct.error as error:
        raise ValueError(f"a field does not fit a frame's header: {error}") from error
    header[POSITION_OFFSET : POSITION_OFFSET + len(position)] = position
    struct.pack_into("<I", header, _CRC_OFFSET, crc32c(header))
    return bytes(header)


def check_body_size(kind: int, body_bytes: int, what: str) -> None:
    """Raise `LimitExceeded` for a body that no reader takes."""
    if body_bytes > _BODY_BYTES_MAX[kind]:
        raise LimitExceeded(f"{what}: {body_bytes} bytes; the body of such a frame has {_BODY_BYTES_MAX[kind]} at most")


def header_length(buf: memoryview, place: str) -> int:
    """The header's length, read from its first 16 bytes. Raises `CorruptData` if this is not the start of a frame."""
    if bytes(buf[:4]) != MAGIC:
        raise CorruptData(f"{place}: no frame starts here (found {bytes(buf[:4]).hex()}, expected {MAGIC.hex()})")
    length = int.from_bytes(buf[8:10], "little")
    if length < HEADER_BYTES_MIN or length % 64:
        raise CorruptData(f"{place}: a header of {length} bytes is not possible")
    return length


def unpack_header(buf: memoryview, place: str) -> Header:
    """Decode and check the header at the start of `buf`, which holds at least all of it.

    place: how to name this spot in an error, such as `seg-17.log at 8192`. Raises `CorruptData` for anything that
    `pack_header` did not write, `UnsupportedFeature` for a whole header of a form that this version does not read.
    """
    length = header_length(buf, place)
    if len(buf) < length:
        raise CorruptData(f"{place}: the header's {length} bytes are cut off after {len(buf)}")
    (
        _magic,
        kind,
        version,
        flags,
        _length,
        _reserved,
        crc,
        body_crc,
        rows,
        body_bytes,
        source_id,
        schema_version,
        fingerprint,
        first_scn,
        first_seq,
        last_scn,
        last_seq,
        commit_us,
        capture_us,
        position_bytes,
    ) = _FIXED.unpack_from(buf)
    seen = crc32c(buf[16:length], crc32c(b"\0\0\0\0", crc32c(buf[:_CRC_OFFSET])))
    if seen != crc:
        raise CorruptData(f"{place}: the header's checksum is {seen:08x}, expected {crc:08x}")
    if version != VERSION or flags & ~_FLAGS_KNOWN:
        raise _unsupported(version, flags, place)
    if body_bytes > _BODY_BYTES_MAX.get(kind, -1) or position_bytes > length - POSITION_OFFSET:
        raise CorruptData(
            f"{place}: impossible header (kind {kind}, body {body_bytes}, position {position_bytes} bytes)"
        )
    return Header(
        kind,
        flags,
        length,
        body_crc,
        rows,
        body_bytes,
        source_id,
        schema_version,
        fingerprint,
        first_scn,
        first_seq,
        last_scn,
        last_seq,
        commit_us,
        capture_us,
        bytes(buf[POSITION_OFFSET : POSITION_OFFSET + position_bytes]) if position_bytes else b"",
    )


def _unsupported(version: int, flags: int, place: str) -> UnsupportedFeature:
    if version != VERSION:
        what = f"frame version {version}, and this databus reads version {VERSION}"
    elif flags & PARTIAL:
        what = f"partial row images (flag {PARTIAL}), which this databus does not read"
    else:
        what = f"flags {flags:#x}, of which this databus knows {_FLAGS_KNOWN:#x}"
    return UnsupportedFeature(f"{place}: {what}; install the version of databus that wrote this")


def whole_commit(header: Header, body: bytes | memoryview) -> Header:
    """A commit frame's header with all of its position, of which a part may stand in the body."""
    if not header.body_bytes:
        return header
    return header._replace(position=header.position[:-1] + b"," + bytes(body[1:]))  # two JSON objects made one
