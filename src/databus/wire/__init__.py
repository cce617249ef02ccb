"""Frames on disk and on the wire: codec, groups, and the parser of a stream of frames. Start with `Group`.

The format is described in docs/wire-format.md; nothing here does I/O.
"""

from databus.wire._frame import Frame, FrameGroup, FrameParser, check_body
from databus.wire._group import (
    Commit,
    Control,
    EncodedGroup,
    Group,
    OpenSnapshot,
    Registry,
    Rows,
    encode_body,
    encode_group,
)
from databus.wire._header import (
    BODY_BYTES_MAX,
    COMMIT,
    CONTINUES,
    CONTROL,
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    MAGIC,
    ROWS,
    SNAPSHOT,
    Header,
    header_length,
    pack_header,
    unpack_header,
)

__all__ = [
    "BODY_BYTES_MAX",
    "COMMIT",
    "CONTINUES",
    "CONTROL",
    "HEADER_BYTES_MAX",
    "HEADER_BYTES_MIN",
    "MAGIC",
    "ROWS",
    "SNAPSHOT",
    "Commit",
    "Control",
    "EncodedGroup",
    "Frame",
    "FrameGroup",
    "FrameParser",
    "Group",
    "Header",
    "OpenSnapshot",
    "Registry",
    "Rows",
    "check_body",
    "encode_body",
    "encode_group",
    "header_length",
    "pack_header",
    "unpack_header",
]
