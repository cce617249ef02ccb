"""Positions: where a reader stands that has done everything up to a commit frame. One rule, for all who need one.

Behind a whole transaction the position is its SCN alone, and any log of that database can continue from it. Inside a
transaction, and behind what the bus itself put between two, it has a `_seq` and means one log. So it does while
snapshots are open, because another log reads them again.
"""

from collections.abc import Mapping
from typing import Any

from databus.core import BUS_SEQ_MIN, SEQ_DONE, UNREAD_TABLES, ControlKind, Pair, SourceCheckpoint
from databus.wire._group import Commit
from databus.wire._header import Header


def done_by(commit: Header | Commit) -> Pair:
    """Everything up to this pair has been read once a group with this commit has: of a whole transaction, all."""
    scn, seq = (commit.last_scn, commit.last_seq) if isinstance(commit, Header) else (commit.scn, commit.seq)
    return (scn, seq) if commit.continues else (scn, max(seq, SEQ_DONE))


def position_at(
    pair: Pair,
    *,
    continues: bool,
    uuid: str,
    txid: str,
    ts_us: int,
    log: str,
    snapshots: Mapping[str, int],
) -> SourceCheckpoint:
    """The position behind `pair`. continues: more of its transaction follows. snapshots: open, by source."""
    scn, seq = pair
    is_exact = continues or seq >= BUS_SEQ_MIN
    return SourceCheckpoint(
        uuid=uuid,
        scn=scn,
        seq=seq if is_exact else None,
        txid=txid,
        ts_us=ts_us,
        log=log if is_exact or snapshots else None,
        snapshots=snapshots,
    )


def snapshots_after(
    snapshots: Mapping[str, int], source: str, kind: ControlKind, body: Mapping[str, Any]
) -> Mapping[str, int]:
    """The open snapshots, by source the generation, once a control of `source` has been delivered."""
    if kind == ControlKind.SNAPSHOT_BEGIN:
        return {**snapshots, source: int(body["generation"])}
    if kind == ControlKind.SNAPSHOT_END:
        return {each: value for each, value in snapshots.items() if each != source}
    return snapshots


def snapshots_at(snapshots: Mapping[str, int], commit: Header) -> Mapping[str, int]:
    """Those of the open snapshots that are still open after a commit frame: one may have ended without a control, its
    table dropped or not captured any more. With them, whether tables wait whose snapshots have not begun.
    """
    if not snapshots and not commit.has_unread:
        return snapshots
    there = Commit.from_header(commit).snapshots
    still = {name: each for name, each in snapshots.items() if name in there and there[name].generation == each}
    return still | {UNREAD_TABLES: 0} if commit.has_unread else still
