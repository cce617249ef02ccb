"""What an output is given: the changes between two positions of one physical source, table by table, in order."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from databus.core import ControlKind, Pair, SourceCheckpoint
from databus.flow._counts import Counts
from databus.flow._data_file import DataFile
from databus.flow._lineage import CopySteps, SchemaAhead
from databus.flow._pairs import rows_above
from databus.formats import scalar_of
from databus.places import ASKED, GAP, Seed, seed_after
from databus.schema import SchemaChange, TableSchema, origins


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table in one schema, ordered by (`_commit_version`, `_seq`)."""

    table: TableSchema
    rows: pa.Table
    """The table's columns in the types of `databus.schema.sink_schema`, then the bus's as users see them
    (`_change_type` string, `_txid` string, the others as in a frame).
    """
    is_being_read: bool = False
    """Whether a snapshot of the table was open when they were written; not known on typed edges."""


@dataclass(frozen=True, slots=True)
class AtOnce:
    """What a task has made of a mirror's files by itself, for one commit."""

    version: int
    """Of the table that it was made of, and that alone it is true of."""
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]
    """Names of files whose place is taken."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The same, written by tasks into files that are not visible yet."""

    table: TableSchema
    files: tuple[DataFile, ...]
    ends: tuple[Pair, ...]
    """Pairs of the last row of each file."""
    first: Pair
    """Pair of the first row."""
    count: int
    newest_us: int | None
    """The newest commit."""
    fitted: pa.Schema | None = None
    """The schema of the files, where that is not the one of the table's rows."""
    at_once: AtOnce | None = None
    """In the place of files, where the rows are in the table's own already; `ends` is then the pair of the last."""

    @property
    def written(self) -> tuple[DataFile, ...]:
        """All that was written of them."""
        return self.files if self.at_once is None else self.at_once.added

    @property
    def last(self) -> Pair:
        """The pair of the last row."""
        return self.ends[-1]

    def then(self, other: "StagedRows") -> "StagedRows":
        """These and those that follow."""
        newest = [time_us for time_us in (self.newest_us, other.newest_us) if time_us is not None]
        return replace(
            other,
            files=(*self.files, *other.files),
            ends=(*self.ends, *other.ends),
            first=self.first,
            count=self.count + other.count,
            newest_us=max(newest, default=None),
        )


@dataclass(frozen=True, slots=True)
class TableControl:
    """A control, as the frame's JSON body; it stands between the rows before it and those after it."""

    table: TableSchema
    kind: ControlKind
    pair: Pair
    body: Mapping[str, Any]
    commit_us: int = 0
    """When it was committed, microseconds since 1970; 0 where it is unknown."""

    @property
    def missing(self) -> str | None:
        """What a `gap` says of the changes that are missing, unless a snapshot is said to follow; None otherwise."""
        if self.kind is not ControlKind.GAP or self.body.get("resnapshot"):
            return None
        description = ", ".join(f"{name} {self.body[name]}" for name in ("from", "to", "reason") if name in self.body)
        return description or "no reason given"


Item = TableRows | StagedRows | TableControl


@dataclass(frozen=True)
class Batch:
    """What happened in one physical source after `start` up to and including `end`."""

    physical: str
    start: SourceCheckpoint
    """With the snapshots that had begun before it and not ended."""
    end: SourceCheckpoint
    """Also the version that an exactly-once target stores. `end.log` is always the uuid of the log that the rows came
    from.
    """
    items: tuple[Item, ...]
    """Of each table in order; between tables there is none."""
    ahead: SchemaAhead | None = None
    """Changes of the one table's schema that stand later in the log, and that its rows have been made through already,
    for filters to judge them as today's.
    """
    is_whole: bool = False
    """Whether this is known to be all of its micro-batch."""
    position: Mapping[str, Any] | None = None
    """The source's own, at the end of the last group that was read; None where that is not known."""
    seeds: Mapping[str, Seed] = field(default_factory=dict)
    """Tables, by full names, whose older rows come to the output with a snapshot that has not ended."""
    ways: Mapping[str, str] = field(default_factory=dict)
    """By the full names of its tables: the hash of what becomes of their rows on the way to the output."""
    counts: Counts = field(default_factory=Counts, compare=False)
    """What was counted of it so far."""

    def rows_by_source(self) -> Counter[str]:
        """How many rows of each table (`db.table`) it has."""
        counted = Counter[str]()
        for item in self.items:
            if isinstance(item, StagedRows):
                counted[item.table.source] += item.count
            elif isinstance(item, TableRows):
                counted[item.table.source] += item.rows.num_rows
        return counted

    def has_begin_of(self, end: TableControl) -> bool:
        """Whether the begin of the snapshot that ends here was given: in this batch, or in one before it.

        Else the rows that it read first were not, and what it says of older rows does not hold.
        """
        scn, seq = end.body["begin"]
        if (int(scn), int(seq)) > self.start.pair:
            return True
        return self.start.snapshots.get(end.table.source) == end.body.get("generation")

    def seeds_after(self) -> dict[str, Seed]:
        """What is left of the seeds behind it. A history hears of a gap once."""
        seeds = dict(self.seeds)
        for item in self.items:
            name = f"{self.physical}/{item.table.source}"
            seed = seeds.pop(name, None)
            seed = ASKED if seed == GAP else seed
            if isinstance(item, TableControl):
                seed = seed_after(seed, item.kind, item.body)
            if seed is not None:
                seeds[name] = seed
        return seeds


@dataclass(frozen=True)
class ChangeBatch(Batch):
    """With the rows: what an output is given that runs in the driver."""

    items: tuple[TableRows | TableControl, ...]

    def above(self, done: Callable[[str], Pair], reads: Callable[[str], bool] = lambda _: True) -> "ChangeBatch":
        """What of it is above where its tables are, by full names, without tables that are not read."""
        items: list[TableRows | TableControl] = []
        for item in self.items:
            name = f"{self.physical}/{item.table.source}"
            if not reads(name):
                continue
            if isinstance(item, TableControl):
                items += [item] if item.pair > done(name) else []
                continue
            rows = rows_above(item.rows, done(name))
            items += [item if rows is item.rows else replace(item, rows=rows)] if rows.num_rows else []
        return replace(self, items=tuple(items))


@dataclass(frozen=True)
class StagedBatch(Batch):
    """With files in the place of rows: what an output is given whose rows tasks have written."""

    items: tuple[StagedRows | TableControl, ...]


def steps_at(control: TableControl, have: Iterable[str]) -> CopySteps:
    """How rows that have these columns get those that the control brings."""
    names = list(have)
    change = SchemaChange.of_control(control.pair, control.body, None, control.table)
    now = origins(dict.fromkeys(names, ""), [change])
    moved = {name: origin.column for name, origin in now.items() if origin.column is not None}
    fill = _fill_of(control)
    younger = {name: name for name in fill if name in names and name not in moved}  # rows above its pair
    return CopySteps({**younger, **moved}, fill, (), change.needs_snapshot, control.pair)


def _fill_of(control: TableControl) -> dict[str, pa.Scalar]:
    """The values that rows before a `schema` control have in its new columns, by name; without nulls."""
    fill: Mapping[str, Any] = control.body.get("fill") or {}
    types = {column.name: column.type for column in control.table.columns}
    return {
        name: scalar_of(value, [types[name]]) for name, value in fill.items() if name in types and value is not None
    }
