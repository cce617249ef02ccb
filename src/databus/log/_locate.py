"""Finding the place of a position in a log, and whether the position is one of this log's history at all.

A position is accepted if its transaction stands at its SCN here, or if nothing of that transaction is here and the
commit frames around it leave room for it: the one below its SCN does not contain that transaction, and the first at or
above it does, by the source's own positions in them. Otherwise it belongs to another history: 409. What has left the
log is 410, and so are snapshots that were open and are not in it. What the log has not reached yet is waited for.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from databus.core import (
    COMMIT_VERSION,
    SEQ_DONE,
    TXID,
    UNREAD_TABLES,
    Pair,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
    timeline_of,
)
from databus.log._cursor import Cursor
from databus.log._index import IndexEntry
from databus.log._reader import FrameReader, GroupSpan
from databus.log._segment import ORIGIN, End, Segment
from databus.log._view import LogView
from databus.wire import ROWS, Commit, Frame, Header, is_of_other_log


class _GroupPlace(NamedTuple):
    """Before a group: where it starts, the group if it is published, and where the commit frame before it is."""

    segment: Segment
    offset: int
    group: GroupSpan | None
    before_offset: int


def beginning(view: LogView) -> Cursor:
    """Before the very first frame of the log. Raises `PositionPurged` if retention has removed that."""
    first = view.segments[0]
    if not _is_beginning(first):
        raise _purged(view, "the beginning", first)
    return earliest(view)


def _is_beginning(segment: Segment) -> bool:
    """Whether nothing was before it: a copy of a log may begin in the midst of that."""
    return segment.number == 1 and segment.before == ORIGIN.pair


def earliest(view: LogView) -> Cursor:
    """Before the oldest frame that the log holds."""
    first = view.segments[0]
    return Cursor(view, first.number, first.first_offset, view.checkpoint(first.header.before.commit))


def latest(view: LogView) -> Cursor:
    """At the published end."""
    published = view.published
    if published.commit_offset < 0:
        return earliest(view)
    return Cursor(view, published.segment, published.offset, view.checkpoint(published.commit))


def at_time(view: LogView, time_us: int) -> Cursor:
    """Before the first group at which the latest commit time so far is `time_us` or more."""
    published = view.published
    segments = _readable(view, published)
    at = next((i for i in reversed(range(len(segments))) if segments[i].header.before.max_commit_us < time_us), -1)
    if at < 0:
        if not _is_beginning(segments[0]):
            raise _purged(view, f"what was committed from {time_us} us on", segments[0])
        at = 0
    place = _seek_time(view, segments[at], published, time_us)
    commit = view.commit_before(place.segment, place.before_offset)
    return Cursor(view, place.segment.number, place.offset, view.checkpoint(commit))


def locate(view: LogView, position: SourceCheckpoint) -> Cursor:
    """After `position`.

    Raises `PositionForeign`, `PositionPurged`, `ServiceUnavailable` while the log has not reached it.
    """
    published = view.published
    what = f"SCN {position.scn}" + (f" of transaction {position.txid}" if position.txid else "")
    if position.uuid and position.uuid != view.identity.uuid:
        raise PositionForeign(
            f"{view.physical}: {what} is a position in {position.uuid}, and this log is of {view.identity.uuid} "
            f"({view.identity.description}); start from the beginning, or from a new snapshot",
            physical=view.physical,
        )
    is_elsewhere = is_of_other_log(position, view.uuid)
    if is_elsewhere and position.snapshots:
        raise PositionPurged(
            f"{view.physical}: {_open_in(position.snapshots)} in log {position.log}; this is log {view.uuid}, which "
            f"cannot go on with them; request new snapshots of these tables and start from `latest` or from the "
            f"beginning",
            physical=view.physical,
        )
    if position.pair <= (0, SEQ_DONE):
        return beginning(view)
    if timeline_of(position.scn) > timeline_of(published.commit.scn) and published.commit.scn:
        raise _foreign_timeline(view, position)
    if position.scn > published.commit.scn:
        raise _ahead(view, what, published)
    before = _check_history(view, position, what, published)
    if is_elsewhere and position.seq is not None:
        return before
    if position.pair > view.checkpoint(published.commit).pair:
        raise _ahead(view, what, published)
    segments = _readable(view, published)
    if position.pair < segments[0].before:
        raise _purged(view, f"what follows {what}", segments[0])
    if position.snapshots:
        _check_open(view, _segment_of(segments, position.pair), published, position)
    place = _seek_pair(view, _segment_of(segments, position.pair), published, position.pair)
    return Cursor(view, place.segment.number, place.offset, position)


def _open_in(snapshots: Mapping[str, int]) -> str:
    names = sorted(name for name in snapshots if name != UNREAD_TABLES)
    parts = [f"snapshots of {', '.join(names)} were open"] if names else []
    if UNREAD_TABLES in snapshots:
        parts.append("snapshots of more tables had been asked for and not begun (perhaps of all)")
    return ", and ".join(parts)


def _check_open(view: LogView, segment: Segment, published: End, position: SourceCheckpoint) -> None:
    """Whether the snapshots that are open at `position` are open here too.

    A log that was put back from an older copy has the same uuid and transactions, but lacks snapshots that began after
    the copy was made. Where several commits have one pair, the snapshots need to be open at one of them.
    """
    missing = dict(position.snapshots)
    place = _seek_pair(view, segment, published, (position.scn, -1))
    _take_open(missing, view.commit_before(place.segment, place.before_offset))
    limit = view.limit(segment, published)
    with FrameReader(view.file(segment), limit, with_bodies=False) as reader:
        for group in reader.groups(place.offset) if missing else ():
            if not missing or group.commit.first > position.pair:
                break
            _take_open(missing, Commit.from_header(group.commit, reader.place(group.commit_offset)))
    if missing:
        raise PositionPurged(
            f"{view.physical}: {_open_in(missing)} at SCN {position.scn} in log {view.uuid}, which has lost them: the "
            f"relay's folder was put back from an older copy. Request new snapshots of these tables and start from "
            f"`latest` or from the beginning",
            physical=view.physical,
        )


def _take_open(missing: dict[str, int], commit: Commit) -> None:
    """Remove those that are open after `commit`."""
    for name, opened in commit.snapshots.items():
        if missing.get(name) == opened.generation:
            del missing[name]
    if commit.has_unread:
        missing.pop(UNREAD_TABLES, None)


def _check_history(view: LogView, position: SourceCheckpoint, what: str, published: End) -> Cursor:
    """Whether `position` is of this log's history; returns a cursor after the transaction before it."""
    segments = _readable(view, published)
    oldest = segments[0]
    scn = position.scn
    if scn < oldest.header.before.commit.scn:
        raise _purged(view, f"what follows {what}", oldest)
    if scn == oldest.header.before.commit.scn:
        _check_txid(view, position, oldest.header.before.commit.txid)
        if is_of_other_log(position, view.uuid) and position.seq is not None:
            raise _purged(view, f"the transaction at {what}, from its first row on,", oldest)
        return earliest(view)
    place = _seek_pair(view, _segment_of(segments, (scn, -1)), published, (scn, -1))
    before = view.commit_before(place.segment, place.before_offset)
    group = place.group
    if group is None:
        raise _ahead(view, what, published)
    timelines = {timeline_of(before.scn), timeline_of(group.commit.first_scn), timeline_of(group.commit.last_scn)}
    if timeline_of(scn) not in timelines or (
        before.scn == 0 and timeline_of(scn) != timeline_of(group.commit.first_scn)
    ):
        raise _foreign_timeline(view, position)
    if before.scn == 0 and scn < group.commit.first_scn:
        raise PositionPurged(
            f"{view.physical}: this log began with SCN {group.commit.first_scn}; what came between {what} and that is "
            f"not in it. Start from the beginning, or from a new snapshot",
            physical=view.physical,
        )
    txid = _txid_at(view, place.segment, group, published, scn) if position.txid else None
    if txid is not None:
        _check_txid(view, position, txid)
    elif position.txid:
        _check_contained(view, position, before, Commit.from_header(group.commit))
    after = SourceCheckpoint(uuid=view.identity.uuid, scn=scn - 1, ts_us=before.commit_us)
    return Cursor(view, place.segment.number, place.offset, after)


