"""Kernels against the slow and the known."""

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from databus.sources.mysql.binlog import _crc_kernels as kernels


@given(st.integers(0, 700), st.integers(0, 70), st.integers(0, 1 << 32))
def test_checksums_are_zlibs_for_every_length_and_alignment(length: int, start: int, seed: int) -> None:
    memory = np.random.default_rng(seed).integers(0, 256, start + length + 64, np.uint8)
    memory.flags.writeable = False
    piece = memory[start : start + length]
    assert kernels.crc32(kernels.make_crc_table(), piece) == zlib.crc32(piece.tobytes())


def test_checksums_of_many_bytes_are_zlibs() -> None:
    table = kernels.make_crc_table()
    for length in (4_095, 65_536, 1_000_003):
        piece = np.frombuffer(np.random.default_rng(length).bytes(length), np.uint8)
        assert kernels.crc32(table, piece) == zlib.crc32(piece.tobytes())
