"""An answer as groups of frames: the time before the state, its rows, the end. No row becomes an object.

Everything comes in the order of pairs, so a consumer that breaks off is given the rest by any server that knows the
name of the answer and the pair that was reached.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.bootstrap._ask import AnswerRequest
from databus.bootstrap._plan import NOTHING, StateAnswer, TableExtent
from databus.bootstrap._told import Told
from databus.core import (
    BUS_SEQ_MIN,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    SNAPSHOT,
    TXID,
    ChangeType,
    ControlKind,
    Pair,
    SourceCheckpoint,
    UnknownSource,
)
from databus.filters import FrameFilter
from databus.log import SchemaStore
from databus.schema import TableSchema
from databus.stores import (
    LoggedControl,
    LogSelection,
    Piece,
    RowsWanted,
    StateNote,
    StateTable,
    control_of,
    definition_at,
    frame_rows,
    under_own_names,
)
from databus.wire import (
    CONTINUES_AT,
    Commit,
    Control,
    Group,
    OpenSnapshot,
    Rows,
    encode_group,
    is_inside_transaction,
)

_GROUP_BYTES: Final = 4 << 20
_SEQ_MAX: Final = (1 << 63) - 1

Pieces = Callable[[Mapping[str, LogSelection], Pair, Pair], Iterator[Piece]]
"""Of tables, what the log store holds above a pair, up to another."""
StateBatches = Callable[[str, StateTable, int, Pair | None, RowsWanted | None], Iterator[tuple[int, pa.RecordBatch]]]
"""The rows of a state's table, but the first so many, and but for some that are not above a pair, or not wanted; with
numbers."""


@dataclass(frozen=True)
class GroupStep:
    """What becomes one group: a control, rows after it, or both; they end at `last`."""

    first: Pair
    last: Pair
    rows: tuple[Rows, ...] = ()
    control: Control | None = None
    txid: str = ""
    commit_us: int = 0
    snapshots: Mapping[str, OpenSnapshot] | None = None


@dataclass(frozen=True)
class Stores:
    """Where the rows come from: log store and states of one physical source."""

    schemas: SchemaStore
    controls: Callable[[str], Sequence[LoggedControl]]
    pieces: Pieces
    batches: StateBatches


def answered(
    answer: StateAnswer, ask: AnswerRequest, stores: Stores, now_us: int, to: Pair | None = None
) -> Iterator[bytes]:
    """The bytes of an answer, whole groups at a time; the last one says where the relay goes on. to: a pair of it
    after which it may end.
    """
    frames = None if ask.filter.is_nothing else FrameFilter(ask.filter, ask.physical, stores.schemas)
    steps = (step for step in _steps(answer, ask, stores, frames, to) if step.last > answer.after)
    state = answer.state.position
    end = replace(state, snapshots={}, log=state.log if state.seq is not None else None)
    cut = None if to is None or to >= (state.scn, answer.state.end) else to
    before: GroupStep | None = None
    for step in steps:
        if cut is not None and step.first > cut:
            break
        if before is not None:
            yield _encoded(before, stores, frames, now_us, following=step.first)
        before = step
    if cut is not None:
        if before is not None:
            yield _encoded(before, stores, frames, now_us, following=cut)
        if before is None or before.last < cut:  # whoever reads a part knows by this that it has all
            yield _encoded(GroupStep(cut, cut, commit_us=state.ts_us), stores, frames, now_us)
        return
    if before is None:  # there is nothing to say but where to go on
        at = state.scn, answer.state.end
        before = GroupStep(at, at, commit_us=state.ts_us)
    yield _encoded(before, stores, frames, now_us, end=end)


def every_change(
    start: SourceCheckpoint,
    end: SourceCheckpoint,
    ask: AnswerRequest,
    stores: Stores,
    now_us: int,
    to: Pair | None = None,
) -> Iterator[bytes]:
    """All changes of a range of the log store, as a relay would have given them. to: a pair of it after which it may
    end, at the end of a transaction.
    """
    if to is not None and to < end.pair:
        to_seq = to[1] if to[1] >= BUS_SEQ_MIN else None
        end = min(end, SourceCheckpoint(scn=to[0], seq=to_seq), key=lambda position: position.pair)
    frames = None if ask.filter.is_nothing else FrameFilter(ask.filter, ask.physical, stores.schemas)
    wanted = dict.fromkeys(sorted(ask.sources), LogSelection.ALL)
    open_now: dict[str, OpenSnapshot] = {}
    before: GroupStep | None = None
    for step in _logged(wanted, start.pair, end.pair, stores, lambda _: None, open_now):
        if before is not None:
            yield _encoded(before, stores, frames, now_us, following=step.first, is_answer=False)
        before = step
    if before is not None:
        yield _encoded(before, stores, frames, now_us, following=None, is_answer=False)
    is_inside = is_inside_transaction(end.pair)
    commit = Commit(end.scn, end.pair[1], end.txid, {}, end.ts_us, dict(open_now), continues=is_inside)
    if before is None or before.last < end.pair:
        yield _bytes(Group(commit), stores, None, now_us)


def _encoded(
    step: GroupStep,
    stores: Stores,
    frames: FrameFilter | None,
    now_us: int,
    *,
    following: Pair | None = None,
    end: SourceCheckpoint | None = None,
    is_answer: bool = True,
) -> bytes:
    """following: where the next group begins, which may be in the same transaction."""
    scn, seq = step.last
    continues = following is not None and following[0] == scn and following[1] < BUS_SEQ_MIN
    position: Mapping[str, Any] = {} if end is None else {CONTINUES_AT: end.to_json()}
    commit = Commit(
        scn,
        seq,
        step.txid if end is None else end.txid,
        position,
        step.commit_us,
        dict(step.snapshots or {}) if end is None else {},
        continues=continues,
        has_unread=is_answer and end is None,
    )
    is_read = is_answer and seq >= BUS_SEQ_MIN
    return _bytes(Group(commit, step.rows, step.control, snapshot=is_read), stores, frames, now_us)


def _bytes(group: Group, stores: Stores, frames: FrameFilter | None, now_us: int) -> bytes:
    content = b"".join(encode_group(group, stores.schemas, now_us).buffers)
    if frames is None:
        return content
    filtered = frames.filtered(content)
    if filtered.error is not None:
        raise filtered.error
    return filtered.content


def _steps(
    answer: StateAnswer, ask: AnswerRequest, stores: Stores, frames: FrameFilter | None, to: Pair | None = None
) -> Iterator[GroupStep]:
    cut_of = None if frames is None else frames.cut_of
    keyless = _keyless(answer, ask, stores)
    told_by_source = {
        source: Told(answer, source, source in keyless, cut_of, ask.first_images) for source in sorted(ask.sources)
    }
    after, until = max(answer.begins_after, answer.after), answer.state.position.pair
    if to is not None:  # to the end of that transaction: images of an update are judged together
        until = min(until, (to[0], _SEQ_MAX))
    yield from _logged(needed_of(answer, ask, stores), after, until, stores, told_by_source.get, {})
    yield from _state_steps(answer, ask, stores)


def needed_of(answer: StateAnswer, ask: AnswerRequest, stores: Stores) -> dict[str, LogSelection]:
    """What of the log store is needed to tell of the time before the state."""
    keyless = _keyless(answer, ask, stores)
    return {
        source: LogSelection.ALL if source in keyless else _wanted(answer.kinds.get(source))
        for source in sorted(ask.sources if not answer.is_new else keyless)
    }


def _keyless(answer: StateAnswer, ask: AnswerRequest, stores: Stores) -> set[str]:
    return {source for source in ask.sources if source not in answer.state.tables and _is_keyless(source, stores)}


def _wanted(kind: TableExtent | None) -> LogSelection:
    return LogSelection.REMOVALS if kind is TableExtent.SINCE else LogSelection.CONTROLS


def _is_keyless(source: str, stores: Stores) -> bool:
    table = stores.schemas.definition_now(source)
    return table is not None and not table.key


# The log store's range


def followed(open_now: dict[str, OpenSnapshot], sources: Iterable[str], until: Pair, stores: Stores) -> None:
    """Have `open_now` say which snapshots of tables are open at a pair."""
    for control in sorted(
        (control for source in sources for control in stores.controls(source)), key=lambda control: control.pair
    ):
        if control.pair <= until:
            _follow(open_now, control)


def _logged(
    sources: Mapping[str, LogSelection],
    after: Pair,
    until: Pair,
    stores: Stores,
    told_of: Callable[[str], Told | None],
    open_now: dict[str, OpenSnapshot],
) -> Iterator[GroupStep]:
    """What the log store holds between two pairs, as far as the answer has it. open_now: the open snapshots."""
    followed(open_now, sources, after, stores)
    tables = {source: definition_at(source, after, stores.controls(source), stores.schemas) for source in sources}
    for piece in stores.pieces(sources, after, until):
        for control, rows in _parts(piece):
            if control is not None:
                told = told_of(control.source)
                shown = control if told is None else told.control(control)
                _follow(open_now, control)
                known = stores.controls(control.source)
                tables[control.source] = definition_at(control.source, control.pair, known, stores.schemas)
                if shown is not None:
                    yield _control_step(shown, dict(open_now))
            yield from _row_steps(rows, tables, told_of, dict(open_now))


def _parts(piece: Piece) -> Iterator[tuple[LoggedControl | None, dict[str, pa.Table]]]:
    """A piece, divided at its controls: each with the rows behind it."""
    controls: list[LoggedControl] = []
    rows: dict[str, pa.Table] = {}
    for source, of_source in piece.items():
        rows[source] = of_source
        if CONTROL in of_source.column_names and of_source.column(CONTROL).null_count < of_source.num_rows:
            is_control = of_source.column(CONTROL).is_valid()
            controls += map(_control_of(source), of_source.filter(is_control).to_pylist())
            rows[source] = of_source.filter(pc.invert(is_control))
    controls.sort(key=lambda control: control.pair)
    bounds = [*(control.pair for control in controls[1:]), None] if controls else []
    first = controls[0].pair if controls else None
    yield None, _within(rows, NOTHING, first)
    for control, bound in zip(controls, bounds, strict=True):
        yield control, _within(rows, control.pair, bound)


def _control_of(source: str) -> Callable[[Mapping[str, Any]], LoggedControl]:
    return lambda row: control_of(source, (row[COMMIT_VERSION], row[SEQ]), row[CONTROL], f"the log store, {source}")


def _within(rows: Mapping[str, pa.Table], above: Pair, below: Pair | None) -> dict[str, pa.Table]:
    """Sorted rows between two pairs."""
    within = {}
    for source, table_rows in rows.items():
        start = _count_below(table_rows, above)
        stop = table_rows.num_rows if below is None else _count_below(table_rows, below)
        if stop > start:
            within[source] = table_rows.slice(start, stop - start)
    return within


def _count_below(rows: pa.Table, pair: Pair) -> int:
    """How many sorted rows are at or below a pair."""
    scns, seqs = rows.column(COMMIT_VERSION).to_numpy(), rows.column(SEQ).to_numpy()
    start, stop = np.searchsorted(scns, pair[0], "left"), np.searchsorted(scns, pair[0], "right")
    return int(start + np.searchsorted(seqs[start:stop], pair[1], "right"))


def _follow(open_now: dict[str, OpenSnapshot], control: LoggedControl) -> None:
    if control.kind is ControlKind.SNAPSHOT_BEGIN:
        open_now[control.source] = OpenSnapshot(int(control.body["generation"]), None, control.pair)
    elif control.kind in (ControlKind.SNAPSHOT_END, ControlKind.DROP):
        open_now.pop(control.source, None)


def _control_step(control: LoggedControl, snapshots: Mapping[str, OpenSnapshot]) -> GroupStep:
    scn, seq = control.pair
    made = Control(control.kind, control.table, scn, seq, control.body)
    return GroupStep(control.pair, control.pair, control=made, snapshots=snapshots)


def _row_steps(
    rows: Mapping[str, pa.Table],
    tables: Mapping[str, TableSchema | None],
    told_of: Callable[[str], Told | None],
    snapshots: Mapping[str, OpenSnapshot],
) -> Iterator[GroupStep]:
    shown: dict[str, Rows] = {}
    for source, table_rows in rows.items():
        table = tables[source]
        if table is None:
            raise UnknownSource(f"{source}: the log store has rows of it, and no definition that they are in")
        batch = frame_rows(table, under_own_names(table, table_rows))
        told = told_of(source)
        left = batch if told is None else told.rows(table, batch)
        if left is not None and left.num_rows:
            shown[source] = Rows(table, left)
    yield from _portions(shown, snapshots)


def _portions(rows: Mapping[str, Rows], snapshots: Mapping[str, OpenSnapshot]) -> Iterator[GroupStep]:
    """Rows as groups of about `_GROUP_BYTES`, cut at one pair for all tables; images of an update stay together."""
    left = dict(rows)
    while left:
        size = sum(table_rows.batch.nbytes for table_rows in left.values())
        largest = max(left.values(), key=lambda table_rows: table_rows.batch.nbytes)
        count = largest.batch.num_rows
        keep = max(count * _GROUP_BYTES // max(size, 1), 1)
        if keep >= count:
            yield _rows_step(tuple(left.values()), snapshots)
            return
        kinds = largest.batch.column(CHANGE_TYPE)
        if keep < count and kinds[keep - 1].as_py() == int(ChangeType.UPDATE_PREIMAGE):
            keep += 1
        bound = _pair_at(largest.batch, keep - 1)
        head: dict[str, Rows] = {}
        rest: dict[str, Rows] = {}
        for source, table_rows in left.items():
            number = _count_below(pa.Table.from_batches([table_rows.batch]), bound)
            if number:
                head[source] = Rows(table_rows.table, table_rows.batch.slice(0, number))
            if number < table_rows.batch.num_rows:
                rest[source] = Rows(table_rows.table, table_rows.batch.slice(number))
        yield _rows_step(tuple(head.values()), snapshots)
        left = rest


def _rows_step(rows: tuple[Rows, ...], snapshots: Mapping[str, OpenSnapshot]) -> GroupStep:
    first = min(_pair_at(table_rows.batch, 0) for table_rows in rows)
    last = max(rows, key=lambda table_rows: _pair_at(table_rows.batch, table_rows.batch.num_rows - 1)).batch
    at = last.num_rows - 1
    us = last.column(COMMIT_TIMESTAMP).cast(pa.int64())[at].as_py()
    return GroupStep(first, _pair_at(last, at), rows, None, str(last.column(TXID)[at].as_py()), int(us), snapshots)


def _pair_at(batch: pa.RecordBatch, row: int) -> Pair:
    return batch.column(COMMIT_VERSION)[row].as_py(), batch.column(SEQ)[row].as_py()


# The state's rows


def _state_steps(answer: StateAnswer, ask: AnswerRequest, stores: Stores) -> Iterator[GroupStep]:
    """Table by table. The numbers count all of the state, whoever asks and whatever is left out."""
    state, scn = answer.state, answer.state.position.scn
    number = state.base
    for source in sorted(state.tables):
        table = state.tables[source]
        size = table.rows + 3
        kind = answer.kinds.get(source)
        if kind is not None and (scn, number + size) > answer.after:
            yield from _table_steps(answer, source, table, kind, number, stores, ask)
        number += size
    for at, source in enumerate(state.known):
        is_gone = source in ask.sources and source not in state.tables and not _is_keyless(source, stores)
        definition = stores.schemas.definition_now(source)
        if answer.is_lost and is_gone and definition is not None:
            yield _made_control(ControlKind.DROP, definition, (scn, number + at), state)


def _table_steps(
    answer: StateAnswer,
    source: str,
    table: StateTable,
    kind: TableExtent,
    number: int,
    stores: Stores,
    ask: AnswerRequest,
) -> Iterator[GroupStep]:
    state, scn = answer.state, answer.state.position.scn
    is_whole = kind is TableExtent.ALL
    if answer.is_lost or (is_whole and table.is_narrowed and not answer.is_new):
        # what it was where the consumer stood is not known; or no end says that older rows are gone
        yield _made_control(ControlKind.DROP, table.table, (scn, number), state)
    begin = scn, number + 1
    open_now = {source: OpenSnapshot(number + 1, None, begin)}
    body = {"generation": number + 1}
    yield _made_control(ControlKind.SNAPSHOT_BEGIN, table.table, begin, state, open_now, **body)
    first = number + 2
    skip = max(answer.after[1] - first + 1, 0) if answer.after[0] == scn else 0
    newer_than = None if is_whole else answer.begins_after
    for at, batch in stores.batches(source, table, skip, newer_than, ask.wanted(source, table.table)):
        rows = _state_rows(table.table, batch, first + at, newer_than, state.position)
        if rows is not None:
            yield from _portions({source: Rows(table.table, rows)}, open_now)
    end: dict[str, Any] = {**body, "begin": list(begin)}
    end |= {"complete": is_whole and not table.is_narrowed, "as_configured": is_whole}
    yield _made_control(ControlKind.SNAPSHOT_END, table.table, (scn, first + table.rows), state, **end)


def _made_control(
    kind: ControlKind,
    table: TableSchema,
    pair: Pair,
    state: StateNote,
    snapshots: Mapping[str, OpenSnapshot] | None = None,
    **body: Any,
) -> GroupStep:
    full_body = {"kind": kind.value, "source": table.source, **body}
    control = Control(kind, table, *pair, full_body)
    return GroupStep(pair, pair, (), control, state.position.txid, state.position.ts_us, snapshots)


def _state_rows(
    table: TableSchema, batch: pa.RecordBatch, first: int, newer_than: Pair | None, position: SourceCheckpoint
) -> pa.RecordBatch | None:
    """Rows of a state as inserts, with numbers from `first` on; of those above a pair, if that is asked for."""
    seqs = np.arange(first, first + batch.num_rows, dtype=np.int64)
    rows = pa.Table.from_batches([batch])
    if newer_than is not None:
        scns, own = rows.column(COMMIT_VERSION).to_numpy(), rows.column(SEQ).to_numpy()
        is_newer = (scns > newer_than[0]) | ((scns == newer_than[0]) & (own > newer_than[1]))
        rows, seqs = rows.filter(pa.array(is_newer)), seqs[is_newer]
    count = rows.num_rows
    if not count:
        return None
    bus = {
        CHANGE_TYPE: pa.repeat(pa.scalar(int(ChangeType.INSERT), pa.int8()), count),
        COMMIT_VERSION: pa.repeat(pa.scalar(position.scn, pa.int64()), count),
        SEQ: pa.array(seqs),
        COMMIT_TIMESTAMP: pa.repeat(pa.scalar(position.ts_us, pa.timestamp("us", tz="UTC")), count),
        TXID: pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([position.txid])),
        SNAPSHOT: pa.repeat(pa.scalar(value=True), count),
    }
    own_columns = rows.select([name for name in rows.column_names if name not in bus])
    for name, column in bus.items():
        own_columns = own_columns.append_column(name, column)
    return frame_rows(table, own_columns)
