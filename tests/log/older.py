"""A log made to be one that version 1 wrote: its segments' heads and its frames."""

import json
import struct
from pathlib import Path

from crc32c import crc32c

from databus.log._segment import SegmentHeader
from tests.wire.older import as_version_1

_FIXED = struct.Struct("<4sHHIIIIII")


def make_older(folder: Path) -> None:
    """Turn every segment of a closed log into one of version 1, of the same length."""
    for path in sorted(folder.glob("*.seg")):
        content = path.read_bytes()
        first = SegmentHeader.load(path).header_bytes
        path.write_bytes(_head(content[:first]) + as_version_1(content[first:]))


def _head(head: bytes) -> bytes:
    magic, version, zero, header_bytes, facts_bytes, schemas_bytes, _, schemas_crc, _ = _FIXED.unpack_from(head)
    assert version == 2
    facts = json.loads(head[_FIXED.size : _FIXED.size + facts_bytes])
    for end in ("before", "published"):
        del facts[end]["has_unread"]
    text = json.dumps(facts, separators=(",", ":")).encode()
    schemas = head[_FIXED.size + facts_bytes :][:schemas_bytes]
    fixed = bytearray(_FIXED.size)
    _FIXED.pack_into(fixed, 0, magic, 1, zero, header_bytes, len(text), len(schemas), 0, schemas_crc, 0)
    struct.pack_into("<I", fixed, 20, crc32c(text, crc32c(fixed[:20])))
    return bytes(fixed + text + schemas).ljust(header_bytes, b"\0")
