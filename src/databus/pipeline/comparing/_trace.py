"""`databus trace`: what became of the changes of one row, output by output.

Rows are not recorded. A trace is computed when it is asked for: the images come from the relay's log, the present
filters are tried on them, the ledger has the place of an output, the journal of batches the batch of a change, and the
target its own rows. What filters do with changes is in `_trace_filters.py`. Start with `trace`; `verdict_of` is pure.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from databus.core import ChangeType, ControlKind, DatabusError, InputError, Pair, UnknownSource
from databus.filters import StreamFilter, TableRule
from databus.flow import TableRows
from databus.formats import to_json_value
from databus.pipeline.comparing._trace_filters import Change, FilteredChange, WayThrough, last_of, pairs_in
from databus.pipeline.engine import positions_of
from databus.pipeline.graph import Graph
from databus.pipeline.telling import read_batches
from databus.places import Position
from databus.plugins import FindsKeys, FindsOffsets, KeepsLetters
from databus.schema import TableSchema, column_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from databus.client import Row
    from databus.link import RelayClient, Start

CHANGES_MAX: Final = 1_000
_HELD_CHARS_MAX: Final = 1 << 26
"""Of the images of these changes in memory: the pipeline itself computes a trace."""
_VALUE_CHARS_MAX: Final = 2_000
_SHOWN_CHARS_MAX: Final = 1 << 21
"""Of all images in one answer, where they are shown."""
_NUMBERS: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_NUMERIC: Final = ("int", "uint", "decimal", "float", "double", "bool", "year")
_GONE: Final = frozenset({ChangeType.DELETE})


class Verdict(StrEnum):
    """What became of a change in an output."""

    WRITTEN = "written"
    SUPERSEDED = "superseded"
    """The target has a later state of the row."""
    FILTERED = "filtered"
    NOT_YET = "not yet"
    DEAD_LETTER = "dead letter"
    NOT_FOR_IT = "not for it"
    """The output does not take the table."""
    UNKNOWN = "unknown"
    LOST = "lost"
    """The ledger is past the change, and the target has neither it nor a later state."""


@dataclass(frozen=True)
class Emptied:
    """A control that removes rows: a truncation, drop, or snapshot."""

    pair: Pair
    below: Pair
    """Rows of changes below it are gone."""


@dataclass(frozen=True)
class Fate:
    """What became of a change in one output."""

    output: str
    verdict: Verdict
    why: str = ""
    at_us: int | None = None
    """When it was written; None if the journal does not have it."""
    batch: tuple[Pair, Pair] | None = None


@dataclass(frozen=True)
class Traced:
    """A change, and what became of it."""

    change: Change
    fates: Sequence[Fate]

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        change = self.change
        return {
            "pair": change.pair,
            "kind": change.kind.label,
            "commit_us": change.commit_us,
            "txid": change.txid,
            "before": change.before,
            "after": change.after,
            "outputs": {
                fate.output: {"verdict": fate.verdict, "why": fate.why, "at_us": fate.at_us, "batch": fate.batch}
                for fate in self.fates
            },
        }


def as_shown(changes: Iterable[Traced]) -> list[dict[str, Any]]:
    """The same for pages, however long rows are: see `cut_image`. What is behind the bound of an answer has its
    verdicts, and `left_out` in the place of its images: how many characters they have.
    """
    shown, left = [], _SHOWN_CHARS_MAX
    for traced in changes:
        one = traced.to_json()
        images = {name: cut_image(one[name]) for name in ("before", "after")}
        for fate in one["outputs"].values():
            fate["why"] = _cut(fate["why"])
        size = len(json.dumps(images))
        if size > left:
            images, one["left_out"] = dict.fromkeys(images), size
        left -= size if size <= left else 0
        shown.append({**one, **images})
    return shown


def cut_image(image: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An image of a row with its long values cut, and how long they were.

    >>> cut_image({"id": 7, "note": "x" * 3_000})["note"][-22:]
    'xx… (3,000 characters)'
    """
    return None if image is None else {name: _cut(value) for name, value in image.items()}


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value) if isinstance(value, list | dict) else ""
    return value if len(text) <= _VALUE_CHARS_MAX else f"{text[:_VALUE_CHARS_MAX]}… ({len(text):,} characters)"


@dataclass(frozen=True)
class Evidence:
    """What is known of the row in one output, beside the change itself."""

    done: Pair
    """Up to where the output has written."""
    later: Sequence[tuple[Pair, ChangeType]] = ()
    """Later changes of the same row, up to `done`."""
    there: Sequence[Pair] | None = None
    """Pairs of the rows of this key in the target; None if it cannot be asked."""
    keeps_all: bool = False
    """Whether the target keeps each change as a row."""
    letters: Mapping[Pair, str] = field(default_factory=dict)
    """Reasons of dead letters, by pair."""
    batch: Mapping[str, Any] | None = None
    """The batch of the change, from the journal."""


