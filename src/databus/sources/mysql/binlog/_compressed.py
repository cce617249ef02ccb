"""Compressed parts of the log: MySQL's whole transactions (zstd), MariaDB's single events (zlib). Bounded memory.

What is inflated is cut into pieces of whole events, so that it goes through the same kernel as everything else.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from databus.core import UnsupportedFeature, how_to_install
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._byte_reader import ByteReader
from databus.sources.mysql.binlog._event_types import HEADER_BYTES
from databus.sources.mysql.binlog._table_map import packed

PIECE_BYTES: Final = 1 << 20
_ZSTD: Final = 0
_NONE: Final = 255
_HEAD_BYTES: Final = 256  # more than the fields before the payload take
_WINDOW_BYTES_MAX: Final = 1 << 27


@dataclass(frozen=True, slots=True)
class Payload:
    """A TRANSACTION_PAYLOAD event: how its bytes are compressed, how many they will be."""

    compression: int
    inflated_bytes: int
    data: memoryview


class EventTooLarge(Exception):
    """An event inside a payload is larger than the limit."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def parse_payload(body: memoryview) -> Payload:
    """Read a payload event's body: fields of type, length and value, then the bytes. Raises `ValueError`."""
    reader = ByteReader(bytes(body[:_HEAD_BYTES]))
    compression, inflated, size = _NONE, -1, -1
    while True:
        kind = packed(reader)
        if kind == 0:
            break
        field = ByteReader(reader.take(packed(reader)))
        if kind == 1:
            size = packed(field)
        elif kind == 2:
            compression = packed(field)
        elif kind == 3:
            inflated = packed(field)
    data = body[reader.at :]
    if size >= 0 and size != len(data):
        raise ValueError(f"a payload of {len(data)} bytes that says it has {size}")
    return Payload(compression, inflated if inflated >= 0 else len(data), data)


def inflate(payload: Payload) -> Iterator[bytes]:
    """The bytes inside, in pieces. Raises `ValueError` if they are malformed or not as many as announced."""
    if payload.compression == _NONE:
        yield from (bytes(payload.data[i : i + PIECE_BYTES]) for i in range(0, len(payload.data), PIECE_BYTES))
        return
    if payload.compression != _ZSTD:
        raise ValueError(f"a payload compressed by the unknown method {payload.compression}")
    try:
        import zstandard
    except ImportError as error:
        raise UnsupportedFeature(
            "the log holds compressed transactions (binlog_transaction_compression=ON), and the package `zstandard` "
            f"is not installed: {how_to_install('mysql')}"
        ) from error
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).stream_reader(
        payload.data, read_across_frames=True
    )
    count = 0
    try:
        while piece := reader.read(PIECE_BYTES):
            count += len(piece)
            if count > payload.inflated_bytes:
                break
            yield piece
    except zstandard.ZstdError as error:
        raise ValueError(f"a payload that is no zstd stream: {error}") from error
    if count != payload.inflated_bytes:
        raise ValueError(f"a payload that inflates to {count} bytes instead of {payload.inflated_bytes}")


def whole_events(pieces: Iterator[bytes], event_bytes_max: int) -> Iterator[bytes]:
    """The same bytes, cut between events.

    Raises `EventTooLarge`, or `ValueError` if one is cut off, has no size, or is a mark (only databus makes marks).
    """
    rest = bytearray()
    for piece in pieces:
        rest += piece
        at = 0
        while len(rest) - at >= HEADER_BYTES:
            size = int.from_bytes(rest[at + 9 : at + 13], "little")
            if size > event_bytes_max:
                raise EventTooLarge(size)
            if size < HEADER_BYTES:
                raise ValueError(f"an event of {size} bytes inside a payload")
            if rest[at + 4] == s.MARK_TYPE:
                raise ValueError("a kind of event inside a payload that no server writes")
            if size > len(rest) - at:
                break
            at += size
        if at:
            yield bytes(rest[:at])
            del rest[:at]
    if rest:
        raise ValueError("a payload that ends inside an event")


def mark(offset: int) -> bytes:
    """A pseudo event: what follows stands at this offset of the file."""
    size = HEADER_BYTES + 8
    return (
        b"\0" * 4
        + bytes([s.MARK_TYPE])
        + b"\0" * 4
        + size.to_bytes(4, "little")
        + b"\0" * 6
        + offset.to_bytes(8, "little")
    )


def inflate_event(data: memoryview, inflated_bytes: int) -> bytes:
    """Bytes compressed by MariaDB, after their head. Raises `ValueError`."""
    reader = zlib.decompressobj()
    try:
        raw = reader.decompress(
            data, inflated_bytes + 1
        )  # one more than announced, so that the end of the stream is read
    except zlib.error as error:
        raise ValueError(f"a compressed event that is no zlib stream: {error}") from error
    if len(raw) != inflated_bytes or not reader.eof:
        raise ValueError(f"a compressed event that does not inflate to the {inflated_bytes} bytes it announces")
    return raw
