"""What a filter makes of one table in one definition: which rows it lets through, and which of their columns. Pure."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import TXID, ConfigError, MalformedRequest, UnknownColumn
from databus.filters._row_choice import Flags, RowChoice, begins_update, differs, whole_changes
from databus.filters._stream_filter import StreamFilter, StreamPartition, TableRule
from databus.filters._table_step import TableStep
from databus.schema import (
    BUS_FIELDS,
    BoundPredicate,
    Predicate,
    TableSchema,
    column_hashes,
    column_named,
    forms_of,
    frame_schema,
    key_form,
    key_hashes,
    user_schema,
)

Rows: TypeAlias = Any  # a batch or a table
Hashes = npt.NDArray[np.uint32]

_BUS_NAMES: Final = tuple(field.name for field in BUS_FIELDS)
_HASH_BITS: Final = np.uint32(0x7FFFFFFF)


class KnownDefinitions(Protocol):
    """Who knows the definitions that tables have had; the schema store of a log."""

    def definition(self, fingerprint: int) -> TableSchema | None:
        """The definition of that fingerprint."""
        ...

    def definitions(self, source: str) -> Sequence[TableSchema]:
        """All that a table (`db.table`) has had, oldest first."""
        ...

    def definition_now(self, source: str) -> TableSchema | None:
        """The one that it has now; of a table that is gone, the last."""
        ...


def row_hashes(table: TableSchema, rows: Rows) -> Hashes:
    """By row, the hash by which partitions are dealt, of 31 bits: that of its key, or of the table's name where it has
    none. See docs/key-bytes.md.
    """
    if not table.key:
        name = key_hashes(pa.array([table.source.encode()], pa.large_binary()))
        return np.repeat(name & _HASH_BITS, rows.num_rows)
    hashes = column_hashes([rows.column(name) for name in table.key])
    hashes &= _HASH_BITS
    return hashes


@dataclass(frozen=True)
class TableCut:
    """A filter over one definition of a table."""

    step: TableStep
    """The definitions before and after, and what decides whether a row passes."""
    conditions: tuple[BoundPredicate, ...]
    """Conditions over the columns of `step.before` and `later`."""
    later: pa.Schema
    """Columns that the table got after this definition; in its rows they are NULL."""
    choice: RowChoice | None
    """What becomes of rows that do not pass; None if all rows pass."""
    partition: StreamPartition | None
    hidden: frozenset[str]
    """Columns that do not exist for the reader."""

    @classmethod
    def of(cls, wanted: StreamFilter, physical: str, table: TableSchema, known: KnownDefinitions) -> "TableCut":
        """Fit a filter to a table.

        Raises `UnknownColumn` for a column of a condition that the table has not, `MalformedRequest` for a comparison
        that does not fit it.
        """
        name = f"{physical}/{table.source}"
        rules, forced = wanted.about(name)
        later: dict[str, pa.DataType] = {}
        try:
            hidden = _hidden(table, forced, known)
            conditions = [
                _bound(rule.where, table, table, (), known, later) for rule in forced if rule.where is not None
            ]
        except (LookupError, ConfigError) as error:  # the reader is not told by what
            raise misfit(name) from error
        seen = replace(table, columns=tuple(column for column in table.columns if column.name not in hidden))
        try:
            conditions += [
                _bound(rule.where, seen, table, forced, known, later) for rule in rules if rule.where is not None
            ]
            choice = RowChoice(table) if conditions else None
        except LookupError as error:
            raise unknown_column("where", name, error.args[0], seen.names) from None
        except ConfigError as error:
            raise MalformedRequest(f"where: {name}: {error}") from error
        whole = table if choice is None else choice.after
        sent = _sent(seen, (*rules, *forced))
        after = replace(whole, columns=tuple(column for column in whole.columns if column.name in sent))
        forms = tuple(key_form(forms_of(table.column(column).type).arrow) for column in table.key)
        step = TableStep(
            table,
            after,
            lambda rows: rows,
            {column: column for column in sent},
            reads=frozenset().union(*(condition.columns for condition in conditions)),
            selects=bool(conditions) or wanted.partition is not None,
            judged_by=None if wanted.partition is None else (table.key, forms),
        )
        return cls(step, tuple(conditions), pa.schema(list(later.items())), choice, wanted.partition, hidden)

    @property
    def before(self) -> TableSchema:
        """The definition of what comes in."""
        return self.step.before

    @property
    def after(self) -> TableSchema:
        """The definition of what comes out."""
        return self.step.after

    @property
    def projects(self) -> bool:
        """Whether it drops columns."""
        return len(self.after.columns) < len(self.before.columns)

    @property
    def is_nothing(self) -> bool:
        """Whether all passes as it is."""
        return not self.step.selects and not self.projects

    def passing(self, rows: pa.RecordBatch, hashes: Hashes | None) -> tuple[Flags | None, Flags | None]:
        """Which rows are in the partition, and for which the conditions hold; None for all.

        hashes: those of the rows, where there is a partition.
        """
        part = self.partition
        in_partition = None if part is None or hashes is None else _in(part, hashes)
        if not self.conditions:
            return in_partition, None
        judged = rows
        if len(self.later):
            nulls = [pa.nulls(rows.num_rows, field.type) for field in self.later]
            judged = pa.Table.from_batches([rows])
            for name, column in zip(self.later.names, nulls, strict=True):
                judged = judged.append_column(name, column)
        holds = self.conditions[0].holds(judged)
        for condition in self.conditions[1:]:
            holds = pc.and_(holds, condition.holds(judged))
        return in_partition, np.asarray(holds)

    def count(self, rows: pa.RecordBatch, hashes: Hashes | None) -> int:
        """Roughly how many rows are left."""
        in_partition, holds = self.passing(rows, hashes)
        if holds is None or (self.choice is not None and self.choice.removes):
            return rows.num_rows if in_partition is None else int(np.count_nonzero(in_partition))
        return int(np.count_nonzero(holds if in_partition is None else holds & in_partition))

    def rows(self, rows: pa.RecordBatch, hashes: Hashes | None, *, all_updates: bool) -> pa.RecordBatch | None:
        """What is left of rows; the same object where that is all, None where it is nothing.

        all_updates: keep updates that change no column that is sent.
        """
        in_partition, holds = self.passing(rows, hashes)
        if holds is not None and self.choice is not None and self.choice.removes:
            # The partition first: rows outside of it are other readers', and must not become deletes here.
            left = rows if in_partition is None else rows.filter(pa.array(in_partition))
            holds = holds if in_partition is None else holds[in_partition]
            return self._sent_of(whole_changes(self.choice.left(left, holds)), all_updates=True)
        passes = holds if in_partition is None else in_partition if holds is None else holds & in_partition
        count = rows.num_rows if passes is None else np.count_nonzero(passes)
        if passes is None or count == rows.num_rows:
            return self._sent_of(rows, all_updates=all_updates) if self.projects else rows
        if not count:
            return None
        left = rows.select([*self.after.names, *_BUS_NAMES]) if self.projects else rows
        left = whole_changes(left.filter(_bits(passes)))
        if not self.projects and len(left.column(TXID).dictionary) <= 1:
            return left
        return self._sent_of(left, all_updates=all_updates)

    def _sent_of(self, rows: Rows, *, all_updates: bool) -> pa.RecordBatch | None:
        names = self.after.names
        if self.projects and not all_updates and self.before.first_images:
            # An update of columns that are not sent is no change for the reader.
            before = np.flatnonzero(begins_update(rows))
            changed = np.zeros(len(before), bool)
            for name in names if len(before) else ():
                changed |= differs(rows.column(name), before)
            if not changed.all():
                kept = np.ones(rows.num_rows, bool)
                kept[before[~changed]] = kept[before[~changed] + 1] = False
                rows = rows.filter(pa.array(kept))
        if not rows.num_rows:
            return None
        if rows.schema.equals(schema := frame_schema(self.after)) and len(rows.column(TXID).dictionary) <= 1:
            return rows
        columns = [_used(_one(rows.column(name))) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _in(part: StreamPartition, hashes: Hashes) -> Flags:
    count = np.uint32(part.count)
    rest = hashes // count  # which NumPy divides many at once, unlike `%`
    rest *= count
    flags: Flags = hashes - rest == part.index
    return flags


def _bits(flags: Flags) -> pa.BooleanArray:
    """The same for Arrow, a bit each."""
    packed = pa.py_buffer(np.packbits(flags, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, packed])


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _used(column: pa.Array) -> pa.Array:
    """A dictionary's column without the values that no row has any more; others as they are."""
    if not pa.types.is_dictionary(column.type) or len(column.dictionary) <= 1:
        return column
    indices = column.indices.to_numpy(zero_copy_only=False)
    is_used = np.zeros(len(column.dictionary), bool)
    is_used[indices] = True
    if is_used.all():
        return column
    places = (np.cumsum(is_used) - 1).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places[indices]), column.dictionary.filter(pa.array(is_used)))


