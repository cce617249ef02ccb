"""`databus trace`: what became of the changes of one row, output by output.

Nothing is recorded of rows. A trace is computed when it is asked for: the images are in the relay's log, the filters
are tried on them as they are now, the ledger says up to where an output has come, the journal of batches in which one a
change was, and the target what it has. Start with `trace`; `verdict_of` is pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, DatabusError, InputError, Pair, UnknownSource
from databus.filters import matches, selects
from databus.flow import Always, TableFilters, TableRows
from databus.formats import to_json_value
from databus.pipeline.engine import named, positions_of
from databus.pipeline.graph import Branch, Graph
from databus.pipeline.telling import read_batches
from databus.pipeline.trying import rows_given
from databus.places import Position
from databus.plugins import FindsKeys, KeepsLetters, Shape
from databus.schema import TableSchema, column_named

if TYPE_CHECKING:
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
class Change:
    """One change of the row. before, after: the images, as JSON has values."""

    pair: Pair
    kind: ChangeType
    commit_us: int
    txid: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


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


def trace(graph: Graph, client: "RelayClient", table: str, key: Mapping[str, str], start: "Start") -> Iterator[Traced]:
    """The changes of a row since then, the newest `CHANGES_MAX` at most, and what became of each.

    Raises `UnknownSource` for a table that there is not, `InputError` for a key that is none of it.
    """
    full, schema = _table_of(client, table)
    changes = _changes(client, full, _condition(schema, key), start)
    outputs = [
        (each.output, each.positions.get(full.partition("/")[0]), each.error) for each in positions_of(graph.config)
    ]
    looked = [_Looked(graph, name, position, error, full, schema, changes) for name, position, error in outputs]
    for number, change in enumerate(changes):
        yield Traced(change, [each.fate(number) for each in looked])


def _table_of(client: "RelayClient", table: str) -> tuple[str, TableSchema]:
    names = [each.name for each in client.sources()]
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


def _changes(client: "RelayClient", full: str, where: str, start: "Start") -> list[Change]:
    from databus.client import windows

    found: list[Change] = []
    with windows(client, sources=[full], where=where, start=start, follow=False) as arriving:
        for window in arriving:
            found += [_change(row, window.commit_us, window.txid) for row in window.rows()]
            del found[:-CHANGES_MAX]
    return found


def _change(row: "Row", commit_us: int, txid: str) -> Change:
    images = [
        None if image is None else {name: to_json_value(value) for name, value in image.items()}
        for image in (row.before, row.after)
    ]
    return Change((row.scn, row.seq), row.change_type, commit_us, txid, *images)


class _Looked:
    """What was looked at once for all changes of the row, of one output."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        position: Position | None,
        error: DatabusError | None,
        full: str,
        schema: TableSchema,
        changes: Sequence[Change],
    ) -> None:
        self._graph, self._name, self._full, self._schema, self._changes = graph, name, full, schema, changes
        self._error = error
        node = graph.config.nodes[f"outputs.{name}"]
        self._output = node.plugin(node.config, graph.config.context_of(name))
        self._ways = [each for each in graph.branches(node.path) if _takes(each, full)]
        self._done = (0, 0) if position is None else position.done(full)
        self._batches = [each for each in read_batches(graph.config.state, name) if _is_of(each, full)]
        self._letters = self._letters_of()

    def fate(self, number: int) -> Fate:
        """Of one of the changes."""
        change = self._changes[number]
        if not self._ways:
            return Fate(self._name, Verdict.NOT_FOR_IT)
        if self._error is not None:
            return Fate(self._name, Verdict.UNKNOWN, str(self._error))
        if len(self._ways) > 1 or self._ways[0].steps:
            return Fate(self._name, Verdict.UNKNOWN, "filters of typed rows, or several ways, stand before it")
        try:
            dropped, result = self._through(change)
        except DatabusError as error:
            return Fate(self._name, Verdict.UNKNOWN, f"the filters of now do not take it: {error}")
        if dropped:
            return Fate(self._name, Verdict.FILTERED, f"by {dropped}")
        return verdict_of(self._name, change, self._evidence(number, result))

    def _through(self, change: Change) -> tuple[str, TableRows]:
        """The filter that drops it, if one does, and what comes out."""
        given = TableRows(self._schema, rows_given(self._name, self._schema, _images(change)))
        way = tuple(step.node for step in self._ways[0].over_tables)
        now, physical = Always(self._schema), self._full.partition("/")[0]
        result = given
        for count, node in enumerate(way, 1):
            found = list(TableFilters(physical, named(self._graph, way[:count]), now, now).rows(given))
            if not found or not found[0].rows.num_rows:
                return node, result
            result = found[0]
        return "", result

    def _evidence(self, number: int, result: TableRows) -> Evidence:
        change = self._changes[number]
        later = [(each.pair, each.kind) for each in self._changes[number + 1 :] if each.pair <= self._done]
        batch = next((each for each in self._batches if tuple(each["start"]) < change.pair <= tuple(each["end"])), None)
        keeps_all = not self._output.config.is_refilled
        return Evidence(self._done, later, self._there(result), keeps_all, self._letters, batch)

    def _there(self, result: TableRows) -> Sequence[Pair] | None:
        if not isinstance(self._output, FindsKeys):
            return None
        names = [name for name in result.table.key if name in result.rows.schema.names]
        if not names:
            return None
        physical = self._full.partition("/")[0]
        key = {name: result.rows.column(name)[-1] for name in names}
        try:
            return self._output.find(physical, result.table.source, key)
        except (DatabusError, OSError):
            return None

    def _letters_of(self) -> dict[Pair, str]:
        if not isinstance(self._output, KeepsLetters):
            return {}
        letters = self._output.letters
        found = (letters.find(file) for file in letters.files(lambda name: name == self._full))
        return {each.pair: each.reason for one in found if one is not None for each in one.letters}


def _takes(branch: Branch, full: str) -> bool:
    if branch.table is not None and not matches(full, [branch.table]):
        return False
    return (branch.shape is Shape.TYPED and branch.table is None) or selects(branch.selection, full)


def _is_of(batch: Mapping[str, Any], full: str) -> bool:
    """Whether a batch is one that would have had rows of a table."""
    physical, _, source = full.partition("/")
    if batch["physical"] != physical:
        return False
    return full in batch["only"] if batch["only"] else source in batch["rows"]


def _images(change: Change) -> list[dict[str, Any]]:
    """The images as a test of filters has them."""
    scn, seq = change.pair
    if change.before is not None and change.after is not None:
        before = {**change.before, CHANGE_TYPE: ChangeType.UPDATE_PREIMAGE.label, COMMIT_VERSION: scn, SEQ: seq - 1}
        return [before, {**change.after, CHANGE_TYPE: ChangeType.UPDATE_POSTIMAGE.label, COMMIT_VERSION: scn, SEQ: seq}]
    image = change.before if change.after is None else change.after
    return [{**(image or {}), CHANGE_TYPE: change.kind.label, COMMIT_VERSION: scn, SEQ: seq}]


def _place(pair: Pair) -> str:
    return f"{pair[0]}/{pair[1]}"
