"""The bus's own part of frames: its columns, and the bodies of the controls that sources make themselves."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import ControlKind
from databus.schema import BUS_FIELDS
from databus.wire import OpenSnapshot

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
    """The columns in the order of `databus.core.BUS_COLUMNS`; `seqs` has one element for each row, a single value of
    the others stands for all rows.
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


def gap_body(
    source: str, from_scn: int | None, to_scn: int | None, reason: str, *, is_read_again: bool
) -> dict[str, Any]:
    """Of a `gap`: what is missing of a table, and whether a snapshot of it follows."""
    return {
        "kind": ControlKind.GAP,
        "source": source,
        "from": from_scn,
        "to": to_scn,
        "reason": reason,
        "resnapshot": is_read_again,
    }


def begin_body(source: str, generation: int) -> dict[str, Any]:
    """Of a `snapshot_begin`."""
    return {"kind": ControlKind.SNAPSHOT_BEGIN, "source": source, "generation": generation}


def end_body(source: str, opened: OpenSnapshot, *, is_complete: bool) -> dict[str, Any]:
    """Of the `snapshot_end` of an open snapshot, which names the place of its begin."""
    place = {"generation": opened.generation, "begin": list(opened.begin)}
    return {"kind": ControlKind.SNAPSHOT_END, "source": source, **place, "complete": is_complete}
