"""A filtered copy holds what the filter makes of the table as it is now, whenever it was started, stopped or restarted.

Without Spark: frames go through the executors' decoder, SQLite stands for Spark's SQL, and the rows that come out go
through the driver's half into Delta tables.
"""

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from databus.core import COMMIT_VERSION, SEQ, ChangeType, Pair, SourceCheckpoint, UnsupportedFeature
from databus.flow import decode_typed, result_table
from databus.pipeline.filters._sql import SqlConfig, SqlFilter
from databus.plugins._output import OutputContext
from databus.schema import SchemaChange, TableSchema, sink_schema
from databus.sinks import read_delta
from databus.sinks.delta._output import DeltaConfig, DeltaOutput
from databus.spark._schema import arrow_schema, typed_schema
from databus.spark._typed import PieceBounds, TypedDecoder
from databus.testing._staged_writes import write_here
from databus.wire import FrameGroup
from tests.pipeline.made_changes import SOURCE, Image, MadeTable, select

FILTERS = (
    {"where": "a > 1"},
    {"where": "id > 3"},
    {"where": "id > 3 AND (b IS NULL OR b <> '5')"},
    {"select": "SELECT * FROM t"},
    {"select": "SELECT id, a AS x, b FROM t WHERE id % 2 = 0"},
    {"select": "SELECT id, a IS NULL AS missing FROM t"},
)
KINDS = ("rename", "swap", "add", "add_unknown", "drop", "widen", "convert")


@dataclass
class Copy:
    """A filtered copy of the made table, and where it stands."""

    folder: Path
    filter: dict[str, str]
    mode: str = "mirror"
    position: Pair = (0, 0)
    seen: TableSchema | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    snapshots: dict[str, int] = field(default_factory=dict)

    @property
    def sql(self) -> str:
        return self.filter.get("select") or f"SELECT * FROM t WHERE {self.filter['where']}"

    def runs_on(self, made: MadeTable) -> bool:
        """Whether the filter is one of the table as it is now."""
        try:
            made.selected(self.sql)
        except sqlite3.OperationalError:
            return False
        return True

    def may_stop(self, made: MadeTable) -> bool:
        """Whether a column that the filter names is another than when the copy was written last."""
        named = [name for name in "abcdefg" if any(name == word for word in self.sql.replace("(", " ").split())]
        now = {col.name: col.number for col in made.columns}
        return any(self.numbers.get(name) != now.get(name) for name in named) and bool(self.numbers)

    def run(self, made: MadeTable, rng: random.Random, *, until: Pair | None = None) -> None:
        """Read on from where it stands, in the schema of now; up to `until`, or to the end."""
        config = DeltaConfig(**{"from": "x", "type": "delta", "mode": self.mode, "path": "copy", "key": ["id"]})
        output = DeltaOutput(config, OutputContext("p", "copy", self.folder))
        spark = SqlFilter(SqlConfig(**{"from": "x", **self.filter}), self.folder)
        self.numbers = self.numbers or {col.name: col.number for col in made.columns}
        for groups in _batches([g for g in made.groups if g.commit.last > self.position], rng):
            end = groups[-1].commit.last
            if until is not None and end > until:
                break
            rows = self._decoded(made, groups, end, leaves_out=output.config.is_refilled)
            result, table = self._filtered(rows, made)
            stands = [self._place(self.position)]
            for group in groups:
                self._note_snapshot(group)
            stands.append(self._place(end))
            batch = decode_typed(result, table, "shop", *stands, lambda names: spark.lineage(names, None))
            write_here(output, batch)
            self.position = end
            self.numbers = {col.name: col.number for col in made.columns}
        output.close()

    def _place(self, pair: Pair) -> SourceCheckpoint:
        return SourceCheckpoint(scn=pair[0], seq=pair[1], log="log", snapshots=dict(self.snapshots))

    def _note_snapshot(self, group: FrameGroup) -> None:
        told = {} if group.control is None else group.control.control
        if told.get("kind") == "snapshot_begin":
            self.snapshots[SOURCE] = told["generation"]
        elif told.get("kind") == "snapshot_end":
            self.snapshots.pop(SOURCE, None)

    def _decoded(self, made: MadeTable, groups: list[FrameGroup], end: Pair, *, leaves_out: bool) -> pa.Table:
        changes = tuple(each for each in changes_of(made) if each.pair > self.position)
        schema = arrow_schema(typed_schema(made.table, meta_full=True))
        decoder = TypedDecoder(
            schema,
            SOURCE,
            PieceBounds(self.position, end),
            controls_as_rows=True,
            controls_ignored=False,
            changes=changes,
            leaves_out=leaves_out,
        )
        parts = [decoder.ahead()] if changes else []
        parts += [batch for group in groups for batch in decoder.feed(group)]
        return pa.Table.from_batches([*parts, *decoder.finish()], schema=schema)

    def _filtered(self, rows: pa.Table, made: MadeTable) -> tuple[pa.Table, TableSchema]:
        """What Spark would make of the rows; controls pass."""
        bus = [each for each in rows.schema if each.name.startswith("_")]
        names = tuple(each.name for each in bus)
        told = rows.to_pylist()
        data = [
            {**row, "_commit_timestamp": 0, "_control": number}
            for number, row in enumerate(told)
            if row["_change_type"] != "control"
        ]
        kept = select(self.sql, data, made.table, names)
        kinds = {each.name: each.type for each in sink_schema(made.table)}
        columns = _columns_of(self.sql, made.table)
        schema = pa.schema([*((name, kinds.get(origin, pa.int64())) for name, origin in columns), *bus])
        width = len(columns)
        found = [
            dict(zip(schema.names, [*row[:width], *(told[row[-1]][name] for name in names)], strict=True))
            for row in kept
        ]
        controls = [{name: row[name] for name in names} for row in told if row["_change_type"] == "control"]
        table = pa.Table.from_pylist([*found, *controls], schema=schema)
        return table, result_table(SOURCE, schema, ("id",))

    def held(self, *more: str) -> list[tuple[Any, ...]]:
        found = read_delta(self.folder / "copy" / "t")
        return [tuple(row[name] for name in (*self.names, *more)) for row in found.to_pylist()]

    names: tuple[str, ...] = ()


