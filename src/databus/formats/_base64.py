"""Columns of bytes as base64 and back, a whole column at a time."""

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.formats._buffers import bytes_without_nulls, places_of, spread, validity_of


def base64_texts(column: pa.Array) -> pa.LargeStringArray:
    """Binary values in base64: each is padded to threes, so that all are one run for the C library."""
    large = column.cast(pa.large_binary())
    lengths = pc.binary_length(large).fill_null(0).to_numpy().astype(np.int64)
    padded = -(-lengths // 3) * 3
    starts, ends = places_of(padded)
    run = np.zeros(ends, np.uint8)
    run[spread(starts, lengths)] = np.frombuffer(bytes_without_nulls(large), np.uint8)
    text = np.frombuffer(bytearray(base64.b64encode(run.data)), np.uint8)
    lasts = (starts + padded) // 3 * 4
    for count in (1, 2):
        text[lasts[padded - lengths >= count] - count] = ord("=")
    offsets = np.append(starts // 3 * 4, ends // 3 * 4)
    return pa.LargeStringArray.from_buffers(
        len(large), pa.py_buffer(offsets), pa.py_buffer(text), validity_of(large), large.null_count
    )


def base64_bytes(text: pa.LargeStringArray) -> pa.LargeBinaryArray:
    """What `base64_texts` wrote. Raises `ValueError` for anything else."""
    lengths = pc.binary_length(text).fill_null(0).to_numpy().astype(np.int64)
    if (lengths % 4).any():
        raise ValueError("base64 whose length is not a multiple of 4")
    run = np.frombuffer(bytearray(bytes_without_nulls(text.cast(pa.large_binary()))), np.uint8)
    starts, _ = places_of(lengths)
    lasts = (starts + lengths)[lengths > 0]
    pads = np.zeros(len(text), np.int64)
    is_pad = run[lasts - 1] == ord("=")
    is_second = is_pad & (run[lasts - 2] == ord("="))
    pads[lengths > 0] = is_pad.astype(np.int64) + is_second
    run[lasts[is_pad] - 1] = ord("A")
    run[lasts[is_second] - 2] = ord("A")
    decoded = np.frombuffer(base64.b64decode(run.tobytes(), validate=True), np.uint8)
    kept = lengths // 4 * 3 - pads
    values = decoded[spread(starts // 4 * 3, kept)]
    offsets = np.append(0, np.cumsum(kept))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(text), [validity_of(text), pa.py_buffer(offsets), pa.py_buffer(values)], text.null_count
    )