def _check_txid(view: LogView, position: SourceCheckpoint, txid: str) -> None:
    if position.txid and position.txid != txid:
        raise PositionForeign(
            f"{view.physical}: transaction {txid} stands at SCN {position.scn} here, and not {position.txid}: the "
            f"position is of another history of this source; start from the beginning, or from a new snapshot",
            physical=view.physical,
        )


def _check_contained(view: LogView, position: SourceCheckpoint, before: Commit, after: Commit) -> None:
    """Whether a transaction that the log holds nothing of was committed between two of its commits."""
    is_too_early = view.contains(before, position.txid) is True
    # a part of a transaction says where the log stood before it
    is_missing = not after.continues and view.contains(after, position.txid) is False
    if is_too_early or is_missing:
        place = f"before SCN {before.scn}" if is_too_early else f"not up to SCN {after.scn}"
        raise PositionForeign(
            f"{view.physical}: transaction {position.txid} is to stand at SCN {position.scn}; in the history of this "
            f"log it was committed {place}: the position is of another history of this source; start from the "
            f"beginning, or from a new snapshot",
            physical=view.physical,
        )


def _txid_at(view: LogView, segment: Segment, group: GroupSpan, published: End, scn: int) -> str | None:
    """The transaction at `scn`, which is in `group` if it is anywhere; None if the log holds nothing of it."""
    with FrameReader(view.file(segment), view.limit(segment, published), with_bodies=True) as reader:
        if group.commit.last_scn == scn:
            return Commit.from_header(group.commit, reader.place(group.commit_offset)).txid
        for offset, header in reader.frames(group.offset, group.commit_offset):
            if header.kind != ROWS or not header.first_scn <= scn <= header.last_scn:
                continue
            batch = Frame(header, memoryview(reader.body(offset, header)), reader.place(offset)).batch
            scns = batch.column(COMMIT_VERSION).to_numpy()
            at = int(np.searchsorted(scns, scn))
            if at < len(scns) and scns[at] == scn:
                return _text(batch.column(TXID)[at])
    return None