def hidden_columns(table: TableSchema, forced: Sequence[TableRule], known: KnownDefinitions) -> frozenset[str]:
    """The columns of a definition that do not exist for the reader: those that rules name, and those that appeared when
    such a column disappeared: definitions do not show whether that was a new name for the same values.
    """
    names = {name.lower() for rule in forced for name in rule.hide}
    hidden: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    for version in _up_to(table, known) if names else ():
        present = frozenset(version.names)
        added = present - before if before and hidden - present else frozenset()
        hidden = frozenset(name for name in present if name.lower() in names or name in hidden or name in added)
        before = present
    return hidden


def _up_to(table: TableSchema, known: KnownDefinitions) -> Iterator[TableSchema]:
    """The definitions that a table has had, up to this one."""
    for version in known.definitions(table.source):
        if version.fingerprint == table.fingerprint:
            break
        yield version
    yield table


def _hidden(table: TableSchema, forced: Sequence[TableRule], known: KnownDefinitions) -> frozenset[str]:
    hidden = hidden_columns(table, forced, known)
    if lost := [name for name in table.key if name in hidden]:
        raise ConfigError(f"hide: {table.source}: column {lost[0]} is part of the key, by which rows are told apart")
    return hidden


def _sent(seen: TableSchema, rules: Sequence[TableRule]) -> tuple[str, ...]:
    """The columns that all rules let through, and the key."""
    wanted = [{column_named(name, seen.names) for name in rule.columns} for rule in rules if rule.columns is not None]
    return tuple(name for name in seen.names if name in seen.key or all(name in allowed for allowed in wanted))