def verdict_of(output: str, change: Change, known: Evidence) -> Fate:
    """What became of a change that passes all filters on the way to an output."""
    if change.pair > known.done:
        return Fate(output, Verdict.NOT_YET, f"it has come to {_place(known.done)}")
    if change.pair in known.letters:
        return Fate(output, Verdict.DEAD_LETTER, known.letters[change.pair])
    written = _written(output, known)
    if known.there is None:
        return replace(written, why=written.why or "what the target has was not looked at")
    if known.keeps_all:
        return written if change.pair in known.there else _lost(output, known)
    return _in_copy(output, change, known, known.there, written)


def _in_copy(output: str, change: Change, known: Evidence, there: Sequence[Pair], written: Fate) -> Fate:
    """For a target that has the last state of each row. there: the pairs of its rows of this key."""
    last, kind = known.later[-1] if known.later else (change.pair, change.kind)
    is_right = not any(pair <= last for pair in there) if kind in _GONE else any(pair >= last for pair in there)
    if not is_right:
        return _lost(output, known, "the row is still there" if kind in _GONE else "")
    newest = max((last, *there))
    return written if newest == change.pair else Fate(output, Verdict.SUPERSEDED, f"by {_place(newest)}")


def _written(output: str, known: Evidence) -> Fate:
    if known.batch is None:
        return Fate(output, Verdict.WRITTEN, "the journal no longer has its batch")
    ends = tuple(known.batch["start"]), tuple(known.batch["end"])
    return Fate(output, Verdict.WRITTEN, "", known.batch["at_us"], ends)


def _lost(output: str, known: Evidence, why: str = "") -> Fate:
    places = ", ".join(map(_place, sorted(known.there or ()))) or "nothing"
    state = f"it has come to {_place(known.done)}, and the target has {places} of this key"
    return Fate(output, Verdict.LOST, f"{why}: {state}" if why else state)


def trace(
    graph: Graph,
    client: "RelayClient",
    table: str,
    key: Mapping[str, str],
    start: "Start",
    spark: "Callable[[], SparkSession] | None" = None,
    may_show: "Callable[[str], bool]" = lambda _: True,
) -> Iterator[Traced]:
    """The changes of a row since `start`, the newest `CHANGES_MAX` at most (fewer if long), and what became of each.

    spark: gives a session for `sql` and `python` filters; without it, these are not tried. may_show: whether the caller
    may see the table of this full name. Raises `UnknownSource` for an unknown table, `InputError` for a wrong key.
    """
    full, schema = _table_of(client, table, may_show)
    read = _RowHistory(client, full, schema, _condition(schema, key), start)
    outputs = [
        (known.output, known.positions.get(full.partition("/")[0]), known.error) for known in positions_of(graph.config)
    ]
    traces = [_OutputTrace(graph, name, position, error, read, spark) for name, position, error in outputs]
    for number, change in enumerate(read.changes):
        yield Traced(change, [trace.fate(number) for trace in traces])


class _RowHistory:
    """The row's changes in the log, also behind the filter of an input."""

    def __init__(self, client: "RelayClient", full: str, schema: TableSchema, where: str, start: "Start") -> None:
        self.full = full
        self.schema = schema
        self._client = client
        self._rule = TableRule(full, where)
        self._start = start
        self._behind: dict[str, list[Change]] = {}
        self.changes, self.emptied = self._changes(StreamFilter())

    def behind(self, input_filter: StreamFilter) -> list[Change]:
        """The changes behind an input with this filter."""
        if input_filter.is_nothing:
            return self.changes
        if repr(input_filter) not in self._behind:
            self._behind[repr(input_filter)] = self._changes(input_filter)[0]
        return self._behind[repr(input_filter)]

    def _changes(self, input_filter: StreamFilter) -> tuple[list[Change], list[Emptied]]:
        from databus.client import windows

        changes, chars = deque[Change](), 0
        emptied: list[Emptied] = []
        client = self._client.filtered(replace(input_filter, rules=(*input_filter.rules, self._rule)))
        with windows(client, sources=[self.full], start=self._start, follow=False) as arriving:
            for window in arriving:
                control = window.control
                if control is not None and (below := _emptied_below(control.kind, control.pair, control.body)):
                    emptied.append(Emptied(control.pair, below))
                for change in (_change(row, window.commit_us, window.txid) for row in window.rows()):
                    changes.append(change)
                    chars += change.chars
                while len(changes) > CHANGES_MAX or (chars > _HELD_CHARS_MAX and len(changes) > 1):
                    chars -= changes.popleft().chars
        return list(changes), emptied


