"""What an answer is made of: from which state, which tables whole, and what it says of the time before. Pure.

The rules, and for each the sequence of events that breaks a law without it, are in docs/bootstrap.md. What of a table
is given whole and what since depends on the state, the position and the ask alone: not on which reads less, nor on when
it is asked. So an answer that breaks off can go on at any server.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from databus.bootstrap._answer_name import AnswerName
from databus.bootstrap._ask import AnswerRequest
from databus.core import (
    BUS_SEQ_MIN,
    SEQ_DONE,
    UNREAD_TABLES,
    ControlKind,
    Pair,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownSource,
)
from databus.filters import matches
from databus.schema import NEEDS_SNAPSHOT, TableSchema
from databus.stores import HeadNote, LoggedControl, StateNote
from databus.wire import answer_name, is_answer, is_inside_transaction, is_of_other_log, seq_at

NOTHING: Pair = (0, -1)


class TableExtent(StrEnum):
    """How a table is given."""

    ALL = "all"
    """Every row that the state has."""
    SINCE = "since"
    """What was removed since, and the rows that are newer."""


@dataclass(frozen=True)
class KeptPast:
    """What the stores hold of one physical source."""

    states: Sequence[StateNote]
    """The oldest first."""
    head: HeadNote
    controls: Callable[[str], Sequence[LoggedControl]]
    """Of a table (`db.table`), all that are in the log store, in order."""
    now_ns: int
    """The time, nanoseconds since 1970: by it the relay numbers what it makes itself."""


@dataclass(frozen=True)
class StateAnswer:
    """An answer made from a state."""

    state: StateNote
    name: AnswerName
    kinds: Mapping[str, TableExtent]
    """By `db.table`, the tables that are given."""
    begins_after: Pair
    """What the answer says of the time before the state lies above this, and at or below the state's position."""
    is_new: bool
    """Whether the consumer has nothing, so that there is nothing to tell of."""
    is_lost: bool
    """Whether some of that has left the log store."""
    after: Pair
    """What of the answer lies at or below this has been given already."""


@dataclass(frozen=True)
class EveryChange:
    """All that the log store holds after a position: as a relay would have given it."""

    start: SourceCheckpoint
    end: SourceCheckpoint
    log: str
    """The relay's log that these changes came from; those of another one are another answer."""


def plan(position: SourceCheckpoint | None, ask: AnswerRequest, kept: KeptPast) -> StateAnswer | EveryChange:
    """What to answer a consumer that stands there; None for one that has nothing.

    Raises `ServiceUnavailable` where there will be an answer later, `PositionPurged` where there is none any more,
    `PositionForeign` for a position of something else, `UnknownSource` for a table that is kept nowhere.
    """
    names = (f"{ask.physical}/{source}" for source in sorted(ask.sources))
    if lacking := [name for name in names if not matches(name, kept.head.tables)]:
        raise UnknownSource(  # also what a pattern means: the relay would go on with it where the answer ends
            f"the bootstrap service does not keep {', '.join(lacking[:20])}; name the tables without these, or have "
            "them kept by `tables` of the service"
        )
    position = None if position is None else _after_answer(position, kept)
    if ask.every:
        return _every(position, ask, kept)
    since, is_inside, told = position, False, NOTHING
    if position is not None and (text := answer_name(position.log)) is not None:
        name = AnswerName.parse(text)
        if name.ask != ask.digest:
            raise PositionForeign(
                f"{ask.physical}: the position is inside an answer to another request; ask for the same tables, "
                "columns and conditions until that answer has ended",
                physical=ask.physical,
            )
        going_on = _going_on(name, position, ask, kept)
        if going_on is not None:
            return going_on
        since = None if name.since is None else _position_of(name.since)
        is_inside = name.is_inside
        told = position.pair if position.pair > (0, SEQ_DONE) else NOTHING  # nothing of it was given
    else:
        since = None if position is None else _compared(position, kept.head)
        is_inside = since is not None and _is_inside(since, ask)
    return _from_newest(position, since, ask, kept, is_inside=is_inside, told=told)


def _after_answer(position: SourceCheckpoint, kept: KeptPast) -> SourceCheckpoint | None:
    """A position as one of a log, where it is the end of an answer: that of the state that was given."""
    text = answer_name(position.log)
    if text == "":  # it begins with a state, whatever the relay has
        return None
    if text is None or UNREAD_TABLES in position.snapshots:
        return position
    name = AnswerName.parse(text)
    state = next((state_kept for state_kept in kept.states if state_kept.name == name.state), None)
    # of a state that is gone the log is not known: what the bus put behind the transaction comes again
    return SourceCheckpoint(scn=position.scn) if state is None else replace(state.position, snapshots={})


