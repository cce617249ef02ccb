"""What an answer is made of, in parts that are known without reading a row: footers alone are looked at.

For readers that plan before they read: where so many rows end, and where to divide them. Each part ends at a pair from
which any server goes on, and none ends inside of a transaction.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from databus.bootstrap._ask import AnswerRequest
from databus.bootstrap._plan import EveryChange, KeptPast, StateAnswer, TableExtent
from databus.bootstrap._render import Stores, followed, needed_of
from databus.core import BUS_SEQ_MIN, SEQ_DONE, UNREAD_TABLES, Pair, SourceCheckpoint
from databus.stores import LoggedControl, LogSelection, RowsWanted, StateTable, StoredGroup
from databus.wire import OpenSnapshot, answer_log

_SEQ_MAX: Final = (1 << 63) - 1
PART_ROWS: Final = 20_000
"""Rows of a state that are a part, at most."""


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """What lies behind the part before it, up to a pair."""

    end: Pair
    rows: int = 0
    """At most so many come."""
    bytes: int = 0
    """About so many are read, before compression."""
    controls: int = 0
    is_numbered: bool = False
    """Whether its rows have the numbers up to its end, so that it can be cut anywhere."""

    def first(self, rows: int) -> "AnswerPart":
        """So many of its rows."""
        scn, seq = self.end
        return replace(self, end=(scn, seq - self.rows + rows), rows=rows, bytes=self.bytes * rows // self.rows)


@dataclass(frozen=True)
class Footers:
    """What row groups there are, in the log store and in a state; see `LogLook.groups` and `StateRows.groups`."""

    of_log: Callable[[Mapping[str, LogSelection], Pair, Pair], Iterable[tuple[str, StoredGroup]]]
    of_state: Callable[[str, StateTable, int, Pair | None, RowsWanted | None], Iterator[tuple[int, StoredGroup]]]


@dataclass(frozen=True)
class Outline:
    """An answer, or every change, as far as it is known without its rows."""

    answer: StateAnswer | EveryChange
    ask: AnswerRequest
    kept: KeptPast
    stores: Stores
    footers: Footers

    @property
    def log(self) -> str:
        """By what name it comes."""
        if isinstance(self.answer, EveryChange):
            return self.answer.log
        return answer_log(str(self.answer.name))

    @property
    def kind(self) -> str:
        """What sort of answer it is, as headers and figures name it."""
        if isinstance(self.answer, EveryChange):
            return "every"
        return "state" if self.answer.name.since is None else "since"

    @property
    def start(self) -> SourceCheckpoint:
        """Where it begins, so that all of it comes again from there, and of this answer."""
        if isinstance(self.answer, EveryChange):
            return self.answer.start
        return self.position(max(self.answer.after, self.answer.begins_after))

    @property
    def end(self) -> SourceCheckpoint:
        """Where it ends: there the relay goes on."""
        if isinstance(self.answer, EveryChange):
            return self.position(self.answer.end.pair)
        state = self.answer.state
        at = state.position
        return SourceCheckpoint(at.uuid, at.scn, seq=state.end, txid=at.txid, ts_us=at.ts_us, log=self.log)

    def position(self, pair: Pair) -> SourceCheckpoint:
        """The position at a pair of it."""
        head, (scn, seq) = self.kept.head.position, pair
        at = SourceCheckpoint(head.uuid, max(scn, 0), seq=None if seq in (-1, SEQ_DONE) else seq)
        if not isinstance(self.answer, EveryChange):
            return replace(at, log=self.log, snapshots={**self._open(pair), UNREAD_TABLES: 0})
        if pair == head.pair:
            at = replace(at, txid=head.txid, ts_us=head.ts_us)
        open_now: dict[str, OpenSnapshot] = {}
        followed(open_now, self.ask.sources, pair, self.stores)
        snapshots = {source: snapshot.generation for source, snapshot in open_now.items()}
        return replace(at, log=self.log if at.seq is not None or snapshots else None, snapshots=snapshots)

    def first_control(self) -> tuple[LoggedControl | None, Pair | None]:
        """Of every change: the control that comes first, if nothing can be before it, and the last pair that is surely
        below the next one; None each where there is none.
        """
        start = self.start.pair
        controls = (
            control for source in self.ask.sources for control in self.kept.controls(source) if control.pair > start
        )
        following = sorted(controls, key=lambda control: control.pair)
        least = max(start, self.kept.head.low)  # below there is nothing, and no position to end at
        begin = following.pop(0) if following and _below(following[0].pair) <= least else None
        return begin, _below(following[0].pair) if following else None

    def _open(self, pair: Pair) -> dict[str, int]:
        """Of tables that come whole, the one whose rows are being given at a pair."""
        answer = self.answer
        if not isinstance(answer, StateAnswer) or pair[0] != answer.state.position.scn:
            return {}
        number = answer.state.base
        for source in sorted(answer.state.tables):
            rows = answer.state.tables[source].rows
            if answer.kinds.get(source) is TableExtent.ALL and number + 1 <= pair[1] < number + 2 + rows:
                return {source: number + 1}
            number += rows + 3
        return {}

    def parts(self) -> Iterator[AnswerPart]:
        """What is still to come, in order. Raises `CorruptData` for a file that is not as it was noted."""
        if isinstance(self.answer, EveryChange):
            wanted = dict.fromkeys(sorted(self.ask.sources), LogSelection.ALL)
            yield from self._of_log(wanted, self.answer.start.pair, self.answer.end.pair)
            return
        answer, state = self.answer, self.answer.state
        needed = needed_of(answer, self.ask, self.stores)
        after, until = max(answer.begins_after, answer.after), state.position.pair
        if after < until:
            yield from self._of_log(needed, after, until)
        for part in self._of_state(answer):
            if part.end > answer.after:
                is_begun = part.is_numbered and part.end[0] == answer.after[0]
                left = min(part.rows, part.end[1] - answer.after[1]) if is_begun else part.rows
                yield replace(part, rows=left)
        if (state.position.scn, state.end) > answer.after:
            yield AnswerPart((state.position.scn, state.end), controls=1)

    def _of_log(self, wanted: Mapping[str, LogSelection], after: Pair, until: Pair) -> Iterator[AnswerPart]:
        groups = sorted(self.footers.of_log(wanted, after, until), key=lambda entry: entry[1].last)
        for source, group in groups:
            scn, seq = group.last
            is_known = BUS_SEQ_MIN <= seq < _SEQ_MAX  # of what the bus put behind a transaction
            end = min(group.last if is_known else (scn, SEQ_DONE), until)
            is_read = wanted[source] is not LogSelection.CONTROLS
            size = (group.rows, group.bytes) if is_read else (0, 0)
            if end > after:
                yield AnswerPart(end, *size, controls=int(group.has_controls))
        yield AnswerPart(until)

    def _of_state(self, answer: StateAnswer) -> Iterator[AnswerPart]:
        state, number = answer.state, answer.state.base
        scn = state.position.scn
        for source in sorted(state.tables):
            table = state.tables[source]
            first, kind = number + 2, answer.kinds.get(source)
            number += table.rows + 3
            if kind is None or (scn, number) <= answer.after:
                continue
            yield AnswerPart((scn, first - 1), controls=1)
            skip = max(answer.after[1] - first + 1, 0) if answer.after[0] == scn else 0
            above = None if kind is TableExtent.ALL else answer.begins_after
            wanted = self.ask.wanted(source, table.table, is_told=True)
            for at, group in self.footers.of_state(source, table, skip, above, wanted):
                for start in range(0, group.rows, PART_ROWS):
                    rows = min(PART_ROWS, group.rows - start)
                    size = group.bytes * rows // group.rows
                    yield AnswerPart((scn, first + at + start + rows - 1), rows, size, is_numbered=True)
            yield AnswerPart((scn, first + table.rows), controls=1)


@dataclass(frozen=True, slots=True)
class Measured:
    """So much of an answer as fits some limits."""

    end: SourceCheckpoint
    rows: int
    bytes: int
    parts: int
    controls: int
    splits: tuple[SourceCheckpoint, ...]


def measured(
    outline: Outline,
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
    to: Pair | None = None,
    partitions: int = 1,
) -> Measured:
    """As many parts as fit, one at least. splits: where to divide them into so many of like size."""
    taken: list[AnswerPart] = []
    rows = size = 0
    for part in outline.parts():
        if to is not None and part.end > to:
            over = part.end[1] - to[1]
            if part.is_numbered and part.end[0] == to[0] and over < part.rows:
                taken.append(part.first(part.rows - over))
            elif not part.is_numbered:  # how many of its rows are below is not known; none would be wrong
                taken.append(replace(part, end=to))
            return _of(outline, taken, outline.position(to), partitions)
        room = _room(part, rows, size, rows_max, bytes_max)
        if room < part.rows and (taken or part.is_numbered):
            if part.is_numbered and room:
                taken.append(part.first(room))
            return _of(outline, taken, outline.position(taken[-1].end), partitions)
        taken.append(part)
        rows, size = rows + part.rows, size + part.bytes
    return _of(outline, taken, outline.end, partitions)


def _room(part: AnswerPart, rows: int, size: int, rows_max: int | None, bytes_max: int | None) -> int:
    """How many rows of a part fit behind what was taken; one at least where nothing was."""
    room = part.rows if rows_max is None else min(part.rows, rows_max - rows)
    if bytes_max is not None and size + part.bytes > bytes_max:
        room = min(room, part.rows * (bytes_max - size) // max(part.bytes, 1))
    return room if rows else max(room, min(part.rows, 1))


def _of(outline: Outline, taken: Sequence[AnswerPart], end: SourceCheckpoint, partitions: int) -> Measured:
    size = sum(part.bytes for part in taken)
    splits: list[SourceCheckpoint] = []
    reached = 0
    for before, part in itertools.pairwise(taken):
        reached += before.bytes
        is_due = reached * partitions >= size * (len(splits) + 1)
        if size and is_due and len(splits) + 1 < partitions and before.end < part.end:
            splits.append(outline.position(before.end))
    rows, controls = (sum(getattr(part, name) for part in taken) for name in ("rows", "controls"))
    return Measured(end, rows, size, len(taken), controls, tuple(splits))


def _below(pair: Pair) -> Pair:
    """The pair before one, if nothing is between them."""
    scn, seq = pair
    return (scn, seq - 1) if seq > 1 else (scn - 1, SEQ_DONE)


def outline_json(outline: Outline, size: Measured, controls: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """As /range answers it; what a relay says has its names. controls: that it begins with."""
    answer = outline.answer
    kinds = {} if isinstance(answer, EveryChange) else {name: str(kind) for name, kind in answer.kinds.items()}
    return {
        "kind": outline.kind,
        "tables": kinds,
        "log": outline.log,
        "start": outline.start.to_json(),
        "position": size.end.to_json(),
        "rows": size.rows,
        "bytes": size.bytes,
        "groups": size.parts,
        "controls": [*controls],
        "has_controls": size.controls > 0,
        "oldest_us": None,
        "published": outline.kept.head.position.to_json(),
        "splits": [split.to_json() for split in size.splits],
    }