_parsed = lru_cache(maxsize=1024)(Predicate.parse)  # one condition over many tables is read once


def _bound(
    where: str,
    seen: TableSchema,
    table: TableSchema,
    hide: Sequence[TableRule],
    known: KnownDefinitions,
    later: dict[str, pa.DataType],
) -> BoundPredicate:
    """A condition over the columns of a table that its writer sees; those that it lacks are added to `later`."""
    predicate = _parsed(where)
    for column in predicate.columns:
        if column_named(column, seen.names) is None:
            name, kind = _later(column, table, hide, known) or (None, None)
            if name is None:
                raise LookupError(column)
            later[name] = kind
    return predicate.over(pa.schema([*user_schema(seen), *later.items()]))


def _later(
    column: str, table: TableSchema, hide: Sequence[TableRule], known: KnownDefinitions
) -> tuple[str, pa.DataType] | None:
    """A column that a definition lacks, as the table has got it since; None if it has not."""
    now = known.definition_now(table.source)
    if now is None or now.fingerprint == table.fingerprint:
        return None
    versions = known.definitions(table.source)
    own = [version.fingerprint for version in versions].index(table.fingerprint)
    for version in reversed(versions[own + 1 :]):
        hidden = _hidden(version, hide, known)
        match = column_named(column, [name for name in version.names if name not in hidden])
        if match is not None:
            return match, forms_of(version.column(match).type).arrow
    return None


def misfit(name: str) -> UnknownColumn:
    """The error for a table that forced rules do not fit, for a reader who may not know of these."""
    return UnknownColumn(
        f"{name}: what this token may see of it cannot be told from its columns, so nothing of it is sent; whoever "
        "runs the relay finds the reason in its log, and corrects `access`"
    )


def unknown_column(parameter: str, name: str, column: str, names: Sequence[str]) -> UnknownColumn:
    """The error for a column that a table has not."""
    near = {other.lower(): other for other in names}.get(
        next(iter(difflib.get_close_matches(column.lower(), [other.lower() for other in names], 1)), "")
    )
    hint = f"; did you mean {near!r}?" if near else f"; there are {', '.join(names)}"
    return UnknownColumn(f"{parameter}: {name} has no column {column!r}{hint}")
