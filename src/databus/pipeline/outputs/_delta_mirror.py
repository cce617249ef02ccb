"""Mirrors: per key the last image in (`_commit_version`, `_seq`) wins.

insert and update_postimage put, delete and update_preimage remove. A batch is reduced to the last image of each key
with Arrow and merged in one commit; a row of the mirror that is younger than the image stays. Controls that speak of
the rows before them (`truncate`, `snapshot_end`...) touch only rows whose pair is below theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    SEQ,
    ChangeType,
    ControlKind,
    LimitExceeded,
    Pair,
    UnsupportedFeature,
)
from databus.formats import scalar_of
from databus.pipeline.outputs._delta_schema import Plan, plan
from databus.pipeline.outputs._delta_table import DeltaTarget
from databus.schema import SchemaChange, TableSchema, converts_exactly, origins, sink_schema
from databus.tasks import CopySteps, Stored, TableControl

_PUTS: Final = pa.array([ChangeType.INSERT.label, ChangeType.UPDATE_POSTIMAGE.label])
_PUT: Final = "__put"
_ROW: Final = "__row"
PAIR_FIELDS: Final = (pa.field(COMMIT_VERSION, pa.int64()), pa.field(SEQ, pa.int64()))


def mirror_schema(table: TableSchema) -> pa.Schema:
    """The columns of a mirror: the table's, and the pair of the image that each row is."""
    return pa.schema([*sink_schema(table), *PAIR_FIELDS])


