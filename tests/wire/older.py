"""Frames as other versions of databus write them."""

from collections.abc import Mapping

from crc32c import crc32c

from databus.wire import header_length


def resealed(frame: bytes, changes: Mapping[int, bytes]) -> bytes:
    """A frame with other bytes at these offsets of its header, whose checksum is right again."""
    size = header_length(memoryview(frame), "test")
    header = bytearray(frame[:size])
    for at, value in changes.items():
        header[at : at + len(value)] = value
    header[12:16] = bytes(4)
    header[12:16] = crc32c(header).to_bytes(4, "little")
    return bytes(header) + frame[size:]


def as_version_1(frames: bytes) -> bytes:
    """Frames without what version 1 does not have, as version 1 wrote them."""
    out, at = b"", 0
    while at < len(frames):
        size = header_length(memoryview(frames[at : at + 16]), "test") + int.from_bytes(
            frames[at + 24 : at + 32], "little"
        )
        out += resealed(frames[at : at + size], {5: b"\x01"})
        at += size
    return out
