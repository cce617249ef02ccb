"""`databus trace`: what became of the changes of one row, output by output.

Nothing is recorded of rows. A trace is computed when it is asked for: the images are in the relay's log, the filters
are tried on them as they are now, the ledger says up to where an output has come, the journal of batches in which one a
change was, and the target what it has. What filters do with changes is in `_trace_filters.py`. Start with `trace`;
`verdict_of` is pure.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from databus.core import ChangeType, ControlKind, DatabusError, InputError, Pair, UnknownSource
from databus.filters import StreamFilter, TableRule
from databus.flow import TableRows
from databus.formats import to_json_value
from databus.pipeline.comparing._trace_filters import Change, Passed, WayThrough, last_of, pairs_in
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
    """The ledger is past it, and the target has neither it nor a later one."""


@dataclass(frozen=True)
class Emptied:
    """A control at `pair` after which no row from below `below` is there: a truncation, drop, or snapshot."""

    pair: Pair
    below: Pair


@dataclass(frozen=True)
class Fate:
    """What became of it in one output."""

    output: str
    verdict: Verdict
    why: str = ""
    at_us: int | None = None
    """When it was written; None where the journal does not say."""
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
                each.output: {"verdict": each.verdict, "why": each.why, "at_us": each.at_us, "batch": each.batch}
                for each in self.fates
            },
        }


@dataclass(frozen=True)
class Evidence:
    """What is known of one output about the row, besides the change itself."""

    done: Pair
    later: Sequence[tuple[Pair, ChangeType]] = ()
    """Pairs of changes of the same row that came after, up to where the output has come."""
    there: Sequence[Pair] | None = None
    """Pairs of the rows of this key in the target; None where it cannot tell."""
    keeps_all: bool = False
    """Whether the target keeps each change as a row."""
    letters: Mapping[Pair, str] = field(default_factory=dict)
    batch: Mapping[str, Any] | None = None


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
    """Of a target that has the last state of each row. there: the pairs of the rows of this key in it."""
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
    there = ", ".join(map(_place, sorted(known.there or ()))) or "nothing"
    told = f"it has come to {_place(known.done)}, and the target has {there} of this key"
    return Fate(output, Verdict.LOST, f"{why}: {told}" if why else told)


def trace(
    graph: Graph,
    client: "RelayClient",
    table: str,
    key: Mapping[str, str],
    start: "Start",
    spark: "Callable[[], SparkSession] | None" = None,
    may_show: "Callable[[str], bool]" = lambda _: True,
) -> Iterator[Traced]:
    """The changes of a row since then, the newest `CHANGES_MAX` at most, and what became of each.

    spark: gives a session for `sql` and `python` filters, which are not tried without. may_show: whether a table of
    this full name is there for who asks. Raises `UnknownSource` for a
    table that there is not, `InputError` for a key that is none of it.
    """
    full, schema = _table_of(client, table, may_show)
    read = _Read(client, full, schema, _condition(schema, key), start)
    outputs = [
        (each.output, each.positions.get(full.partition("/")[0]), each.error) for each in positions_of(graph.config)
    ]
    looked = [_Looked(graph, name, position, error, read, spark) for name, position, error in outputs]
    for number, change in enumerate(read.changes):
        yield Traced(change, [each.fate(number) for each in looked])


class _Read:
    """What the log has of the row; behind what an input leaves out, too."""

    def __init__(self, client: "RelayClient", full: str, schema: TableSchema, where: str, start: "Start") -> None:
        self.full = full
        self.schema = schema
        self._client = client
        self._rule = TableRule(full, where)
        self._start = start
        self._behind: dict[str, list[Change]] = {}
        self.changes, self.emptied = self._changes(StreamFilter())

    def behind(self, wanted: StreamFilter) -> list[Change]:
        """The changes that an input with this filter gives."""
        if wanted.is_nothing:
            return self.changes
        if repr(wanted) not in self._behind:
            self._behind[repr(wanted)] = self._changes(wanted)[0]
        return self._behind[repr(wanted)]

    def _changes(self, wanted: StreamFilter) -> tuple[list[Change], list[Emptied]]:
        from databus.client import windows

        found: list[Change] = []
        emptied: list[Emptied] = []
        client = self._client.filtered(replace(wanted, rules=(*wanted.rules, self._rule)))
        with windows(client, sources=[self.full], start=self._start, follow=False) as arriving:
            for window in arriving:
                control = window.control
                if control is not None and (below := _emptied_below(control.kind, control.pair, control.body)):
                    emptied.append(Emptied(control.pair, below))
                found += [_change(row, window.commit_us, window.txid) for row in window.rows()]
                del found[:-CHANGES_MAX]
        return found, emptied


def _emptied_below(kind: ControlKind, pair: Pair, body: Mapping[str, Any]) -> Pair | None:
    if kind in (ControlKind.TRUNCATE, ControlKind.DROP):
        return pair
    if kind is ControlKind.SNAPSHOT_END and body.get("complete"):
        scn, seq = body["begin"]
        return int(scn), int(seq)
    return None


def _table_of(client: "RelayClient", table: str, may_show: "Callable[[str], bool]") -> tuple[str, TableSchema]:
    names = [each.name for each in client.sources() if may_show(each.name)]
    found = [each for each in names if table in (each, each.partition("/")[2], each.rpartition(".")[2])]
    if len(found) != 1:
        said = f"several: {', '.join(found)}" if found else f"there are {', '.join(sorted(names)) or 'none'}"
        raise UnknownSource(f"no one table is called {table!r}; {said}")
    return found[0], list(client.register(found))[-1].table


def _condition(schema: TableSchema, key: Mapping[str, str]) -> str:
    """A condition for these values, in the words of filters."""
    parts = []
    for name, value in key.items():
        column = column_named(name, schema.names)
        if column is None:
            raise InputError(f"{schema.source} has no column {name}; it has {', '.join(schema.names)}")
        is_number = str(schema.column(column).type).startswith(_NUMERIC)
        if is_number and not _NUMBERS.fullmatch(value) and value not in ("true", "false"):
            raise InputError(f"{name}: {value[:100]!r} is no {schema.column(column).type}")
        literal = value if is_number else "'" + value.replace("'", "''") + "'"
        parts.append(f'"{column}" = {literal}')
    lacking = [name for name in schema.key if name not in {column_named(each, schema.names) for each in key}]
    if lacking or not parts:
        raise InputError(f"the key of {schema.source} is {', '.join(schema.key) or 'none'}; give {', '.join(lacking)}")
    return " AND ".join(parts)


def _change(row: "Row", commit_us: int, txid: str) -> Change:
    before, after = (
        None if image is None else {name: to_json_value(value) for name, value in image.items()}
        for image in (row.before, row.after)
    )
    return Change((row.scn, row.seq), row.change_type, commit_us, txid, before, after, row.table)


class _Looked:
    """What was looked at once for all changes of the row, of one output."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        position: Position | None,
        error: DatabusError | None,
        read: _Read,
        spark: "Callable[[], SparkSession] | None",
    ) -> None:
        self._name, self._full, self._read, self._error = name, read.full, read, error
        node = graph.config.nodes[f"outputs.{name}"]
        self._output = node.plugin(node.config, graph.config.context_of(name))
        way = next((each for each in graph.branches(node.path) if each.takes(self._full)), None)
        self._done = (0, 0) if position is None else position.done(self._full)
        self._batches = [each for each in read_batches(graph.config.state, name) if _is_of(each, self._full)]
        self._letters = self._letters_of()
        self._found: dict[str, Sequence[Pair] | None] = {}
        self._passed: list[Passed] | None = None
        if way is not None and error is None:
            behind = read.behind(graph.inputs[way.input].filter)
            self._passed = WayThrough(graph, way, self._full, read.schema, spark).passed(read.changes, behind)

    def fate(self, number: int) -> Fate:
        """Of one of the changes."""
        if self._error is not None:
            return Fate(self._name, Verdict.UNKNOWN, str(self._error))
        if self._passed is None:
            return Fate(self._name, Verdict.NOT_FOR_IT)
        change, passed = self._read.changes[number], self._passed[number]
        if passed.why_unknown:
            return Fate(self._name, Verdict.UNKNOWN, passed.why_unknown)
        if passed.rows is None:
            return Fate(self._name, Verdict.FILTERED, f"by {passed.dropped_by}")
        pair, kind = last_of(passed.rows)
        if change.pair > self._done:  # of a part of a transaction, the last image decides
            pair = change.pair
        return verdict_of(self._name, replace(change, pair=pair, kind=kind), self._evidence(number, passed.rows))

    def _evidence(self, number: int, rows: TableRows) -> Evidence:
        change, passed = self._read.changes[number], self._passed or ()
        later = [last_of(each.rows) for each in passed[number + 1 :] if each.rows is not None]
        later = [each for each in later if each[0] not in self._letters]  # the target has the one before it
        later += [
            (each.below, ChangeType.DELETE)
            for each in self._read.emptied
            if change.pair < each.below and each.pair <= self._done
        ]
        known = sorted(each for each in later if each[0] <= self._done)
        ends = ((tuple(each["start"]), tuple(each["end"]), place) for place, each in enumerate(self._batches))
        at = next((place for start, end, place in ends if start < change.pair <= end), None)
        keeps_all = not self._output.config.is_refilled
        there = self._there(rows) if at is None or not isinstance(self._output, FindsOffsets) else self._between(at)
        return Evidence(self._done, known, there, keeps_all, self._letters, None if at is None else self._batches[at])

    def _there(self, given: TableRows) -> Sequence[Pair] | None:
        """What the target has of the row's key."""
        config, source = self._output.config, given.table.source
        if not isinstance(self._output, FindsKeys):
            return None
        names = [*config.key_choice.of(source)] or [*given.table.key]
        if not names or not {*names} <= {*given.rows.schema.names}:
            return None
        key = {name: given.rows.column(name)[-1] for name in names}
        about = {pair for each in self._passed or () if each.rows is not None for pair in pairs_in(each.rows)}
        return self._once(repr(key), lambda: self._find(source, key, about))

    def _find(self, source: str, key: Mapping[str, Any], about: Collection[Pair]) -> Sequence[Pair] | None:
        assert isinstance(self._output, FindsKeys)  # noqa: S101 - the caller looked
        return self._output.find(self._full.partition("/")[0], source, key, about)

    def _between(self, at: int) -> Sequence[Pair] | None:
        """What the target has of the row among what a batch has written; places are those of the journal."""
        told = [each.get("offsets", {}).get(self._full) for each in self._batches[: at + 1]]
        before, after = next((each for each in reversed(told[:-1]) if each is not None), None), told[-1]
        if before is None or after is None:
            return None
        start, end = (tuple(self._batches[at][name]) for name in ("start", "end"))
        rows = (each.rows for each in self._passed or () if each.rows is not None)
        about = {pair for each in rows for pair in pairs_in(each) if start < pair <= end}
        output = self._output
        assert isinstance(output, FindsOffsets)  # noqa: S101 - the caller looked
        return self._once(f"batch {at}", lambda: output.find_between(before, after, about))

    def _once(self, what: str, find: Callable[[], Sequence[Pair] | None]) -> Sequence[Pair] | None:
        if what not in self._found:
            try:
                self._found[what] = find()
            except (DatabusError, OSError):
                self._found[what] = None
        return self._found[what]

    def _letters_of(self) -> dict[Pair, str]:
        if not isinstance(self._output, KeepsLetters):
            return {}
        letters = self._output.letters
        found = (letters.find(file) for file in letters.files(lambda name: name == self._full))
        return {each.pair: each.reason for one in found if one is not None for each in one.letters}


def _is_of(batch: Mapping[str, Any], full: str) -> bool:
    """Whether a batch is one that had rows of a table."""
    physical, _, source = full.partition("/")
    if batch["physical"] != physical or (batch["only"] and full not in batch["only"]):
        return False
    return source in batch["rows"] or source in (batch.get("counts") or ())


def _place(pair: Pair) -> str:
    return f"{pair[0]}/{pair[1]}"
