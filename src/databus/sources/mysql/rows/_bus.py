"""The bus's own columns of decoded images, in one arena as the others are."""

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from databus.sources.mysql.rows._decode import Decoded

_ALIGNED: Final = 64
_TIME: Final = pa.timestamp("us", tz="UTC")


def bus_arrays(
    decoded: Decoded,
    before: NDArray[np.int64],
    transactions: NDArray[np.int32],
    *,
    scns: NDArray[np.int64],
    commits_us: NDArray[np.int64],
    txids: Callable[[int, int], pa.StringArray],
) -> list[pa.Array]:
    """The bus columns of `databus.core.BUS_COLUMNS`, in their order, of images that were logged.

    Of each event: before (the last `_seq` of its transaction before it), transactions (never less than that of the
    event before). Of each transaction: scns, commits_us; `txids(low, high)` gives the ids of low..high-1.
    """
    from databus.sources.mysql.rows import _bus_kernels as kernels

    count = decoded.images
    wide, narrow = _padded(8 * count), _padded(4 * count)
    # From Arrow's pool, which keeps its pages.
    memory = pa.allocate_buffer(3 * wide + narrow + _padded((count + 7) // 8))
    places = [0, wide, 2 * wide, 3 * wide, 3 * wide + narrow]
    sizes = [8 * count] * 3 + [4 * count, (count + 7) // 8]
    parts = [memory.slice(at, size) for at, size in zip(places, sizes, strict=True)]
    words = np.frombuffer(memory, np.uint8)
    scn, seq, commit_us = (words[at : at + 8 * count].view(np.int64) for at in places[:3])
    number = words[places[3] : places[3] + 4 * count].view(np.int32)
    words[places[4] :] = 0  # from no snapshot
    used = np.empty(len(transactions), np.int64)
    distinct = kernels.stamp(
        decoded.images_per_event, before, transactions, scns, commits_us, scn, seq, commit_us, number, used
    )
    low, high = int(used[0]), int(used[distinct - 1]) + 1
    names = txids(low, high)
    if distinct < high - low:
        names = names.take(pa.array(used[:distinct] - low))
    return [
        pa.array(decoded.change_types),
        *(pa.Array.from_buffers(pa.int64(), count, [None, part]) for part in parts[:2]),
        pa.Array.from_buffers(_TIME, count, [None, parts[2]]),
        pa.DictionaryArray.from_arrays(pa.Array.from_buffers(pa.int32(), count, [None, parts[3]]), names),
        pa.Array.from_buffers(pa.bool_(), count, [None, parts[4]]),
    ]


def _padded(size: int) -> int:
    return (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED
