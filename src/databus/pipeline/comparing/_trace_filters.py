"""The filters on the way to an output, tried on the changes of one row as `databus test` tries them.

Start with `WayThrough.passed`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, DatabusError, Pair
from databus.flow import Always, TableFilters, TableRows
from databus.pipeline.engine import named
from databus.pipeline.graph import Branch, Graph
from databus.pipeline.trying import rows_given, through_spark
from databus.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS: Final = {kind.label: kind for kind in ChangeType}


@dataclass(frozen=True)
class Change:
    """One change of the row."""

    pair: Pair
    kind: ChangeType
    commit_us: int
    txid: str
    before: Mapping[str, Any] | None
    """The image before, with values in the form of JSON; None for an insert."""
    after: Mapping[str, Any] | None
    table: TableSchema | None = None
    """The table's definition at the time of the change."""

    @property
    def chars(self) -> int:
        """About how long its images are."""
        values = (value for image in (self.before, self.after) for value in (image or {}).values())
        return sum(len(value) if isinstance(value, str | list | dict) else 1 for value in values)


@dataclass(frozen=True)
class FilteredChange:
    """A change behind filters."""

    rows: TableRows | None = None
    """None if a filter drops it."""
    dropped_by: str = ""
    why_unknown: str = ""
    """Why filters could not be tried; `rows`, if any, are then as they came to these."""


@dataclass(frozen=True)
class WayThrough:
    """A way of a table from an input to an output."""

    graph: Graph
    way: Branch
    name: str
    """The table's full name."""
    table: TableSchema
    """Its present definition."""
    spark: "Callable[[], SparkSession] | None"
    """Gives a session for filters of typed rows; None if these are not to be tried."""

    def passed(self, changes: Sequence[Change], behind: Sequence[Change]) -> list[FilteredChange]:
        """Each of these changes behind the filters. behind: those that pass the input."""
        by_scn: dict[int, list[Change]] = {}
        for change in behind:
            by_scn.setdefault(change.pair[0], []).append(change)
        from_input = [_same(change, by_scn.get(change.pair[0], ())) for change in changes]
        passed_all = [
            FilteredChange(dropped_by=self.way.input) if change is None else self._given(change)
            for change in from_input
        ]
        if not self.way.steps:
            return [passed if passed.rows is None else self._over_tables(passed.rows) for passed in passed_all]
        return self._typed(passed_all)

    def _given(self, change: Change) -> FilteredChange:
        table = self.table if self.way.steps or change.table is None else change.table
        try:
            return FilteredChange(TableRows(table, rows_given(self.way.input, table, _images(change))))
        except DatabusError as error:
            return FilteredChange(why_unknown=f"its columns were others then: {error}")

    def _over_tables(self, images: TableRows) -> FilteredChange:
        way = tuple(step.node for step in self.way.over_tables)
        now, result = Always(self.table), images
        try:
            for count, node in enumerate(way, 1):
                filters = named(self.graph, way[:count])
                physical = self.name.partition("/")[0]
                results = TableFilters(physical, filters, Always(images.table), now).rows(images)
                if not results:
                    return FilteredChange(dropped_by=node)
                (result,) = results
        except DatabusError as error:
            return FilteredChange(why_unknown=f"the filters of now do not take it: {error}")
        return FilteredChange(result)

    def _typed(self, passed_all: list[FilteredChange]) -> list[FilteredChange]:
        """In Spark, all changes at once, through one filter more each time, to see which one drops a change."""
        steps = self.graph.about(self.way.steps, self.name)
        if self.spark is None:
            names = ", ".join(step.node for step in steps)
            why = f"{names} was not tried, for which Spark is needed (`--spark`)"
            return [passed if passed.rows is None else replace(passed, why_unknown=why) for passed in passed_all]
        tables = [passed.rows.rows for passed in passed_all if passed.rows is not None]
        if not tables:
            return passed_all
        rows = TableRows(self.table, pa.concat_tables(tables))
        for count, step in enumerate(steps, 1):
            try:
                results = through_spark(self.graph, self.name, steps[:count], rows, self.spark())
            except DatabusError as error:
                return [
                    passed if passed.rows is None else FilteredChange(why_unknown=str(error)) for passed in passed_all
                ]
            passed_all = [
                passed if passed.rows is None else _left(passed.rows, results, step.node) for passed in passed_all
            ]
        return passed_all


def _left(images: TableRows, results: TableRows, node: str) -> FilteredChange:
    """The rows of one change among those that came out of a filter."""
    scn, least = images.rows.column(COMMIT_VERSION)[0], pc.min(images.rows.column(SEQ))
    most = pc.max(images.rows.column(SEQ))
    seqs = results.rows.column(SEQ)
    is_mine = pc.and_(pc.greater_equal(seqs, least), pc.less_equal(seqs, most))
    rows = results.rows.filter(pc.and_(pc.equal(results.rows.column(COMMIT_VERSION), scn), is_mine))
    return FilteredChange(TableRows(results.table, rows)) if rows.num_rows else FilteredChange(dropped_by=node)


def _same(change: Change, candidates: Sequence[Change]) -> Change | None:
    """The change behind an input: of an update, perhaps one image."""
    scn, seq = change.pair
    pairs = [change.pair, (scn, seq - 1)] if change.before is not None and change.after is not None else [change.pair]
    return next((change for pair in pairs for change in candidates if change.pair == pair), None)


def last_of(images: TableRows) -> tuple[Pair, ChangeType]:
    """The pair and the kind of the last row."""
    kind = _KINDS[images.rows.column(CHANGE_TYPE)[-1].as_py()]
    return pairs_in(images)[-1], ChangeType.DELETE if kind is ChangeType.UPDATE_PREIMAGE else kind


def pairs_in(images: TableRows) -> list[Pair]:
    """The pairs of rows."""
    columns = (images.rows.column(name).to_pylist() for name in (COMMIT_VERSION, SEQ))
    return list(zip(*columns, strict=True))


def _images(change: Change) -> list[dict[str, Any]]:
    """The images as rows of a test of filters."""
    scn, seq = change.pair
    if change.before is not None and change.after is not None:
        before = {**change.before, CHANGE_TYPE: ChangeType.UPDATE_PREIMAGE.label, COMMIT_VERSION: scn, SEQ: seq - 1}
        return [before, {**change.after, CHANGE_TYPE: ChangeType.UPDATE_POSTIMAGE.label, COMMIT_VERSION: scn, SEQ: seq}]
    image = change.before if change.after is None else change.after
    return [{**(image or {}), CHANGE_TYPE: change.kind.label, COMMIT_VERSION: scn, SEQ: seq}]
