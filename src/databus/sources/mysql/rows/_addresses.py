"""MariaDB's UUID, INET4 and INET6, 16 or 4 bytes in the log, as the server spells them."""

from typing import Final

import pyarrow as pa

_KINDS: Final = {"uuid": (0, 36), "inet4": (1, 15), "inet6": (2, 39)}
_SLACK: Final = 8


def address_text(kind: str, raw: pa.Array) -> pa.Array:
    """The text of addresses of one kind (`uuid`, `inet4`, `inet6`), each padded to its size."""
    from databus.sources.mysql.rows import _address_kernels as kernels

    rows = len(raw)
    if not rows:
        return pa.array([], pa.string())
    number, length = _KINDS[kind]
    valid, offsets, text = raw.buffers()
    out_offsets, out = pa.allocate_buffer(4 * (rows + 1)), pa.allocate_buffer(length * rows + _SLACK)
    size = kernels.address_text(number, rows, offsets.address, text.address, out_offsets.address, out.address)
    buffers = [valid if raw.null_count else None, out_offsets, out.slice(0, size)]
    return pa.Array.from_buffers(pa.string(), rows, buffers, null_count=raw.null_count)
