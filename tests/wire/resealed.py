"""Frames with other headers, as other versions of databus may write them."""

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
