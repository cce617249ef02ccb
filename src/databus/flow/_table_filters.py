"""Filters over tables, one behind the other, over what a batch brings of each table. No row becomes an object.

Rows are judged in the definition that their table had when they were written, and `schema` controls are made into what
they mean behind the filters, so that a mirror follows. A column that a definition lacks was NULL then, if the table has
it now; see `TableFilters._missing` for the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from databus.core import ConfigError, ControlKind, UnknownColumn, UnsupportedFeature
from databus.filters import Selection, TableStep, changed_by, previous_of, schema_body, selects, whole_changes
from databus.flow._batch import TableControl, TableRows
from databus.flow._counts import Dropped
from databus.flow._decode import TableOf
from databus.flow._filters import TableFilter
from databus.schema import Column, SchemaChange, TableSchema, column_named

NamedFilter = tuple[str, TableFilter]
"""A filter, and where it stands in the pipeline's file: `filters.large`."""

_BOTH_NAMES: Final = "Hide it by both names in this filter, the old and the new, and say `missing: skip` there"

CurrentOf = Callable[[str], TableSchema | None]
"""The definition that a table, by full name, has now; None if it is not captured any more."""


@dataclass
class TableFilters:
    """A row of filters over the tables of a physical source."""

    physical: str
    filters: Sequence[NamedFilter]
    table_of: TableOf
    """Finds definitions by their fingerprints."""
    current_of: CurrentOf
    known: dict[int, tuple[TableStep, ...]] = field(default_factory=dict)
    """What is worked out already."""

    def over(self, table: TableSchema) -> tuple[TableStep, ...]:
        """What each filter makes of a table.

        Raises `UnknownColumn` for a column that a filter names and the table has not, `ConfigError` for a condition or
        an option that does not fit the table.
        """
        steps_of_table = self.known.get(table.fingerprint)
        if steps_of_table is None:
            name = f"{self.physical}/{table.source}"
            steps: list[TableStep] = []
            for where, table_filter in self.filters:
                before = steps[-1].after if steps else table
                steps.append(self._step(where, table_filter, name, before, tuple(steps)))
            steps_of_table = self.known[table.fingerprint] = tuple(steps)
        return steps_of_table

    def result(self, table: TableSchema) -> TableSchema:
        """The definition of what comes out."""
        return self.over(table)[-1].after

    def check_key(self, table: TableSchema, key: Sequence[str]) -> None:
        """Raises `ConfigError` where columns of what comes out, by which an output tells rows apart, are masked so that
        values which differ become one; that of the table itself is checked by each filter. Also where they are not
        the key by which rows are removed that filters leave out.
        """
        result = self.result(table)
        if not table.first_images and not {*key} <= {*result.key} and any(step.selects for step in self.over(table)):
            raise ConfigError(
                f"{self.filters[-1][0]}: {self.physical}/{table.source}: its updates may come without first images, "
                f"and a row that the filters leave out is removed by its key, which is {', '.join(result.key)}; the "
                f"output's `key` is {', '.join(key)}. Say `first_images: true` in the source, if its messages have "
                "whole rows"
            )
        names = dict.fromkeys((*key, *result.key))
        for (where, _), step in reversed([*zip(self.filters, self.over(table), strict=True)]):
            for name in names:
                if step.made_by.get(name, "hash") != "hash":
                    raise ConfigError(
                        f"{where}: column {name} of {self.physical}/{table.source} is in the `key` by which the output "
                        "tells rows apart, and values that differ would become one; it can be hashed (`hash`)"
                    )
            names = dict.fromkeys(step.made_of[name] for name in names if name in step.made_of)

    def _step(
        self, where: str, table_filter: TableFilter, name: str, table: TableSchema, before: tuple[TableStep, ...]
    ) -> TableStep:
        if not table_filter.is_about(name):
            return TableStep.unchanged(table)
        lacking = [column for column in table_filter.names if column_named(column, table.names) is None]
        missing = self._missing(where, table_filter, name, table, lacking, len(before)) if lacking else {}
        try:
            step = table_filter.over(table, missing)
            _check_marks(step, before)
        except ConfigError as error:
            raise ConfigError(f"{where}: {name}: {error}") from error
        return step

    def _missing(
        self, where: str, table_filter: TableFilter, name: str, table: TableSchema, lacking: Sequence[str], depth: int
    ) -> dict[str, Column | None]:
        """Columns that a definition lacks, each as the table has it now; None where that does not matter.

        It does not where the filter says `missing: skip`. Otherwise the table must have it now. A filter that hides
        columns stops at a definition with columns that are not there now: one may be what it hides, by another name.
        """
        now = self.current_of(name)
        if now is not None and depth:
            now = TableFilters(self.physical, self.filters[:depth], self.table_of, self.current_of).result(now)
        current = now or table
        columns = {column: column_named(column, current.names) for column in lacking}
        gone = [column for column in table.names if column not in current.names and not _names(table_filter, column)]
        if table_filter.hides and gone and any(columns.values()):
            raise UnsupportedFeature(
                f"{where}: rows of {name} are from before {', '.join(lacking)} was there, and have "
                f"{', '.join(gone)}, which may have been its name: nothing says what to hide of them. {_BOTH_NAMES}"
            )
        for column in lacking:
            if columns[column] is None and table_filter.missing == "stop" and now is not None:
                raise UnknownColumn(
                    f'{where}: {name} has no column "{column}"; there are {", ".join(current.names)}. Leave the table '
                    "out of `tables`, or say `missing: skip` to have the filter leave alone what is not there"
                    f"{f'. If it has another name now: {_BOTH_NAMES}' if table_filter.hides else ''}"
                )
        return {column: None if at is None else current.column(at) for column, at in columns.items()}

    def item(
        self, item: TableRows | TableControl, dropped: Dropped | None = None
    ) -> tuple[Iterable[TableRows | TableControl], bool]:
        """What is left of rows or a control of a table, and whether a copy can follow: else it is read again."""
        if isinstance(item, TableRows):
            return self.rows(item, dropped), True
        return self.control(item)

    def rows(self, item: TableRows, dropped: Dropped | None = None) -> list[TableRows]:
        """What is left of rows of a table. dropped: counts what each filter leaves out."""
        steps = self.over(item.table)
        rows = item.rows
        for (where, _), step in zip(self.filters, steps, strict=True):
            if not (step.rests_in_snapshots and item.is_being_read):
                before, rows = rows.num_rows, step.apply(rows)
                if dropped is not None and rows.num_rows != before:
                    dropped[where] += before - rows.num_rows
        if any(step.selects for step in steps):
            rows = whole_changes(rows)
        return [TableRows(steps[-1].after, rows)] if rows.num_rows else []

    def control(self, item: TableControl) -> tuple[list[TableControl], bool]:
        """A control of a table as it is behind the filters, if it passes, and whether a copy can follow it."""
        if item.kind is not ControlKind.SCHEMA:
            return self._passed(item), True
        control, is_exact = self._schema_control(item)
        return [control], is_exact

    def _passed(self, item: TableControl) -> list[TableControl]:
        """A control that says nothing of columns, as the filters let it pass."""
        name = f"{self.physical}/{item.table.source}"
        body: Mapping[str, Any] | None = item.body
        for where, table_filter in self.filters:
            if body is not None and table_filter.is_about(name):
                try:
                    body = table_filter.control(item.kind, body)
                except UnsupportedFeature as error:
                    raise UnsupportedFeature(f"{where}: {name}: {error}") from error
        return [] if body is None else [replace(item, table=self.result(item.table), body=body)]

    def _schema_control(self, item: TableControl) -> tuple[TableControl, bool]:
        steps = self.over(item.table)
        result = steps[-1].after
        previous = previous_of(item.body)
        before = None if previous is None else self.table_of(previous)
        change = SchemaChange.of_control(item.pair, item.body, before, item.table)
        olds: Sequence[TableStep | None] = [None] * len(steps) if before is None else self.over(before)
        is_exact = True
        for (where, table_filter), old, new in zip(self.filters, olds, steps, strict=True):
            if table_filter.hides and old is not None:
                _check_hidden(where, table_filter, old, new)
            change, is_said = changed_by(old, new, change)
            is_exact &= is_said
        hides = any(table_filter.hides for _, table_filter in self.filters)
        body = schema_body(item.body, replace(change, after=result), hides=hides)
        is_exact &= item.body.get("exact", True)  # as the relay's own filter says
        is_read_anyway = item.body.get("exact", True) and (change.needs_snapshot or before is None)
        return TableControl(result, item.kind, item.pair, body), is_exact or is_read_anyway


