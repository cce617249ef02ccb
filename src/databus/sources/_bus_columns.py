"""The bus's own columns, as the sources make them that have changes as arrays."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.schema import BUS_FIELDS

Ints = npt.NDArray[np.int64]


def bus_columns(
    kinds: npt.ArrayLike,
    scns: Ints | int,
    seqs: Ints,
    times_us: Ints | int,
    txids: pa.DictionaryArray | str,
    *,
    is_snapshot: bool = False,
) -> list[pa.Array]:
    """In the order of `databus.core.BUS_COLUMNS`; `seqs` has one element for each row, a single value of the others
    stands for all rows.
    """
    count = len(seqs)
    if isinstance(txids, str):
        txids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([txids], pa.string()))
    columns = [
        pa.array(np.broadcast_to(np.asarray(values, kind), count))
        for values, kind in ((kinds, np.int8), (scns, np.int64), (seqs, np.int64), (times_us, np.int64))
    ]
    columns[3] = columns[3].cast(BUS_FIELDS[3].type)
    return [*columns, txids, pa.array(np.full(count, is_snapshot))]