def _every(position: SourceCheckpoint | None, ask: AnswerRequest, kept: KeptPast) -> EveryChange:
    """All that followed a position, or that there ever was. Raises what `plan` does."""
    head = kept.head
    if position is not None and is_answer(position.log):
        raise PositionForeign(
            f"{ask.physical}: the position is inside an answer that was asked for without `look_back=all`; ask like "
            "that until it has ended",
            physical=ask.physical,
        )
    since = SourceCheckpoint(scn=0) if position is None else _compared(position, head)
    if position is not None and is_of_other_log(position, head.log_at(position.pair)) and _has_open(position, ask):
        raise PositionPurged(
            f"{ask.physical}: at the position a snapshot was open in another log than the stores are filled from, and "
            "the rest of it is in neither. Begin from nothing, or ask without `look_back=all`",
            physical=ask.physical,
        )
    is_whole = head.low <= (0, SEQ_DONE) or all(
        bool(controls := kept.controls(source)) and controls[0].begins_table for source in ask.sources
    )
    if since.pair < head.low and not (position is None and is_whole):
        raise PositionPurged(
            f"{ask.physical}: every change is kept from SCN {head.low[0]} on, up to SCN {head.position.scn}; without "
            "`look_back=all` there is what became of the older ones",
            physical=ask.physical,
            oldest=head.low[0],
        )
    if since.pair >= head.position.pair:
        raise _later(ask, f"SCN {since.scn} is ahead of the log store, which is at {head.position.scn}")
    return _changes_after(since, head)


def _changes_after(since: SourceCheckpoint, head: HeadNote) -> EveryChange:
    log, bound = head.log_after(since.pair)
    if bound is None:
        return EveryChange(since, head.position, log)
    return EveryChange(since, replace(_position_of(bound), seq=seq_at(bound, continues=True), log=log), log)


def _from_newest(
    position: SourceCheckpoint | None,
    since: SourceCheckpoint | None,
    ask: AnswerRequest,
    kept: KeptPast,
    *,
    is_inside: bool,
    told: Pair,
) -> StateAnswer | EveryChange:
    is_below = since is not None and since.pair < kept.head.low
    state, kinds = None, {}
    for candidate in reversed(kept.states):
        if is_eligible(candidate, ask, kept):
            extents = kinds_of(candidate, since, ask, kept, is_inside=is_inside)
            if not (is_below and TableExtent.SINCE in extents.values()):
                state, kinds = candidate, extents
                break
    if position is not None and since is not None and told == NOTHING and not is_below:
        is_above = state is not None and since.pair >= state.position.pair
        is_of_other = is_of_other_log(position, kept.head.log_at(position.pair))
        if not is_of_other if state is None else is_above and not (is_of_other and position.snapshots):
            if since.pair >= kept.head.position.pair:
                raise _later(ask, f"SCN {since.scn} is ahead of the log store, which is at {kept.head.position.scn}")
            return _changes_after(since, kept.head)
    if state is None:
        raise _later(ask, f"no state may be served yet: {_progress(ask, kept)}")
    if position is not None and (state.position.scn, state.base) <= position.pair:
        raise _later(ask, f"the newest state is at SCN {state.position.scn}, and the position may be above it")
    if since is not None and since.pair > state.position.pair:
        raise _later(ask, f"the newest state is at SCN {state.position.scn}, which is below the position")
    name = AnswerName(state.name, None if since is None else since.pair, is_inside, told, ask.digest)
    return _made(state, name, kinds, kept, ask, after=told)


def _going_on(name: AnswerName, position: SourceCheckpoint, ask: AnswerRequest, kept: KeptPast) -> StateAnswer | None:
    """The same answer from where it broke off; None where it cannot be made any more."""
    state = next((state_kept for state_kept in kept.states if state_kept.name == name.state), None)
    if state is None or not is_eligible(state, ask, kept):
        return None
    since = None if name.since is None else _position_of(name.since)
    kinds = kinds_of(state, since, ask, kept, is_inside=name.is_inside)
    if since is not None and since.pair < kept.head.low and TableExtent.SINCE in kinds.values():
        return None
    return _made(state, name, kinds, kept, ask, after=max(position.pair, name.told))


def _made(
    state: StateNote,
    name: AnswerName,
    kinds: Mapping[str, TableExtent],
    kept: KeptPast,
    ask: AnswerRequest,
    *,
    after: Pair,
) -> StateAnswer:
    is_replaced = name.since is None and name.told > NOTHING
    is_new = name.since is None and not is_replaced
    begins_after = name.told if is_replaced else name.since or NOTHING
    is_lost = not is_new and begins_after < kept.head.low
    _check_keyless(state, kept, ask, is_new=is_new, is_lost=is_lost)
    return StateAnswer(state, name, kinds, begins_after, is_new, is_lost, after)


def _check_keyless(state: StateNote, kept: KeptPast, ask: AnswerRequest, *, is_new: bool, is_lost: bool) -> None:
    """Of a table without a key there is the log store alone, from its beginning or not at all."""
    for source in sorted(ask.sources & kept.head.keyless - {*state.tables}):
        controls = kept.controls(source)
        begins = controls[0].begins_table if controls else kept.head.low <= (0, 0)
        if is_lost or (is_new and not begins):
            raise PositionPurged(
                f"{ask.physical}/{source}: has no key, so there is no state of it, and the log store does not go back "
                f"to its beginning. Follow it from where the relay still has it, or leave it out",
                physical=ask.physical,
            )


