"""Pairs in rows: what is above a pair, and how a target remembers which pair it has."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, SEQ_DONE, ChangeType, Pair
from databus.places import Seed, identity
from databus.wire import is_inside_transaction

Int = npt.NDArray[np.int64]
RowMask = npt.NDArray[np.bool_]


def pairs_of(rows: pa.Table) -> tuple[Int, Int]:
    """The SCNs and the `_seq`s of rows."""
    return rows.column(COMMIT_VERSION).to_numpy(), rows.column(SEQ).to_numpy()


def last_pair(rows: pa.Table) -> Pair:
    """The pair of the last row."""
    return rows.column(COMMIT_VERSION)[-1].as_py(), rows.column(SEQ)[-1].as_py()


def first_pair(rows: pa.Table) -> Pair:
    """The pair of the first row."""
    return rows.column(COMMIT_VERSION)[0].as_py(), rows.column(SEQ)[0].as_py()


def rows_above(rows: pa.Table, pair: Pair) -> pa.Table:
    """The rows whose pair is above `pair`; the same object where all are."""
    scns, seqs = pairs_of(rows)
    above = (scns > pair[0]) | ((scns == pair[0]) & (seqs > pair[1]))
    return rows if above.all() else rows.filter(pa.array(above))


def before_updates(rows: pa.Table) -> tuple[RowMask, RowMask]:
    """Which rows are from before an update, and which of those the row after it follows."""
    kinds = rows.column(CHANGE_TYPE)
    is_pre = pc.equal(kinds, ChangeType.UPDATE_PREIMAGE.label).to_numpy()
    if not is_pre.any():
        return is_pre, is_pre
    is_post = pc.equal(kinds, ChangeType.UPDATE_POSTIMAGE.label).to_numpy()
    scns, seqs = pairs_of(rows)
    is_next = np.append(is_post[1:] & (scns[1:] == scns[:-1]) & (seqs[1:] == seqs[:-1] + 1), False)
    return is_pre, is_pre & is_next


def parted(rows: pa.Table, rows_max: int) -> list[pa.Table]:
    """The rows in parts of about `rows_max`, each with greater pairs than the ones before it.

    Rows that a filter made of one change (`unnest`) share its pair, and stay together.
    """
    count = rows.num_rows
    if count <= rows_max:
        return [rows] if count else []
    starts = np.arange(0, count, rows_max)
    scns, seqs = pairs_of(rows)
    rises = (scns[1:] > scns[:-1]) | ((scns[1:] == scns[:-1]) & (seqs[1:] > seqs[:-1]))
    if not rises.all():
        order = np.lexsort((seqs, scns))
        is_next = (np.diff(scns[order]) != 0) | (np.diff(seqs[order]) != 0)
        ranks = np.empty(count, np.int64)
        ranks[order] = np.append(0, np.cumsum(is_next))
        highest, lowest = np.maximum.accumulate(ranks), np.minimum.accumulate(ranks[::-1])[::-1]
        cuts = np.concatenate([[0], 1 + np.flatnonzero(lowest[1:] > highest[:-1])])
        places = np.searchsorted(cuts, starts)
        starts = np.unique(cuts[places[places < len(cuts)]])
    ends = [*starts[1:].tolist(), count]
    return [rows.slice(start, end - start) for start, end in zip(starts.tolist(), ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a target says of itself."""

    pair: Pair = (0, 0)
    """All up to it is there."""
    log: int | None = None
    """The number of the log that it came from."""
    ahead: Pair = (0, 0)
    """The last change of the schema that it has followed, where that stands later in the log."""
    way: str = ""
    """By which way its rows came, 63 bits in hexadecimal digits; empty where it does not say."""
    db: str = ""
    """The identity of the database that they are of, in the same form."""
    seed: Seed | None = None
    """See `Position.seeds`."""

    @property
    def nothing(self) -> Self:
        """The same of a target that has no row yet."""
        return replace(self, pair=(0, 0), ahead=(0, 0))

    @property
    def follows(self) -> Pair:
        """Up to where it has followed changes of the schema."""
        return max(self.pair, self.ahead)

    def over(self, before: "Stored | None") -> "Stored":
        """What the target says once this is stored over what was: only an `ahead` that is one is written, and no way or
        database that is not known.
        """
        if before is None:
            return self if self.ahead > self.pair else replace(self, ahead=(0, 0))
        ahead = self.ahead if self.ahead > self.pair else before.ahead
        log = before.log if self.log is None else self.log
        return replace(self, ahead=ahead, log=log, way=self.way or before.way, db=self.db or before.db)

    def is_part_of_other_log(self, start: Pair, log: str | None) -> bool:
        """Whether the target may hold a part of a transaction, whose `_seq`s only its own log can tell, and a batch of
        another log may have the rest. A batch that begins behind that transaction has none: the table's last rows in it
        were in that part.
        """
        is_part = self.pair[0] > 0 and is_inside_transaction(self.pair)
        return is_part and self.log != log_number(log) and start < (self.pair[0], SEQ_DONE)


def log_number(log: str | None) -> int:
    """63 bits that stand for a log's uuid where only an integer can be stored."""
    return int(identity(log or ""), 16)