@dataclass(frozen=True)
class KeyChoice:
    """The columns by which an output's options have it tell rows apart; travels to tasks."""

    chosen: Sequence[str] | Mapping[str, Sequence[str]] = ()
    """For all tables, or by `db.table`."""

    def of(self, source: str) -> Sequence[str]:
        """Those of a table; none where the options name none."""
        return self.chosen.get(source, ()) if isinstance(self.chosen, Mapping) else self.chosen


@dataclass(frozen=True)
class Ways:
    """Which tables an output is given, and through which filters each comes; travels to tasks."""

    ways: tuple[tuple[Selection, TableFilters | None], ...] | None = None
    """Selections of tables, any of which lets a table through, each with the filters behind it; None for all tables."""
    key: KeyChoice = KeyChoice()
    """By which the output tells rows apart."""

    def selects(self, name: str) -> bool:
        """Whether a table of this full name goes to the output."""
        return self.ways is None or any(selects(selection, name) for selection, _ in self.ways)

    def controls(self, name: str, control: TableControl) -> Sequence[TableControl]:
        """What a control of such a table is behind its filters, if it passes; see `TableFilters.item`."""
        chain = self._chain(name)
        return (control,) if chain is None else chain.control(control)[0]

    def _chain(self, name: str) -> TableFilters | None:
        return next((filters for selection, filters in self.ways or () if selects(selection, name)), None)

    def filtered(self, name: str, rows: TableRows, dropped: Dropped | None = None) -> Iterable[TableRows]:
        """What is left of rows of such a table; see `TableFilters.rows`. Raises what `TableFilters.check_key` does."""
        chain = self._chain(name)
        if chain is None:
            return (rows,)
        chain.check_key(rows.table, self.key.of(rows.table.source))
        return chain.rows(rows, dropped)