def _emptied_below(kind: ControlKind, pair: Pair, body: Mapping[str, Any]) -> Pair | None:
    if kind in (ControlKind.TRUNCATE, ControlKind.DROP):
        return pair
    if kind is ControlKind.SNAPSHOT_END and body.get("complete"):
        scn, seq = body["begin"]
        return int(scn), int(seq)
    return None


def _table_of(client: "RelayClient", table: str, may_show: "Callable[[str], bool]") -> tuple[str, TableSchema]:
    names = [source.name for source in client.sources() if may_show(source.name)]
    matching = [name for name in names if table in (name, name.partition("/")[2], name.rpartition(".")[2])]
    if len(matching) != 1:
        hint = f"several: {', '.join(matching)}" if matching else f"there are {', '.join(sorted(names)) or 'none'}"
        raise UnknownSource(f"no one table is called {table!r}; {hint}")
    return matching[0], list(client.register(matching))[-1].table


def _condition(schema: TableSchema, key: Mapping[str, str]) -> str:
    """A filter's condition for these values."""
    parts = []
    for name, value in key.items():
        column = column_named(name, schema.names)
        if column is None:
            raise InputError(f"{schema.source} has no column {name}; it has {', '.join(schema.names)}")
        is_number = str(schema.column(column).type).startswith(_NUMERIC)
        if is_number and not _NUMBERS.fullmatch(value) and value not in ("true", "false"):
            raise InputError(f"{name}: {value[:100]!r} is not of type {schema.column(column).type}")
        literal = value if is_number else "'" + value.replace("'", "''") + "'"
        parts.append(f'"{column}" = {literal}')
    lacking = [name for name in schema.key if name not in {column_named(key_name, schema.names) for key_name in key}]
    if lacking or not parts:
        raise InputError(f"the key of {schema.source} is {', '.join(schema.key) or 'none'}; give {', '.join(lacking)}")
    return " AND ".join(parts)


def _change(row: "Row", commit_us: int, txid: str) -> Change:
    before, after = (
        None if image is None else {name: to_json_value(value) for name, value in image.items()}
        for image in (row.before, row.after)
    )
    return Change((row.scn, row.seq), row.change_type, commit_us, txid, before, after, row.table)