def _columns_of(sql: str, table: TableSchema) -> list[tuple[str, str]]:
    """Name in the result, and of the table's column that it is."""
    if "*" in sql:
        return [(name, name) for name in table.names]
    if "missing" in sql:
        return [("id", "id"), ("missing", "")]
    return [("id", "id"), ("x", "a"), ("b", "b")]


def changes_of(made: MadeTable) -> list[SchemaChange]:
    """The controls of its log, as a reader finds them."""
    known = {MadeTable(random.Random()).table.fingerprint: MadeTable(random.Random()).table}
    known |= {table.fingerprint: table for _, _, table in made.changed}
    tables = {pair: table for pair, _, table in made.changed}
    return [
        SchemaChange.of_control(
            frame.header.first, frame.control, known[int(frame.control["previous"], 16)], tables[frame.header.first]
        )
        for frame in (group.control for group in made.groups)
        if frame is not None and frame.header.first in tables
    ]


def _batches(groups: list[FrameGroup], rng: random.Random) -> list[list[FrameGroup]]:
    """As a planner cuts them: a control begins a batch."""
    found: list[list[FrameGroup]] = []
    for group in groups:
        if not found or group.control is not None or rng.random() < 0.3:
            found.append([])
        found[-1].append(group)
    return found


def _assert_right(copy: Copy, made: MadeTable) -> None:
    copy.names = tuple(name for name, _ in _columns_of(copy.sql, made.table))
    assert sorted(copy.held(), key=repr) == made.selected(copy.sql)


def _bring_up(copy: Copy, made: MadeTable, rng: random.Random, until: Pair | None = None) -> bool:
    """Run it; whether it goes on. It may stop for a reason alone."""
    if not copy.runs_on(made):
        return True  # Spark names the column that is not there; another change may bring it back
    could = copy.may_stop(made)
    said = _stopped(lambda: copy.run(made, rng, until=until))
    assert said is None or (could and "databus rebuild FILE copy shop/main.t" in said), said
    return said is None


