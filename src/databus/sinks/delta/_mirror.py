"""Mirrors: per key the last image in (`_commit_version`, `_seq`) wins.

insert and update_postimage put, delete and update_preimage remove. Tasks apply the last image of each key to the files
that may hold it, and all of a table is one commit; a row of the mirror that is younger than the image stays. Controls
that speak of the rows before them (`truncate`, `snapshot_end`...) touch only rows whose pair is below theirs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from databus.core import COMMIT_VERSION, SEQ, ControlKind, LimitExceeded, Pair, UnsupportedFeature
from databus.flow import AtOnce, CopySteps, DataFile, KeyChoice, StagedRows, Stored, TableControl, steps_at
from databus.schema import TableSchema, converts_exactly, sink_schema
from databus.sinks.delta._layout import Layout, LiveFile
from databus.sinks.delta._moves import Above, Plan, SharedPlan, plan
from databus.sinks.delta._rewrite import Rewritten
from databus.sinks.delta._rewrite_job import MergeJob, RemakeJob, Work
from databus.sinks.delta._table import DeltaTarget, Marks

_MERGE_BYTES_MAX: Final = 512 << 20  # of files that tasks have staged
PAIR_FIELDS: Final = (pa.field(COMMIT_VERSION, pa.int64()), pa.field(SEQ, pa.int64()))


def mirror_schema(table: TableSchema) -> pa.Schema:
    """The columns of a mirror: the table's, and the pair of the image that each row is."""
    return pa.schema([*sink_schema(table), *PAIR_FIELDS])