def last_images(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of the rows. Null equals null in a key."""
    numbered = rows.select(list(key)).append_column(_ROW, pa.array(np.arange(rows.num_rows, dtype=np.int64)))
    last = numbered.group_by(list(key)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max").to_numpy()
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(last)))


def quoted(name: str) -> str:
    """A column's name as the engine's SQL has it.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def below(pair: Pair) -> str:
    """The engine's SQL for: rows whose pair is below `pair`."""
    scn, seq = pair
    return f"({COMMIT_VERSION} < {scn} OR ({COMMIT_VERSION} = {scn} AND {SEQ} < {seq}))"


_YOUNGER: Final = (
    f"(source.{COMMIT_VERSION} > target.{COMMIT_VERSION} OR "
    f"(source.{COMMIT_VERSION} = target.{COMMIT_VERSION} AND source.{SEQ} > target.{SEQ}))"
)


class Mirror:
    """The mirror of one table in a Delta table.

    on_gap: what to do where only a snapshot helps. how_to_reset: the words for who has to do it.
    """

    def __init__(self, target: DeltaTarget, *, on_gap: str, rows_max: int, how_to_reset: str) -> None:
        self._target = target
        self._on_gap = on_gap
        self._rows_max = rows_max
        self._how_to_reset = how_to_reset

    def write(self, table: TableSchema, rows: pa.Table, key: Sequence[str], stored: Stored) -> None:
        """Apply rows. Large ones are applied in slices, each a commit with the pair of its last row."""
        self._make_ready(table, stored)
        total = rows.num_rows
        for start in range(0, total, self._rows_max):
            part = rows.slice(start, self._rows_max)
            is_last = start + part.num_rows == total
            pair = stored.pair if is_last else _last(part)
            self._apply(part, key, replace(stored, pair=pair))

    def _apply(self, rows: pa.Table, key: Sequence[str], stored: Stored) -> None:
        images = last_images(rows, key)
        puts = pc.is_in(images.column(CHANGE_TYPE), _PUTS)
        names = self._target.schema().names
        images = self._fitted(images)
        if self._target.is_empty:
            self._target.append(images.filter(puts), stored)
            return
        source = images.append_column(_PUT, puts)
        values = {quoted(name): f"source.{quoted(name)}" for name in names}
        merger = self._target.merge(source, self._matches(images, key), stored, prunes=_can_prune(images, key))
        merger = (
            merger.when_matched_delete(f"NOT source.{_PUT} AND {_YOUNGER}")
            .when_matched_update(values, predicate=f"source.{_PUT} AND {_YOUNGER}")
            .when_not_matched_insert(values, predicate=f"source.{_PUT}")
        )
        self._target.merged(merger)

    def _only(self, predicate: str) -> str:
        """The predicate, for rows of this mirror's source."""
        return predicate

    def _matches(self, images: pa.Table, key: Sequence[str]) -> str:
        """The condition under which a row of the table is that of an image."""
        return _same_key(images, key)

    def _fitted(self, images: pa.Table) -> pa.Table:
        """Images as rows of the table."""
        return images.select(self._target.schema().names)

    def _make_ready(self, table: TableSchema, stored: Stored) -> None:
        """See to it that rows in this schema have their place."""
        del stored
        have, want = self._target.schema(), mirror_schema(table)
        if set(have.names) != set(want.names) or any(have.field(f.name).type != f.type for f in want):
            raise UnsupportedFeature(
                f"{self._target.path}: has {_columns(have)}, and rows of {table.source} came with {_columns(want)}, "
                f"without the `schema` control that says what became of the rows before. {self._how_to_reset}"
            )

    def control(self, control: TableControl, stored: Stored) -> None:
        """Apply a control. Raises `UnsupportedFeature` where only a new snapshot helps, and none is said to follow."""
        if control.kind in (ControlKind.TRUNCATE, ControlKind.DROP):
            self._target.delete(self._only(below(control.pair)), stored)
        elif control.kind is ControlKind.SNAPSHOT_END:
            if control.body.get("complete", False):
                scn, seq = control.body["begin"]
                self._target.delete(self._only(below((int(scn), int(seq)))), stored)
        elif control.kind is ControlKind.SCHEMA:
            self._follow(control, stored)
        elif control.kind is ControlKind.GAP and not (control.body.get("resnapshot") or self._on_gap == "continue"):
            raise UnsupportedFeature(
                f"{self._target.path}: changes of {control.table.source} are missing ({_told(control.body)}), so that "
                f"this mirror would be wrong. {self._how_to_reset} Or ask for a snapshot and say `on_gap: continue`: "
                f"the mirror goes on, and is right again when that snapshot has ended"
            )

    def _follow(self, control: TableControl, stored: Stored) -> None:
        """Give the mirror the columns that its source has now."""
        have = self._target.schema()
        change = SchemaChange.of_control(control.pair, control.body, None, control.table)
        now = origins(dict.fromkeys(have.names, ""), [change])
        moved = {name: origin.column for name, origin in now.items() if origin.column is not None}
        fill = fill_of(control)
        younger = {name: name for name in fill if name in have.names and name not in moved}  # rows above its pair
        steps = CopySteps({**younger, **moved}, fill, (), change.needs_snapshot, control.pair)
        self.follow(control.table, steps, stored, control.body.get("ddl") or "no DDL")

    def follow(self, table: TableSchema, steps: CopySteps, stored: Stored, why: str) -> None:
        """Make its rows into those of a table that has changed.

        Raises `UnsupportedFeature` where that is not exact and no snapshot follows.
        """
        want = mirror_schema(table)
        moved = {**steps.moved, **{field.name: field.name for field in PAIR_FIELDS}}
        found = plan(self._target.schema(), want, moved=moved, fill=steps.fill, below=steps.below)
        if found.is_nothing and not steps.inexact:
            return
        if not steps.inexact and found.only_adds_nulls:
            self._target.add_columns(found.added, stored)
        elif not steps.inexact and self._is_exact(found):
            self._check_size(table.source, why)
            self._target.overwrite(found.schema, found.apply(self._target.batches()), stored)
        elif steps.needs_snapshot or self._target.is_empty:
            self._target.overwrite(want, (), stored)
        else:
            raise self._cannot_follow(table.source, steps, [move.field.name for move in found.converted])

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


def _last(rows: pa.Table) -> Pair:
    return rows.column(COMMIT_VERSION)[-1].as_py(), rows.column(SEQ)[-1].as_py()


def _same_key(images: pa.Table, key: Sequence[str]) -> str:
    """The merge's condition. Equality alone is a fast join, and right where no key of the batch is null."""
    terms = []
    for name in key:
        column = quoted(name)
        sign = "IS NOT DISTINCT FROM" if images.column(name).null_count else "="
        terms.append(f"(target.{column} {sign} source.{column})")
    return " AND ".join(terms)


def _can_prune(images: pa.Table, key: Sequence[str]) -> bool:
    """Whether files may be skipped by least and greatest key: integers only, whose statistics are exact."""
    return all(pa.types.is_integer(images.column(name).type) and not images.column(name).null_count for name in key)


def fill_of(control: TableControl) -> dict[str, pa.Scalar]:
    """The values that rows before a `schema` control have in its new columns, by name; nulls left out."""
    fill: Mapping[str, Any] = control.body.get("fill") or {}
    types = {column.name: column.type for column in control.table.columns}
    return {
        name: scalar_of(value, [types[name]]) for name, value in fill.items() if name in types and value is not None
    }


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name not in (COMMIT_VERSION, SEQ))


def _told(body: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {body[name]}" for name in ("from", "to", "reason") if name in body) or "no reason given"
