"""What the filters on the way to an output make of the changes of one row, tried as `databus test` tries them.

Start with `WayThrough.passed`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """One change of the row. before, after: the images, as JSON has values."""

    pair: Pair
    kind: ChangeType
    commit_us: int
    txid: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    table: TableSchema | None = None
    """Its definition then."""


@dataclass(frozen=True)
class Passed:
    """What comes of a change. rows: behind all filters; None where one drops it, or where that is not known."""

    rows: TableRows | None = None
    dropped_by: str = ""
    why_unknown: str = ""


@dataclass(frozen=True)
class WayThrough:
    """A way from an input to an output. name: of the table, in full; table: its definition now. spark: gives a session
    for filters of typed rows; None where these are not to be tried.
    """

    graph: Graph
    way: Branch
    name: str
    table: TableSchema
    spark: "Callable[[], SparkSession] | None"

    def passed(self, changes: Sequence[Change], behind: Sequence[Change]) -> list[Passed]:
        """Of each of these changes. behind: those that the input gives."""
        by_scn: dict[int, list[Change]] = {}
        for each in behind:
            by_scn.setdefault(each.pair[0], []).append(each)
        given = [_same(each, by_scn.get(each.pair[0], ())) for each in changes]
        found = [Passed(dropped_by=self.way.input) if each is None else self._given(each) for each in given]
        if not self.way.steps:
            return [each if each.rows is None else self._over_tables(each.rows) for each in found]
        return self._typed(found)

    def _given(self, change: Change) -> Passed:
        table = self.table if self.way.steps or change.table is None else change.table
        try:
            return Passed(TableRows(table, rows_given(self.way.input, table, _images(change))))
        except DatabusError as error:
            return Passed(why_unknown=f"its columns were others then: {error}")

    def _over_tables(self, given: TableRows) -> Passed:
        way = tuple(step.node for step in self.way.over_tables)
        now, result = Always(self.table), given
        try:
            for count, node in enumerate(way, 1):
                filters = named(self.graph, way[:count])
                physical = self.name.partition("/")[0]
                found = TableFilters(physical, filters, Always(given.table), now).rows(given)
                if not found:
                    return Passed(dropped_by=node)
                (result,) = found
        except DatabusError as error:
            return Passed(why_unknown=f"the filters of now do not take it: {error}")
        return Passed(result)

    def _typed(self, found: list[Passed]) -> list[Passed]:
        """By Spark, all changes at once, as far as one filter after the other."""
        steps = self.graph.about(self.way.steps, self.name)
        if self.spark is None:
            names = ", ".join(step.node for step in steps)
            why = f"{names}: filters of typed rows; `databus trace --spark` has Spark try them"
            return [each if each.rows is None else Passed(why_unknown=why) for each in found]
        given = [each.rows.rows for each in found if each.rows is not None]
        if not given:
            return found
        rows = TableRows(self.table, pa.concat_tables(given))
        for count, step in enumerate(steps, 1):
            try:
                made = through_spark(self.graph, self.name, steps[:count], rows, self.spark())
            except DatabusError as error:
                return [each if each.rows is None else Passed(why_unknown=str(error)) for each in found]
            found = [each if each.rows is None else _left(each.rows, made, step.node) for each in found]
        return found


def _left(given: TableRows, made: TableRows, node: str) -> Passed:
    """What a filter has left of a change, of what it has made of all."""
    scn, least = given.rows.column(COMMIT_VERSION)[0], pc.min(given.rows.column(SEQ))
    most = pc.max(given.rows.column(SEQ))
    seqs = made.rows.column(SEQ)
    is_mine = pc.and_(pc.greater_equal(seqs, least), pc.less_equal(seqs, most))
    mine = made.rows.filter(pc.and_(pc.equal(made.rows.column(COMMIT_VERSION), scn), is_mine))
    return Passed(TableRows(made.table, mine)) if mine.num_rows else Passed(dropped_by=node)


def _same(change: Change, there: Sequence[Change]) -> Change | None:
    """The change as an input gives it: of an update perhaps one image."""
    scn, seq = change.pair
    pairs = [change.pair, (scn, seq - 1)] if change.before is not None and change.after is not None else [change.pair]
    return next((each for pair in pairs for each in there if each.pair == pair), None)


def last_of(given: TableRows) -> tuple[Pair, ChangeType]:
    """The pair and the kind of the last row."""
    kind = _KINDS[given.rows.column(CHANGE_TYPE)[-1].as_py()]
    return pairs_in(given)[-1], ChangeType.DELETE if kind is ChangeType.UPDATE_PREIMAGE else kind


def pairs_in(given: TableRows) -> list[Pair]:
    """The pairs of rows."""
    columns = (given.rows.column(name).to_pylist() for name in (COMMIT_VERSION, SEQ))
    return list(zip(*columns, strict=True))


def _images(change: Change) -> list[dict[str, Any]]:
    """The images as a test of filters has them."""
    scn, seq = change.pair
    if change.before is not None and change.after is not None:
        before = {**change.before, CHANGE_TYPE: ChangeType.UPDATE_PREIMAGE.label, COMMIT_VERSION: scn, SEQ: seq - 1}
        return [before, {**change.after, CHANGE_TYPE: ChangeType.UPDATE_POSTIMAGE.label, COMMIT_VERSION: scn, SEQ: seq}]
    image = change.before if change.after is None else change.after
    return [{**(image or {}), CHANGE_TYPE: change.kind.label, COMMIT_VERSION: scn, SEQ: seq}]
