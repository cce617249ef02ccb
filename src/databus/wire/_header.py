"""The header of a frame: little-endian, a multiple of 64 bytes, checked by its own CRC-32C.

  0  magic            4 bytes   b"DBF1"
  4  kind             u8        1 rows, 2 commit, 3 control
  5  version          u8        1
  6  flags            u16       1 CONTINUES (commit), 2 SNAPSHOT (the group holds rows that were read, not logged)
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
100  position         bytes     JSON; then zeros up to the header length
"""

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from databus.core import Corrupt, Pair

MAGIC: Final = b"DBF1"
VERSION: Final = 1
HEADER_BYTES_MIN: Final = 128
HEADER_BYTES_MAX: Final = 65_472  # the largest multiple of 64 that its u16 field holds
_FIXED: Final = struct.Struct("<4sBBHHHIIIQIIQqqqqqqI")
POSITION_OFFSET: Final = _FIXED.size
_CRC_OFFSET: Final = 12
POSITION_BYTES_MAX: Final = HEADER_BYTES_MAX - POSITION_OFFSET
BODY_BYTES_MAX: Final = 1 << 30

ROWS: Final = 1
COMMIT: Final = 2
CONTROL: Final = 3

CONTINUES: Final = 1
SNAPSHOT: Final = 2

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
    """Encode a header, its CRC included. Raises ValueError where a field does not fit."""
    if len(position) > POSITION_BYTES_MAX:
        raise ValueError(f"a position of {len(position)} bytes exceeds {POSITION_BYTES_MAX}")
    header_bytes = max(HEADER_BYTES_MIN, (POSITION_OFFSET + len(position) + 63) & ~63)
    header = bytearray(header_bytes)
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
    header[POSITION_OFFSET : POSITION_OFFSET + len(position)] = position
    struct.pack_into("<I", header, _CRC_OFFSET, crc32c(header))
    return bytes(header)


def header_length(buf: memoryview, place: str) -> int:
    """The header's length, read from its first 16 bytes. Raises `Corrupt` if this is not the start of a frame."""
    if bytes(buf[:4]) != MAGIC:
        raise Corrupt(f"{place}: no frame starts here (found {bytes(buf[:4]).hex()}, expected {MAGIC.hex()})")
    length = int.from_bytes(buf[8:10], "little")
    if length < HEADER_BYTES_MIN or length % 64:
        raise Corrupt(f"{place}: a header of {length} bytes is not possible")
    return length


def unpack_header(buf: memoryview, place: str) -> Header:
    """Decode and check the header at the start of `buf`, which holds at least all of it.

    place: how to name this spot in an error, such as `seg-17.log at 8192`. Raises `Corrupt` for anything that
    `pack_header` did not write.
    """
    length = header_length(buf, place)
    if len(buf) < length:
        raise Corrupt(f"{place}: the header's {length} bytes are cut off after {len(buf)}")
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
        raise Corrupt(f"{place}: the header's checksum is {seen:08x}, expected {crc:08x}")
    if version != VERSION:
        raise Corrupt(f"{place}: frame version {version}; this databus reads version {VERSION}")
    if kind not in (ROWS, COMMIT, CONTROL) or body_bytes > BODY_BYTES_MAX or position_bytes > length - POSITION_OFFSET:
        raise Corrupt(f"{place}: impossible header (kind {kind}, body {body_bytes}, position {position_bytes} bytes)")
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