def is_eligible(state: StateNote, ask: AnswerRequest, kept: KeptPast) -> bool:
    """Whether a state may be served to who asks for this."""
    position, head = state.position, kept.head.position
    if is_inside_transaction(position.pair) or not kept.head.low <= position.pair <= head.pair:
        return False
    wanted = ask.sources
    if UNREAD_TABLES in position.snapshots or wanted & {*position.snapshots} or wanted & state.incomplete:
        return False
    scn = position.scn
    if scn == head.scn and kept.now_ns <= state.end:
        return False  # what the relay makes at this SCN later has to lie above the rows of the answer
    return not any(
        control.pair[0] == scn and position.pair < control.pair and BUS_SEQ_MIN <= control.pair[1] <= state.end
        for source in wanted
        for control in kept.controls(source)
    )


def kinds_of(
    state: StateNote, since: SourceCheckpoint | None, ask: AnswerRequest, kept: KeptPast, *, is_inside: bool
) -> dict[str, TableExtent]:
    """How each table is given that is asked for and in the state."""
    kinds: dict[str, TableExtent] = {}
    for source in sorted(ask.sources):
        table = state.tables.get(source)
        controls = kept.controls(source)
        if table is None:
            continue
        if since is None or is_inside or since.pair < table.horizon:
            kinds[source] = TableExtent.ALL
            continue
        between = [control for control in controls if since.pair < control.pair <= state.position.pair]
        before = [control.table for control in controls if control.pair <= since.pair]
        kinds[source] = _kind(between, before[-1] if before else None, table.table, ask, source)
    return kinds


_ASKS_ALL = frozenset(
    {
        ControlKind.TRUNCATE,
        ControlKind.DROP,
        ControlKind.GAP,
        ControlKind.SNAPSHOT_BEGIN,
        ControlKind.SNAPSHOT_END,
    }
)


def _kind(
    controls: Sequence[LoggedControl], before: TableSchema | None, now: TableSchema, ask: AnswerRequest, source: str
) -> TableExtent:
    conditions, projection = ask.conditions(source), ask.projection(source)
    ever = (now, *(control.table for control in controls), *(() if before is None else (before,)))
    if (conditions or ask.first_images) and not all(table.first_images for table in ever):
        return TableExtent.ALL  # which rows met the condition before is not known
    for control in controls:
        if control.kind in _ASKS_ALL:
            return TableExtent.ALL
        if int(control.body.get("class", 1)) >= NEEDS_SNAPSHOT:
            return TableExtent.ALL
        renamed: Mapping[str, str] = control.body.get("renamed") or {}
        fill: Mapping[str, object] = control.body.get("fill") or {}
        added = set(control.table.names) ^ set(control.table.names if before is None else before.names)
        touched = {name.lower() for name in (*renamed, *renamed.values(), *fill, *added)}
        if conditions & touched:
            return TableExtent.ALL
        names = {name.lower() for name in (*renamed, *renamed.values())}
        if names & ask.hidden(source) or (projection is not None and projection & names):
            return TableExtent.ALL
        before = control.table
    return TableExtent.SINCE


def _compared(position: SourceCheckpoint, head: HeadNote) -> SourceCheckpoint:
    """A position as it compares with the log that the stores were filled from: another log counts otherwise."""
    if not is_of_other_log(position, head.log_at(position.pair)):
        return position
    if is_inside_transaction(position.pair):
        return SourceCheckpoint(scn=position.scn - 1, snapshots={UNREAD_TABLES: 0})
    return replace(position, seq=None)


def _is_inside(position: SourceCheckpoint, ask: AnswerRequest) -> bool:
    return _has_open(position, ask) or is_inside_transaction(position.pair)


def _has_open(position: SourceCheckpoint, ask: AnswerRequest) -> bool:
    """Whether a snapshot of a table that is asked for was open there."""
    return UNREAD_TABLES in position.snapshots or bool(ask.sources & {*position.snapshots})


def _position_of(pair: Pair) -> SourceCheckpoint:
    return SourceCheckpoint(scn=pair[0], seq=pair[1])


def _progress(ask: AnswerRequest, kept: KeptPast) -> str:
    """How far the stores are with what is asked for."""
    if not kept.states:
        return "nothing was noted so far"
    newest = kept.states[-1]
    lacks = newest.incomplete | {*newest.position.snapshots}
    said = [
        f"{source} is being read, {newest.tables[source].rows if source in newest.tables else 0} rows so far"
        for source in sorted(ask.sources & lacks)
    ]
    return "; ".join(said) or f"the newest is at SCN {newest.position.scn}"


def _later(ask: AnswerRequest, why: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"{ask.physical}: {why}; ask again")