class _OutputTrace:
    """One output's part of a trace: what is read once for all changes of the row."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        position: Position | None,
        error: DatabusError | None,
        read: _RowHistory,
        spark: "Callable[[], SparkSession] | None",
    ) -> None:
        self._name, self._full, self._read, self._error = name, read.full, read, error
        self._output = graph.config.output_of(name)
        way = next((branch for branch in graph.branches(f"outputs.{name}") if branch.takes(self._full)), None)
        self._done = (0, 0) if position is None else position.done(self._full)
        self._batches = [batch for batch in read_batches(graph.config.state, name) if _is_of(batch, self._full)]
        self._letters = self._letters_of()
        self._answers: dict[str, Sequence[Pair] | None] = {}
        self._passed: list[FilteredChange] | None = None
        if way is not None and error is None:
            behind = read.behind(graph.inputs[way.input].filter)
            self._passed = WayThrough(graph, way, self._full, read.schema, spark).passed(read.changes, behind)

    def fate(self, number: int) -> Fate:
        """What became of one of the changes."""
        if self._error is not None:
            return Fate(self._name, Verdict.UNKNOWN, str(self._error))
        if self._passed is None:
            return Fate(self._name, Verdict.NOT_FOR_IT)
        change, passed = self._read.changes[number], self._passed[number]
        if passed.why_unknown:
            return self._untried(change, passed)
        if passed.rows is None:
            return Fate(self._name, Verdict.FILTERED, f"by {passed.dropped_by}")
        pair, kind = last_of(passed.rows)
        if change.pair > self._done:  # not written yet: the last image of a part of a transaction decides
            pair = change.pair
        return verdict_of(self._name, replace(change, pair=pair, kind=kind), self._evidence(number, passed.rows))

    def _untried(self, change: Change, passed: FilteredChange) -> Fate:
        """What became of a change where filters could not be tried, as far as ledger, letters, target and journal
        say.
        """
        at = self._batch_of(change.pair)
        there = None if passed.rows is None else self._pairs_in_target(passed.rows, at)
        known = Evidence(
            self._done, there=there, letters=self._letters, batch=None if at is None else self._batches[at]
        )
        if change.pair > self._done or change.pair in self._letters:
            return verdict_of(self._name, change, known)
        if there is not None and change.pair in there:
            return _written(self._name, known)
        counted, is_all_dropped = _counted(known.batch, self._full.partition("/")[2])
        if is_all_dropped:
            return replace(_written(self._name, known), verdict=Verdict.FILTERED, why=counted)
        others = f"the target has {', '.join(map(_place, sorted(there)))} of this key" if there else ""
        said = "; ".join(filter(None, (passed.why_unknown, counted, others)))
        return replace(_written(self._name, known), verdict=Verdict.UNKNOWN, why=said)

    def _batch_of(self, pair: Pair) -> int | None:
        """The index of a change's batch in the journal."""
        ends = ((tuple(batch["start"]), tuple(batch["end"]), place) for place, batch in enumerate(self._batches))
        return next((place for start, end, place in ends if start < pair <= end), None)

    def _evidence(self, number: int, rows: TableRows) -> Evidence:
        change, passed = self._read.changes[number], self._passed or ()
        later = [last_of(result.rows) for result in passed[number + 1 :] if result.rows is not None]
        # A refused change leaves the one before it in the target.
        later = [(pair, kind) for pair, kind in later if pair not in self._letters]
        later += [
            (emptied.below, ChangeType.DELETE)
            for emptied in self._read.emptied
            if change.pair < emptied.below and emptied.pair <= self._done
        ]
        written = sorted((pair, kind) for pair, kind in later if pair <= self._done)
        at = self._batch_of(change.pair)
        keeps_all = not self._output.config.is_refilled
        return Evidence(
            self._done,
            written,
            self._pairs_in_target(rows, at),
            keeps_all,
            self._letters,
            None if at is None else self._batches[at],
        )

    def _pairs_in_target(self, table_rows: TableRows, at: int | None) -> Sequence[Pair] | None:
        """The target's rows of the row's key; at: the index of the change's batch in the journal."""
        output = self._output
        if at is not None and isinstance(output, FindsOffsets):
            return self._between(output, at)
        config, source = output.config, table_rows.table.source
        if not isinstance(output, FindsKeys):
            return None
        names = [*config.key_choice.of(source)] or [*table_rows.table.key]
        if not names or not {*names} <= {*table_rows.rows.schema.names}:
            return None
        key = {name: table_rows.rows.column(name)[-1] for name in names}
        about = {pair for rows in self._rows_passed for pair in pairs_in(rows)}
        physical = self._full.partition("/")[0]
        return self._once(repr(key), lambda: output.find(physical, source, key, about))

    def _between(self, output: FindsOffsets, at: int) -> Sequence[Pair] | None:
        """The target's rows of the row among those that a batch wrote, by offsets from the journal."""
        *earlier, after = (batch.get("offsets", {}).get(self._full) for batch in self._batches[: at + 1])
        before = next((offsets for offsets in reversed(earlier) if offsets is not None), None)
        if before is None or after is None:
            return None
        start, end = (tuple(self._batches[at][name]) for name in ("start", "end"))
        about = {pair for rows in self._rows_passed for pair in pairs_in(rows) if start < pair <= end}
        return self._once(f"batch {at}", lambda: output.find_between(before, after, about))

    @property
    def _rows_passed(self) -> list[TableRows]:
        return [result.rows for result in self._passed or () if result.rows is not None]

    def _once(self, what: str, find: Callable[[], Sequence[Pair] | None]) -> Sequence[Pair] | None:
        if what not in self._answers:
            try:
                self._answers[what] = find()
            except (DatabusError, OSError, pa.ArrowException):  # a target behind filters may have other columns
                self._answers[what] = None
        return self._answers[what]

    def _letters_of(self) -> dict[Pair, str]:
        if not isinstance(self._output, KeepsLetters):
            return {}
        letters = self._output.letters
        groups = (letters.find(file) for file in letters.files(lambda name: name == self._full))
        return {letter.pair: letter.reason for group in groups if group is not None for letter in group.letters}


def _is_of(batch: Mapping[str, Any], full: str) -> bool:
    """Whether a batch had rows of a table."""
    physical, _, source = full.partition("/")
    if batch["physical"] != physical or (batch["only"] and full not in batch["only"]):
        return False
    return source in batch["rows"] or source in (batch.get("counts") or ())


def _counted(batch: Mapping[str, Any] | None, source: str) -> tuple[str, bool]:
    """What the journal says of the rows of a table in a batch, and whether filters have dropped all of them.

    Single rows are not counted: of a batch of which filters dropped some, it does not say which.
    """
    counts = None if batch is None or batch.get("counts") is None else batch["counts"].get(source)
    if batch is None or counts is None:
        return "", False
    dropped, came = sum(counts.get("dropped", {}).values()), counts["in"]
    if came and dropped == came and not batch["rows"].get(source) and not counts.keys() & {"letters", "already"}:
        return f"by {', '.join(counts['dropped'])}: of the {came:,} rows of its batch none passed", True
    return f"filters dropped {dropped:,} of the {came:,} rows of its batch", False


def _place(pair: Pair) -> str:
    return f"{pair[0]}/{pair[1]}"
