"""The filters on the way to a copy, run over the source's rows for a comparison, part by part."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from databus.core import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    SNAPSHOT,
    TXID,
    ChangeType,
    ServiceUnavailable,
)
from databus.filters import FrameFilter, StreamFilter, row_hashes
from databus.flow import TableFilters, TableRows, user_rows_schema
from databus.pipeline.engine import TypedSteps
from databus.schema import TableSchema, sink_schema, user_schema
from databus.sources import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS_AT_ONCE: Final = 50_000
_UTC: Final = pa.timestamp("us", tz="UTC")
_META: Final[tuple[tuple[str, pa.DataType, Any], ...]] = (
    (CHANGE_TYPE, pa.string(), ChangeType.INSERT.label),
    (COMMIT_VERSION, pa.int64(), 0),
    (COMMIT_TIMESTAMP, _UTC, 0),
    (SEQ, pa.int64(), 0),
    (TXID, pa.string(), ""),
    (SNAPSHOT, pa.bool_(), True),
    (CONTROL, pa.string(), None),
)


def captured_table(relay_folder: Path, physical: str, source: str) -> TableSchema:
    """The definition of a table, from the folder of the relay's log. Raises `ServiceUnavailable`."""
    from databus.log import SchemaStore

    tables = SchemaStore.load(relay_folder / physical, physical, {}).current()
    for table in tables.values():
        if table.table.source == source:
            return table.table
    raise ServiceUnavailable(f"{relay_folder / physical}: knows no table {source}, whose types the filters need")


class Behind:
    """An input's filter over rows of a table."""

    def __init__(self, input_filter: StreamFilter, physical: str, table: TableSchema) -> None:
        self._cut = FrameFilter.over(input_filter, physical, table).cut_of(table)
        self.result = self._cut.after

    def rows(self, names: Sequence[str], rows: Iterable[Row]) -> Iterator[Row]:
        """See `Filtered.rows`."""
        table = self._cut.before
        places = [table.names.index(name) for name in self.result.names]
        for part in _parts(names, rows, table):
            matches, holds = self._cut.passing(judged := _as_sent(part, table), row_hashes(table, judged))
            passes = np.ones(len(part), bool)
            for flags in (matches, holds):
                passes &= True if flags is None else flags
            yield from (tuple(part[at][place] for place in places) for at in np.flatnonzero(passes).tolist())


class FilteredTable:
    """Filters over whole tables, over rows of one of them."""

    def __init__(self, filters: TableFilters, table: TableSchema) -> None:
        self._filters = filters
        self._table = table
        self.result = filters.result(table)

    def rows(self, names: Sequence[str], rows: Iterable[Row]) -> Iterator[Row]:
        """See `Filtered.rows`."""
        for part in _parts(names, rows, self._table):
            items, _ = self._filters.item(TableRows(self._table, _with_bus(part, self._table)))
            for passed in (item.rows for item in items if isinstance(item, TableRows)):
                yield from zip(*(passed.column(name).to_pylist() for name in self.result.names), strict=True)


class Filtered:
    """A branch's typed filters over rows of a table."""

    def __init__(self, session: "SparkSession", steps: TypedSteps, table: TableSchema) -> None:
        self._session = session
        self._steps = steps
        self._table = table

    @cached_property
    def result(self) -> TableSchema:
        """The table that comes out of the filters."""
        return self._apply([])[1]

    def rows(self, names: Sequence[str], rows: Iterable[Row]) -> Iterator[Row]:
        """The rows, given with these columns, that pass the filters, in the result's columns."""
        for part in _parts(names, rows, self._table):
            passed, _ = self._apply(part)
            yield from zip(*(column.to_pylist() for column in passed.columns), strict=True)

    def _apply(self, rows: Sequence[Row]) -> tuple[pa.Table, TableSchema]:
        frame, result = self._steps.apply(self._session.createDataFrame(_with_meta(rows, self._table)), self._table)
        passed: pa.Table = frame.drop(*(name for name, _, _ in _META)).toArrow()
        return passed.cast(sink_schema(result)), result


def _parts(names: Sequence[str], rows: Iterable[Row], table: TableSchema) -> Iterator[list[Row]]:
    """Rows with these columns in the table's order, some at a time."""
    order = [names.index(name) for name in table.names]
    rest = iter(rows)
    while part := list(islice(rest, _ROWS_AT_ONCE)):
        yield [tuple(row[place] for place in order) for row in part]


def _as_sent(rows: Sequence[Row], table: TableSchema) -> pa.RecordBatch:
    """Rows of a comparison, in the types of a frame."""
    sent = user_schema(table)
    kinds = sink_schema(table)
    columns = [
        pa.array([row[at] for row in rows], kind.type).cast(field.type)
        for at, (kind, field) in enumerate(zip(kinds, sent, strict=True))
    ]
    return pa.RecordBatch.from_arrays(columns, names=sent.names)


def _with_meta(rows: Sequence[Row], table: TableSchema) -> pa.Table:
    schema = sink_schema(table)
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    meta = [pa.repeat(pa.scalar(value, kind), len(rows)) for _, kind, value in _META]
    return pa.table([*columns, *meta], [*schema.names, *(name for name, _, _ in _META)])


def _with_bus(rows: Sequence[Row], table: TableSchema) -> pa.Table:
    return _with_meta(rows, table).select(user_rows_schema(table).names)