def _stopped(run: Callable[[], None]) -> str | None:
    """What it stopped with, if it did."""
    try:
        run()
    except UnsupportedFeature as error:
        return str(error)
    return None


@pytest.mark.parametrize("number", range(25))
def test_a_mirror_behind_a_filter_is_what_the_filter_selects_now_or_stops(
    number: int, seed: int, tmp_path: Path
) -> None:
    """One copy was there all the time, one is down now and then, also in mid-log, and one starts at the end."""
    rng = random.Random(seed + number)
    chosen = FILTERS[number % len(FILTERS)]
    made = MadeTable(rng)
    always, sometimes, late = (Copy(tmp_path / name, chosen) for name in ("always", "sometimes", "late"))
    goes_on = {"always": True, "sometimes": True}
    for _ in range(12):
        made.write()
        if rng.random() < 0.5:
            made.alter(rng.choice(KINDS))
        goes_on["always"] = goes_on["always"] and _bring_up(always, made, rng)
        if rng.random() < 0.3:
            until = rng.choice(made.groups).commit.last if rng.random() < 0.5 else None
            goes_on["sometimes"] = goes_on["sometimes"] and _bring_up(sometimes, made, rng, until)
    made.write()
    if not late.runs_on(made):
        return
    late.run(made, rng)
    _assert_right(late, made)
    for name, copy in (("always", always), ("sometimes", sometimes)):
        if goes_on[name] and _bring_up(copy, made, rng):
            _assert_right(copy, made)


@pytest.mark.parametrize("number", range(10))
def test_a_history_that_starts_late_holds_each_image_as_the_table_has_it_now(
    number: int, seed: int, tmp_path: Path
) -> None:
    """What the filter lets pass of an update, if it is one image alone, is an insert or a delete."""
    rng = random.Random(seed + number)
    made = MadeTable(rng)
    kinds = ("rename", "swap", "add", "drop", "widen", *(("add_unknown", "convert") if number % 3 == 0 else ()))
    for _ in range(8):
        made.write()
        made.alter(rng.choice(kinds))
    made.write()
    late = Copy(tmp_path, FILTERS[number % 2], "history")
    if not late.runs_on(made):
        return
    said = _stopped(lambda: late.run(made, rng))
    if said is not None:
        assert made.lossy
        assert "starting_version: " in said
        return
    late.names = tuple(name for name, _ in _columns_of(late.sql, made.table))
    expected = _history_of(made, late.sql)
    assert sorted(late.held("_change_type", COMMIT_VERSION, SEQ), key=lambda row: row[-2:]) == expected


def _history_of(made: MadeTable, sql: str) -> list[tuple[Any, ...]]:
    def passes(image: Image) -> list[tuple[Any, ...]]:
        return select(sql, [made.now(image.row)], made.table)

    found: list[tuple[Any, ...]] = []
    for before, image, after in zip([None, *made.images], made.images, [*made.images[1:], None], strict=False):
        kind = image.kind
        if kind is ChangeType.UPDATE_PREIMAGE and after is not None and not passes(after):
            kind = ChangeType.DELETE
        if kind is ChangeType.UPDATE_POSTIMAGE and before is not None and not passes(before):
            kind = ChangeType.INSERT
        found += [(*row, kind.label, *image.pair) for row in passes(image)]
    return found


def test_a_column_of_the_result_is_not_filled_because_one_of_the_table_has_its_name(tmp_path: Path) -> None:
    rng = random.Random(1)
    made = MadeTable(rng)
    copy = Copy(tmp_path, {"select": "SELECT id, a AS x, b FROM t WHERE id % 2 = 0"})
    while not made.selected(copy.sql):
        made.write()
    copy.run(made, rng)
    for name in "xcd":
        made.alter("add", name=name)
    made.write()
    copy.run(made, rng)
    _assert_right(copy, made)