def _text(value: pa.Scalar) -> str:
    return str(value.as_py())


def _readable(view: LogView, published: End) -> tuple[Segment, ...]:
    segments = view.segments
    return segments[: published.segment - segments[0].number + 1]


def _segment_of(segments: tuple[Segment, ...], pair: Pair) -> Segment:
    """The last segment that nothing above `pair` comes before."""
    return next((segment for segment in reversed(segments) if segment.before <= pair), segments[0])


def _seek_pair(view: LogView, segment: Segment, published: End, pair: Pair) -> _GroupPlace:
    entry = view.index(segment).before_pair(pair, view.limit(segment, published))
    return _seek(view, segment, published, entry, lambda commit: commit.last > pair)


def _seek_time(view: LogView, segment: Segment, published: End, time_us: int) -> _GroupPlace:
    entry = view.index(segment).before_time(time_us, view.limit(segment, published))
    return _seek(view, segment, published, entry, lambda commit: commit.commit_us >= time_us)


def _seek(
    view: LogView, segment: Segment, published: End, entry: IndexEntry | None, is_there: Callable[[Header], bool]
) -> _GroupPlace:
    """Before the first group whose commit is the one, read from an entry of the index on."""
    limit = view.limit(segment, published)
    offset, before_offset = (segment.first_offset, -1) if entry is None else (entry.offset, entry.commit_offset)
    with FrameReader(view.file(segment), limit, with_bodies=False) as reader:
        for group in reader.groups(offset):
            if is_there(group.commit):
                return _GroupPlace(segment, group.offset, group, before_offset)
            before_offset = group.commit_offset
    return _GroupPlace(segment, limit, None, before_offset)


def _purged(view: LogView, what: str, oldest: Segment) -> PositionPurged:
    before = oldest.header.before.commit
    return PositionPurged(
        f"{view.physical}: {what} has left the log; the oldest that it holds follows SCN {before.scn}, `_seq` "
        f"{before.seq}. Start from `earliest`, or from a new snapshot",
        physical=view.physical,
        oldest=before.scn,
    )


def _ahead(view: LogView, what: str, published: End) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"{view.physical}: {what} is ahead of this log, which ends at SCN {published.commit.scn}; it is served as soon "
        f"as the log has reached it again"
    )


def _foreign_timeline(view: LogView, position: SourceCheckpoint) -> PositionForeign:
    return PositionForeign(
        f"{view.physical}: SCN {position.scn} is of timeline {timeline_of(position.scn)}, which this log never had; "
        f"start from the beginning, or from a new snapshot",
        physical=view.physical,
    )
