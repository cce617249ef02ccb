"""HMAC-SHA-256 of many short values at once, as columns: no Python object for a value. FIPS 180-4 and RFC 2104."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

_BLOCK: Final = 64
_AT_ONCE: Final = 16_384  # rows: enough for the cost of a call, few enough for a cache


def _root_bits(power: float, count: int) -> Words:
    """The first 32 bits of the fractional parts of roots of the first primes."""
    primes: list[int] = []
    number = 2
    while len(primes) < count:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    roots = [_fraction_bits(prime, power) for prime in primes]
    return np.array(roots, np.uint32)


def _fraction_bits(number: int, power: float) -> int:
    """Exact: by integers, the floor of 2^32 times the root, without its whole part."""
    degree = round(1 / power)
    wanted = number << (32 * degree)
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**degree <= wanted else (low, middle)
    return low & 0xFFFFFFFF


_K: Final = _root_bits(1 / 3, 64)
_START: Final = _root_bits(1 / 2, 8)


def _turned(words: Words, bits: int) -> Words:
    return (words >> np.uint32(bits)) | (words << np.uint32(32 - bits))


def _compressed(state: list[Words], block: Words) -> list[Words]:
    """One block, 16 words by rows, into each row's state."""
    words = list(block)
    for at in range(16, 64):
        one, two = words[at - 15], words[at - 2]
        small = _turned(one, 7) ^ _turned(one, 18) ^ (one >> np.uint32(3))
        large = _turned(two, 17) ^ _turned(two, 19) ^ (two >> np.uint32(10))
        words.append(words[at - 16] + small + words[at - 7] + large)
    a, b, c, d, e, f, g, h = state
    for at in range(64):
        sum_e = _turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25)
        one = h + sum_e + (g ^ (e & (f ^ g))) + _K[at] + words[at]
        sum_a = _turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22)
        two = sum_a + ((a & b) | (c & (a | b)))
        a, b, c, d, e, f, g, h = one + two, a, b, c, d + one, e, f, g
    return [old + new for old, new in zip(state, (a, b, c, d, e, f, g, h), strict=True)]


def _words_of(blocks: Bytes) -> Words:
    """Rows of 64 bytes as 16 words by rows."""
    return np.ascontiguousarray(blocks).view(">u4").astype(np.uint32).T


def _keyed(key: bytes, pad: int) -> list[Words]:
    """The state after a block of the key, of one row."""
    block = np.frombuffer(key.ljust(_BLOCK, b"\0"), np.uint8) ^ np.uint8(pad)
    return _compressed([_START[at : at + 1] for at in range(8)], _words_of(block.reshape(1, _BLOCK)))


def hmac_hex(values: pa.Array, key: bytes) -> pa.Array:
    """The HMAC of each value in hexadecimal, null where there is none. values: binary or string. key: the secret.

    >>> hmac_hex(pa.array(["a"]), b"k")[0].as_py()[:16]
    '78da91511e675587'
    """
    if len(key) > _BLOCK:
        import hashlib

        key = hashlib.sha256(key).digest()
    inner, outer = _keyed(key, 0x36), _keyed(key, 0x5C)
    plain = values.cast(pa.large_binary())
    parts = [_hashed(plain.slice(at, _AT_ONCE), inner, outer) for at in range(0, len(plain), _AT_ONCE)]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


def _hashed(values: pa.Array, inner: list[Words], outer: list[Words]) -> pa.Array:
    count = len(values)
    _, offsets_buffer, text = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + count + 1]
    data = np.frombuffer(text, np.uint8) if text is not None and text.size else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    digests = np.empty((count, 32), np.uint8)
    blocks = (lengths + 9 + _BLOCK - 1) // _BLOCK
    for block_count in np.unique(blocks):
        rows = np.flatnonzero(blocks == block_count)
        digests[rows] = _of_blocks(data, offsets[rows], lengths[rows], int(block_count), inner, outer)
    hexed = np.frombuffer(b"0123456789abcdef", np.uint8)[np.stack([digests >> 4, digests & 15], axis=2)]
    made = pa.Array.from_buffers(
        pa.string(),
        count,
        [
            None,
            pa.py_buffer(np.arange(0, 64 * count + 1, 64, dtype=np.int32)),
            pa.py_buffer(np.ascontiguousarray(hexed)),
        ],
    )
    import pyarrow.compute as pc

    return pc.if_else(values.is_valid(), made, None)


def _of_blocks(
    data: Bytes,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    blocks: int,
    inner: list[Words],
    outer: list[Words],
) -> Bytes:
    """Digests of values that fill so many blocks with what is put behind them."""
    count, width = len(starts), blocks * _BLOCK
    at = np.arange(width)
    is_value = at < lengths[:, None]
    padded = np.zeros((count, width), np.uint8)
    if len(data):
        places = np.minimum(starts[:, None] + at, len(data) - 1)
        padded = np.where(is_value, data[places], np.uint8(0))
    padded[np.arange(count), lengths] = 0x80
    bits = ((lengths + _BLOCK) * 8).astype(">u8")
    padded[:, -8:] = bits.view(np.uint8).reshape(count, 8)
    state = [np.repeat(word, count) for word in inner]
    for block in range(blocks):
        state = _compressed(state, _words_of(padded[:, block * _BLOCK : (block + 1) * _BLOCK]))
    last = np.zeros((count, _BLOCK), np.uint8)
    last[:, :32] = np.stack(state, axis=1).astype(">u4").view(np.uint8)
    last[:, 32] = 0x80
    last[:, -8:] = np.array([(_BLOCK + 32) * 8], ">u8").view(np.uint8)
    made = _compressed([np.repeat(word, count) for word in outer], _words_of(last))
    digest: Bytes = np.stack(made, axis=1).astype(">u4").view(np.uint8)
    return digest
