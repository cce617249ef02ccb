"""Positions: where a reader stands that has done everything up to a commit frame. One rule, for all who need one.

After a whole transaction the position is its SCN alone, and any log of that database can continue from it. Inside a
transaction, and after what the bus itself put between two, it has a `_seq` and means one log. So it does while
snapshots are open, because another log reads them again.

Two ways lead to the open snapshots, with the same answer: from the controls that a reader was given
(`snapshots_after`, `snapshots_at`), or from a commit frame and the position before it (`position_after`).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from databus.core import (
    BUS_SEQ_MIN,
    SEQ_DONE,
    UNBEGUN,
    UNREAD_TABLES,
    ControlKind,
    CorruptData,
    MalformedRequest,
    Pair,
    SourceCheckpoint,
)
from databus.wire._group import Commit
from databus.wire._header import Header

_ANSWER: Final = "bootstrap:"
ANSWERS: Final = _ANSWER
"""What stands for all answers where an output notes from which log its rows came: their pairs are in one order, and
which answer brought a row makes no difference.
"""
CONTINUES_AT: Final = "continues_at"
"""In the position of the commit frame that ends an answer of a bootstrap service: where a relay goes on from there."""


def done_by(commit: Header | Commit) -> Pair:
    """Everything up to this pair has been read once a group with this commit has: of a whole transaction, all."""
    scn, seq = (commit.last_scn, commit.last_seq) if isinstance(commit, Header) else (commit.scn, commit.seq)
    return (scn, seq) if commit.continues else (scn, max(seq, SEQ_DONE))


def is_inside_transaction(pair: Pair) -> bool:
    """Whether more of the transaction at this pair may follow: only its own log knows what."""
    return 0 <= pair[1] < SEQ_DONE


def seq_at(pair: Pair, *, continues: bool) -> int | None:
    """The `seq` of the position after `pair`: None where any log can continue. continues: more of its transaction
    follows.
    """
    _, seq = pair
    return seq if seq != SEQ_DONE and (continues or seq >= BUS_SEQ_MIN) else None


def resumes_after(pair: Pair, *, is_other_log: bool) -> Pair:
    """What a reader that stands at `pair` has done, in the log that it continues in. Another log counts the rows of a
    transaction otherwise, so it is read again from its first row on; what the bus put after it there is new.
    """
    if not is_other_log:
        return pair
    return (pair[0], -1) if is_inside_transaction(pair) else (pair[0], min(pair[1], SEQ_DONE))


def ends_in_other_log(until: Pair | None) -> Pair | None:
    """Where one stops in another log that was to stop at `until`: what the bus put behind a transaction there is not
    here.
    """
    return None if until is None else (until[0], min(until[1], SEQ_DONE))


def is_of_other_log(position: SourceCheckpoint, log: str) -> bool:
    """Whether the position means a log, and not this one."""
    return position.log is not None and position.log != log


def is_answer(log: str | None) -> bool:
    """Whether what is called so is no log, but an answer that a bootstrap service makes from its stores."""
    return log is not None and log.startswith(_ANSWER)


def is_inside_answer(position: SourceCheckpoint) -> bool:
    """Whether more of the answer follows; a relay cannot go on from there. At its end it can."""
    return is_answer(position.log) and UNREAD_TABLES in position.snapshots


def answer_log(name: str) -> str:
    """How an answer of that name is called where otherwise a log's uuid stands."""
    return _ANSWER + name


def answer_name(log: str | None) -> str | None:
    """The name of the answer that is called so; None for a log."""
    return log.removeprefix(_ANSWER) if log is not None and is_answer(log) else None


def end_of_answer(commit: Header, log: str) -> SourceCheckpoint | None:
    """Where a relay goes on once this commit frame has come: set where it ends an answer of a bootstrap service.

    Raises `CorruptData` for a position that is none.
    """
    if not is_answer(log) or commit.has_unread:
        return None
    try:
        place = json.loads(commit.position)["position"].get(CONTINUES_AT)
        return None if place is None else SourceCheckpoint.from_json(place, CONTINUES_AT)
    except (ValueError, KeyError, AttributeError, MalformedRequest) as error:
        raise CorruptData(f"the end of an answer of {log} does not say where to go on: {error!r}") from error


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
    """The position after `pair`. continues: more of its transaction follows. snapshots: open, by source."""
    seq = seq_at(pair, continues=continues)
    return SourceCheckpoint(
        uuid=uuid,
        scn=pair[0],
        seq=seq,
        txid=txid,
        ts_us=ts_us,
        log=log if seq is not None or snapshots else None,
        snapshots=snapshots,
    )


def position_after(
    commit: Commit,
    before: SourceCheckpoint,
    *,
    uuid: str,
    log: str,
    is_given: Callable[[str], bool] | None = None,
) -> SourceCheckpoint:
    """The position of a reader that stood at `before` and was given everything of its sources up to `commit`.

    is_given: whether it reads that source; None for all. Open are the snapshots whose begin it was given, and whose
    end it was not.
    """
    snapshots = {
        name: snapshot.generation
        for name, snapshot in commit.snapshots.items()
        if (is_given is None or is_given(name))
        and (snapshot.begin > before.pair or before.snapshots.get(name) == snapshot.generation)
    }
    return position_at(
        commit.pair,
        continues=commit.continues,
        uuid=uuid,
        txid=commit.txid,
        ts_us=commit.commit_us,
        log=log,
        snapshots=_with_unread(snapshots, commit),
    )


def snapshots_after(
    snapshots: Mapping[str, int], source: str, kind: ControlKind, body: Mapping[str, Any]
) -> Mapping[str, int]:
    """The open snapshots, by source the generation, once a control of `source` has been delivered."""
    if kind == ControlKind.SNAPSHOT_BEGIN:
        return {**snapshots, source: int(body["generation"])}
    if kind == ControlKind.SNAPSHOT_END or (kind == ControlKind.DROP and snapshots.get(source) == UNBEGUN):
        return {name: value for name, value in snapshots.items() if name != source}
    return snapshots


def snapshots_at(snapshots: Mapping[str, int], commit: Header) -> Mapping[str, int]:
    """The snapshots of `snapshots` that are still open after a commit frame, and whether tables wait to be read.

    A snapshot may end without a control: its table was dropped, or is not captured any more. A snapshot that was
    requested from this log (`UNBEGUN`) stays until it begins: the log may not know of it yet.
    """
    if not snapshots and not commit.has_unread:
        return snapshots
    open_in_log = Commit.from_header(commit).snapshots
    still_open = {
        name: generation
        for name, generation in snapshots.items()
        if name != UNREAD_TABLES
        and (generation == UNBEGUN or (name in open_in_log and open_in_log[name].generation == generation))
    }
    return _with_unread(still_open, commit)


def _with_unread(snapshots: dict[str, int], commit: Header | Commit) -> dict[str, int]:
    return snapshots | {UNREAD_TABLES: 0} if commit.has_unread else snapshots
