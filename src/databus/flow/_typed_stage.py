"""Staging of typed rows: a task takes the rows that the filters of a branch have made, piece by piece, and writes them.

Filters see each range of the log by itself and in its order; but a function of a user may put rows of a batch into
another order, and controls come behind the rows that they came with. So a piece is put in order before it is written,
and the driver sees whether the pieces of all tasks follow each other (`joined_typed`). Where they do not, the rows are
staged again, put in order by Spark.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, SourceCheckpoint
from databus.flow._batch import ChangeBatch, StagedBatch
from databus.flow._decode import BATCH_BYTES, decode_typed, in_order
from databus.flow._lineage import LineageOf, SchemaAhead
from databus.flow._pairs import first_pair, last_pair
from databus.flow._stage import StagedFeed, joined_items, receipts_for, receipts_of
from databus.schema import TableSchema

ORDER: Final = (COMMIT_VERSION, SEQ)
"""The columns by which rows are in order. Those of one `_commit_version` must not be torn apart."""


class RowsOutOfOrder(Exception):
    """Pieces of tasks do not follow each other: the rows are to be put in order before they are staged."""


@dataclass(frozen=True)
class TypedStage:
    """What a task does with the rows of its partition: those of one table, behind all filters."""

    table: TableSchema
    physical: str
    feeds: Sequence[StagedFeed]
    piece_bytes: int = BATCH_BYTES

    def __call__(self, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The receipts of a partition."""
        for piece in pieces_of(parts, self.piece_bytes):
            yield receipts_of(self._batch(piece), self.feeds)

    def _batch(self, piece: pa.Table) -> ChangeBatch:
        start, end = (SourceCheckpoint(scn=scn, seq=seq) for scn, seq in (first_pair(piece), last_pair(piece)))
        return decode_typed(piece, self.table, self.physical, start, end)


def pieces_of(parts: Iterator[pa.RecordBatch], piece_bytes: int) -> Iterator[pa.Table]:
    """Rows in order, in pieces of about so many bytes, which tear neither an update's images apart nor rows that were
    made of one.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for part in parts:
        if part.num_rows:
            waiting.append(part)
            size += part.nbytes
        if size >= piece_bytes:
            rows = in_order(pa.Table.from_batches(waiting))
            cut = _last_change(rows)
            if cut:
                yield rows.slice(0, cut)
            waiting = rows.slice(cut).combine_chunks().to_batches()
            size = sum(each.nbytes for each in waiting)
    if waiting:
        yield in_order(pa.Table.from_batches(waiting))


def _last_change(rows: pa.Table) -> int:
    """Where what may go on in the next rows begins."""
    scns, seqs = (rows.column(name).to_numpy() for name in ORDER)
    is_before = pc.equal(rows.column(CHANGE_TYPE), ChangeType.UPDATE_PREIMAGE.label).to_numpy()
    is_cut = ((scns[1:] != scns[:-1]) | (seqs[1:] != seqs[:-1])) & ~is_before[:-1]
    places = np.flatnonzero(is_cut)
    return int(places[-1]) + 1 if len(places) else 0


def joined_typed(
    receipts: pa.Table,
    feed: int,
    start: SourceCheckpoint,
    end: SourceCheckpoint,
    lineage_of: LineageOf,
    physical: str,
) -> StagedBatch:
    """What tasks have staged for an output, as the batch between two positions. lineage_of: of the branch's filters.

    Raises `RowsOutOfOrder`.
    """
    pieces = receipts_for(receipts, feed)
    if any(one.end.pair >= other.start.pair for one, other in itertools.pairwise(pieces)):
        raise RowsOutOfOrder
    told = [piece.ahead for piece in pieces if piece.ahead is not None]
    ahead = SchemaAhead(told[-1].changes, lineage_of) if told else None
    return StagedBatch(physical, start, end, joined_items(pieces), ahead)
