"""What Arrow's large text and binary arrays are made of, for what is quicker over all their bytes at once."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def bytes_of(text: pa.Array) -> memoryview:
    """What the values of a large array are, one after the other; bytes that only nulls have may be among them."""
    if not len(text) or text.buffers()[2] is None:
        return memoryview(b"")
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    return memoryview(text.buffers()[2])[offsets[0] : offsets[-1]]


def places_of(lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Where values of these lengths begin, one after the other, and where the last ends."""
    ends = np.cumsum(lengths)
    return ends - lengths, int(ends[-1]) if len(ends) else 0


def spread(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places of all bytes of values that begin there."""
    firsts, count = places_of(lengths)
    return np.arange(count) + np.repeat(starts - firsts, lengths)


def bytes_without_nulls(values: pa.Array) -> memoryview:
    """Like `bytes_of`, with nothing of nulls."""
    return bytes_of(values.drop_null() if values.null_count else values)


def validity_of(values: pa.Array) -> pa.Buffer | None:
    """Which values are there, as a buffer of an array that begins with the first of them."""
    return pc.invert(values.is_null()).buffers()[1] if values.null_count else None