def _check_marks(step: TableStep, before: Sequence[TableStep]) -> None:
    """Raises `ConfigError` where rows are chosen by what a filter before says of them: the row that is marked would not
    pass, and nothing would say that the row of before is to go.
    """
    names = step.reads
    for earlier in reversed(before):
        if marks := sorted(names & earlier.marks):
            raise ConfigError(
                f"{marks[0]} is made by `tombstones` before it, and rows cannot be chosen by it: leave this filter out "
                "and have deletes pass as they are, or choose in a query over the copy"
            )
        names = frozenset(earlier.made_of[name] for name in names if name in earlier.made_of)


def _check_hidden(where: str, table_filter: TableFilter, old: TableStep, new: TableStep) -> None:
    """Raises `UnsupportedFeature` where a column that is hidden may go on under another name."""
    gone = [name for name in table_filter.names if column_named(name, old.before.names) and not _has(name, new)]
    added = [name for name in new.before.names if name not in old.before.names and not _names(table_filter, name)]
    if gone and added:
        raise UnsupportedFeature(
            f"{where}: {new.before.source} lost column {', '.join(gone)}, which is hidden, and got "
            f"{', '.join(added)}, which may be the same by another name. {_BOTH_NAMES}"
        )


def _names(table_filter: TableFilter, column: str) -> bool:
    return column_named(column, table_filter.names) is not None


def _has(name: str, step: TableStep) -> bool:
    return column_named(name, step.before.names) is not None
