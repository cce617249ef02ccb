"""Buckets of keys: Kafka's murmur2 over canonical key bytes, computed with NumPy over many keys at once.

A key's bucket is the partition that Kafka's own producer would choose for these bytes among as many partitions. The
specification, with test vectors, is docs/key-bytes.md.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.schema._key_bytes import key_bytes

Hashes = npt.NDArray[np.uint32]
Int = npt.NDArray[np.int64]

_M: Final = np.uint32(0x5BD1E995)
_SEED: Final = 0x9747B28C
_R: Final = np.uint32(24)
_WHOLE: Final = (pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint32(), pa.uint16(), pa.uint8())
_KEYS_AT_ONCE: Final = 16_384  # what the arithmetic works on stays in the processor's cache


def key_hashes(keys: pa.LargeBinaryArray) -> Hashes:
    """murmur2 of each key, as Kafka has it but unsigned; a null key has the hash of no bytes.

    One step handles four bytes of many keys: fast for keys of up to some hundred bytes, right for any length.
    """
    starts, lengths, octets = _layout(keys)
    if len(starts) and lengths[0] and lengths[0] % 4 == 0 and (lengths == lengths[0]).all() and not keys.null_count:
        end = starts[0] + len(starts) * lengths[0]
        return _murmur2_of_equal(octets[starts[0] : end].view("<u4").reshape(len(starts), -1))
    words = np.ndarray((max(len(octets) - 3, 0),), "<u4", octets.data, strides=(1,))  # at each byte, not each fourth
    hashes = np.empty(len(keys), np.uint32)
    for first in range(0, len(keys), _KEYS_AT_ONCE):
        part = slice(first, first + _KEYS_AT_ONCE)
        hashes[part] = _murmur2(starts[part], lengths[part], words, octets)
    return hashes


def column_hashes(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """`key_hashes` of the keys in these columns. A key of one whole number is hashed without laying out its bytes."""
    first = columns[0] if len(columns) == 1 else None
    if isinstance(first, pa.Array) and first.type in _WHOLE and not first.null_count:
        return _murmur2_of_equal(np.asarray(first).astype(">i8").view("<u4").reshape(-1, 2))
    return key_hashes(key_bytes(columns))


def key_buckets(keys: pa.LargeBinaryArray, buckets: int) -> Int:
    """The number of each key's bucket, from 0 to `buckets` - 1.

    Bucket b of n holds the same keys as buckets b and b + n of 2n together.
    """
    return (key_hashes(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % buckets


def _layout(keys: pa.LargeBinaryArray) -> tuple[Int, Int, npt.NDArray[np.uint8]]:
    """Where each key begins, its length (0 for null), and the bytes of all."""
    validity, offsets, data = keys.buffers()
    if not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    octets = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    lengths = np.diff(bounds)
    if keys.null_count and validity is not None:
        lengths[np.asarray(keys.is_null())] = 0
    return bounds[:-1], lengths, octets


def _murmur2_of_equal(words: Any) -> Hashes:
    """The same of keys of one length, whole words each, a row of them for each key; without looking for the words."""
    count, width = words.shape
    hashes = np.empty(count, np.uint32)
    rows = max(1, _KEYS_AT_ONCE // width)
    start = np.uint32((_SEED ^ 4 * width) * int(_M) & 0xFFFFFFFF)
    for first in range(0, count, rows):
        k = words[first : first + rows] * _M  # all words at once: only what joins those of a key steps over others
        k ^= k >> _R
        k *= _M
        h = hashes[first : first + rows]
        np.bitwise_xor(k[:, 0], start, out=h)
        mixed = np.empty_like(h)
        for step in range(1, width):
            h *= _M
            h ^= k[:, step]
        np.right_shift(h, 13, out=mixed)
        h ^= mixed
        h *= _M
        np.right_shift(h, 15, out=mixed)
        h ^= mixed
    return hashes


def _murmur2(starts: Int, lengths: Int, words: Any, octets: npt.NDArray[np.uint8]) -> Hashes:
    order = None
    if len(lengths) and (lengths != lengths[0]).any():  # longest first: the keys that go on are then always the first
        order = np.argsort(-lengths, kind="stable")
        starts, lengths = starts[order], lengths[order]
    h = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    whole = lengths >> 2
    ends = np.searchsorted(-whole, -np.arange(1, (whole[0] if len(whole) else 0) + 1), side="right")
    for step, count in enumerate(ends.tolist()):
        k = words[starts[:count] + 4 * step]
        k *= _M
        k ^= k >> _R
        k *= _M
        part = h[:count]
        part *= _M
        part ^= k
    _mix_rest(h, starts, lengths, octets)
    h ^= h >> np.uint32(13)
    h *= _M
    h ^= h >> np.uint32(15)
    if order is None:
        return h
    hashes = np.empty_like(h)
    hashes[order] = h
    return hashes


def _mix_rest(h: Hashes, starts: Int, lengths: Int, octets: npt.NDArray[np.uint8]) -> None:
    """Mix in the one to three bytes behind the last four."""
    rest = lengths & 3
    if not rest.any():
        return
    ends = starts + lengths
    for place in (2, 1, 0):
        (rows,) = np.nonzero(rest > place)
        at = ends[rows] - rest[rows] + place
        h[rows] ^= octets[at].astype(np.uint32) << np.uint32(8 * place)
    h[rest > 0] *= _M
