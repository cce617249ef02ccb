"""The bus's own columns of decoded images: what their transaction says, once for each image."""

import numpy as np
from numba import int32, int64
from numpy.typing import NDArray

from databus.sources.mysql._compile import kernel, read_only
from databus.sources.mysql.rows._memory import Words

Counts = NDArray[np.int32]

_EVENTS, _WORDS = read_only(int32), read_only(int64)


@kernel(int64(_EVENTS, _WORDS, _EVENTS, _WORDS, _WORDS, int64[::1], int64[::1], int64[::1], int32[::1], int64[::1]))
def stamp(
    images: Counts,
    before: Words,
    transactions: Counts,
    scns: Words,
    commits_us: Words,
    scn: Words,
    seq: Words,
    commit_us: Words,
    number: Counts,
    used: Words,
) -> int:
    """Fill SCN, `_seq`, commit time and number of the transaction of each image, in order.

    Of each event: images, before (the last `_seq` of its transaction before it), transactions (never less than that of
    the event before). Of each transaction: scns, commits_us. used: gets the distinct transactions, which numbers point
    into. Returns how many those are.
    """
    row = 0
    distinct = 0
    for event in range(images.size):
        transaction = transactions[event]
        if event == 0 or transaction != transactions[event - 1]:
            used[distinct] = transaction
            distinct += 1
        last = before[event]
        for _ in range(images[event]):
            last += 1
            scn[row] = scns[transaction]
            seq[row] = last
            commit_us[row] = commits_us[transaction]
            number[row] = distinct - 1
            row += 1
    return distinct