class Mirror:
    """The mirror of one table in a Delta table.

    key: that the options choose. on_gap: what to do where only a snapshot helps. how_to_reset: the words for who has to
    do it.
    """

    def __init__(self, target: DeltaTarget, *, key: KeyChoice, on_gap: str, rows_max: int, how_to_reset: str) -> None:
        self._target = target
        self._key = key
        self._on_gap = on_gap
        self._rows_max = rows_max
        self._how_to_reset = how_to_reset

    def commit(self, staged: StagedRows, key: Sequence[str], stored: Stored) -> Work[None]:
        """Apply rows that tasks have staged. Many are applied a part at a time, each a commit with its last pair."""
        yield from self._make_ready(staged.table, stored)
        if staged.at_once is not None:
            self._replace(self._target.live(key, self.partition), staged.at_once, stored)
            return
        for files, pair in self._portions(staged):
            yield from self._merge(files, key, stored if pair == staged.last else replace(stored, pair=pair))

    def _portions(self, staged: StagedRows) -> Iterator[tuple[list[DataFile], Pair]]:
        """Its files, as many at a time as one merge takes, with the pair of the last row in them."""
        held: list[DataFile] = []
        for number, (file, pair) in enumerate(zip(staged.files, staged.ends, strict=True), 1):
            held.append(file)
            following = staged.files[number] if number < len(staged.files) else None
            if (
                following is None
                or sum(other.rows for other in held) + following.rows > self._rows_max
                or sum(other.size_bytes for other in held) + following.size_bytes > _MERGE_BYTES_MAX
            ):
                yield held, pair
                held = []

    def _merge(self, staged: Sequence[DataFile], key: Sequence[str], stored: Stored) -> Work[None]:
        files = self._target.live(key, self.partition)
        layout = self.layout(files, key)
        names, rows = tuple(file.name for file in staged), sum(file.rows for file in staged)
        done = yield MergeJob(self._target.path, files, layout, names, rows, lacks=bool(self.partition))
        self._replace(files, done, stored)

    def layout(self, files: Sequence[LiveFile], key: Sequence[str]) -> Layout:
        """How its rows are spread over its files."""
        size = sum(file.size_bytes for file in files)
        upkeep = self._target.upkeep
        schema, most = self._target.file_schema(), upkeep.group_rows_max
        return Layout(schema, tuple(key), size, upkeep.file_bytes_max, group_rows_max=most)

    def _replace(self, files: Sequence[LiveFile], done: Rewritten | AtOnce, stored: Stored) -> None:
        gone = frozenset(done.removed)
        self._target.replace(done.added, (file for file in files if file.name in gone), stored, self.partition)

    def _delete_below(self, pair: Pair, stored: Stored) -> Work[None]:
        """Remove rows whose pair is below `pair`; where there is none, nothing is committed."""
        files = self._target.live([COMMIT_VERSION], self.partition)
        known = {file.name: file.bounds[0] for file in files if file.bounds[0] is not None}
        gone = {name for name, (_, greatest) in known.items() if greatest < pair[0]}
        stays = {name for name, (least, _) in known.items() if least > pair[0]}
        unsure = [file for file in files if file.name not in gone | stays]
        added: list[DataFile] = []
        if unsure:
            schema, shared = self._target.file_schema(), self.partition
            most = self._target.upkeep.group_rows_max
            done = yield RemakeJob(self._target.path, unsure, schema, Above(pair), shared, group_rows_max=most)
            added, gone = done.added, gone.union(done.removed)
        if gone:
            self._target.replace(added, (file for file in files if file.name in gone), stored, self.partition)

    @property
    def partition(self) -> dict[str, str]:
        """Columns that its rows share, which stand in no file."""
        return {}

    def _make_ready(self, table: TableSchema, stored: Stored) -> Work[None]:
        """See to it that rows in this schema have their place."""
        yield from ()
        have, want = self._target.schema(), mirror_schema(table)
        if set(have.names) != set(want.names) or any(have.field(f.name).type != f.type for f in want):
            if self._target.is_empty:  # the table was dropped, and made again with other columns
                self._target.overwrite(want, (), self._target.stored() or stored.nothing)
                return
            raise UnsupportedFeature(
                f"{self._target.path}: has {_columns(have)}, and rows of {table.source} came with {_columns(want)}, "
                f"without the `schema` control that says what became of the rows before: another program has changed "
                f"the columns of one of the two. {self._how_to_reset}"
            )

    def control(self, control: TableControl, stored: Stored) -> Work[None]:
        """Apply a control. Raises `UnsupportedFeature` where only a new snapshot helps, and none is said to follow."""
        if control.kind in (ControlKind.TRUNCATE, ControlKind.DROP):
            yield from self._delete_below(control.pair, stored)
        elif control.kind is ControlKind.SNAPSHOT_END:
            if control.body.get("complete", False):
                scn, seq = control.body["begin"]
                yield from self._delete_below((int(scn), int(seq)), stored)
        elif control.kind is ControlKind.SCHEMA:
            yield from self._follow(control, stored)
        elif control.missing is not None and self._on_gap != "continue":
            raise UnsupportedFeature(
                f"{self._target.path}: changes of {control.table.source} are missing ({control.missing}), so that "
                f"this mirror would be wrong. {self._how_to_reset} Or ask for a snapshot and say `on_gap: continue`: "
                f"the mirror goes on, and is right again when that snapshot has ended"
            )

    def _follow(self, control: TableControl, stored: Stored) -> Work[None]:
        """Give the mirror the columns that its source has now."""
        steps = steps_at(control, self._target.schema().names)
        yield from self.follow(control.table, steps, stored, control.body.get("ddl") or "no DDL")

    def follow(self, table: TableSchema, steps: CopySteps, stored: Stored, why: str) -> Work[None]:
        """Make its rows into those of a table that has changed.

        Raises `UnsupportedFeature` where that is not exact and no snapshot follows.
        """
        want = mirror_schema(table)
        moved = {**steps.moved, **{field.name: field.name for field in PAIR_FIELDS}}
        column_plan = plan(self._target.schema(), want, moved=moved, fill=steps.fill, below=steps.below)
        if column_plan.is_nothing and not steps.inexact:
            return
        if not steps.inexact and column_plan.only_adds_nulls:
            self._target.add_columns(column_plan.added, stored)
        elif not steps.inexact and self._is_exact(column_plan):
            self._check_size(table.source, why)
            marks = self._true_marks(table, column_plan)
            yield from self._target.remade(column_plan, column_plan.schema, stored, marks)
        elif steps.needs_snapshot or self._target.is_empty:
            self._target.overwrite(want, (), stored)
        else:
            raise self._cannot_follow(table.source, steps, [move.field.name for move in column_plan.converted])

    def _true_marks(self, table: TableSchema, steps: Plan | SharedPlan) -> Marks:
        """The marks of files that stay true when all rows are remade."""
        key = self._key.of(table.source) or table.key
        return Marks(self.partition, self.layout((), key).key_mark if key and steps.keeps(key) else "")

    def _cannot_follow(self, source: str, steps: CopySteps, converted: Sequence[str]) -> UnsupportedFeature:
        if steps.inexact:
            return UnsupportedFeature(
                f"{self._target.path}: {source} changed, and what the mirror has, filtered before, cannot be made into "
                f"what the filters give now: {'; '.join(steps.inexact)}. {self._how_to_reset}"
            )
        return UnsupportedFeature(
            f"{self._target.path}: {source} changed the type of {', '.join(converted)}, and the values that the mirror "
            f"has do not become the new type exactly. {self._how_to_reset}"
        )

    def _is_exact(self, steps: Plan) -> bool:
        moves = [(move.old.name, move.field.type) for move in steps.converted if move.old is not None]
        if not moves:
            return True
        return all(
            converts_exactly(batch.column(name), kind)
            for batch in self._target.batches([name for name, _ in moves])
            for name, kind in moves
        )

    def _check_size(self, source: str, why: str) -> None:
        size, limit = self._target.bytes_total(), self._target.upkeep.rewrite_bytes_max
        if size > limit:
            raise LimitExceeded(
                f"{self._target.path}: the change of {source} ({why}) needs all {size} bytes of the mirror written "
                f"anew, more than rewrite_bytes_max={limit}. Raise `rewrite_bytes_max` of this output and start the "
                f"pipeline again. Or: {self._how_to_reset}"
            )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name not in (COMMIT_VERSION, SEQ))
