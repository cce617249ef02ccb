"""Rows of many tables in the order of their pairs, from files that each hold a run of it. Pure but for the reading.

Bounds of a row group say which rows may be in it. All rows below the first bound of what has not been read yet are
there, so they can be given out: memory is bounded by the row groups that overlap, not by the tables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, Pair

Piece = Mapping[str, pa.Table]
"""By source (`db.table`), rows in order; all of a piece come before all of the next."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one source that are read at once; none is outside of the bounds."""

    source: str
    first: Pair
    last: Pair
    read: Callable[[], pa.Table]


def merged_rows(groups: Sequence[RowGroup], after: Pair, until: Pair) -> Iterator[Piece]:
    """The rows of (after, until], each source's sorted by pair. The two images of an update are never parted."""
    wanted = sorted(
        (group for group in groups if group.last > after and group.first <= until),
        key=lambda group: (group.first, group.last),
    )
    held: dict[str, pa.Table] = {}
    for number, group in enumerate(wanted):
        rows = _between(group.read(), after, until)
        if rows.num_rows:
            before = held.get(group.source)
            held[group.source] = rows if before is None else _joined(before, rows)
        following = wanted[number + 1].first if number + 1 < len(wanted) else None
        if following is not None and following <= group.first:
            continue
        piece, held = _cut(held, following)
        if piece:
            yield piece


def _joined(one: pa.Table, other: pa.Table) -> pa.Table:
    """Files of a table may have been written before it got a column, or a wider type."""
    if one.schema.equals(other.schema):
        return pa.concat_tables([one, other])
    return pa.concat_tables([one, other], promote_options="permissive")


def _between(rows: pa.Table, after: Pair, until: Pair) -> pa.Table:
    scns, seqs = rows.column(COMMIT_VERSION).to_numpy(), rows.column(SEQ).to_numpy()
    above = (scns > after[0]) | ((scns == after[0]) & (seqs > after[1]))
    below = (scns < until[0]) | ((scns == until[0]) & (seqs <= until[1]))
    is_within = above & below
    return rows if is_within.all() else rows.filter(pa.array(is_within))


def _cut(held: Mapping[str, pa.Table], bound: Pair | None) -> tuple[Piece, dict[str, pa.Table]]:
    """What lies below a bound, and the rest."""
    piece: dict[str, pa.Table] = {}
    rest: dict[str, pa.Table] = {}
    for source, rows in held.items():
        ordered = _sorted(rows)
        scns, seqs = ordered.column(COMMIT_VERSION).to_numpy(), ordered.column(SEQ).to_numpy()
        count = ordered.num_rows
        if bound is not None:
            count = int(np.count_nonzero((scns < bound[0]) | ((scns == bound[0]) & (seqs < bound[1]))))
            # a second image that is the next row of all comes with the first: nothing of another table is between them
            is_next = count > 0 and bound == (int(scns[count - 1]), int(seqs[count - 1]) + 1)
            if is_next and ordered.column(CHANGE_TYPE)[count - 1].as_py() == ChangeType.UPDATE_PREIMAGE.label:
                count -= 1
        if count:
            piece[source] = ordered.slice(0, count)
        if count < ordered.num_rows:
            rest[source] = ordered.slice(count)
    return piece, rest


def _sorted(rows: pa.Table) -> pa.Table:
    scns, seqs = rows.column(COMMIT_VERSION).to_numpy(), rows.column(SEQ).to_numpy()
    rises = (scns[1:] > scns[:-1]) | ((scns[1:] == scns[:-1]) & (seqs[1:] > seqs[:-1]))
    if rises.all():
        return rows
    return rows.take(pc.sort_indices(rows, sort_keys=[(COMMIT_VERSION, "ascending"), (SEQ, "ascending")]))
