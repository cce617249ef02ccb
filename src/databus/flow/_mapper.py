"""What tasks run over Arrow batches of typed rows: users' functions, and filters over whole tables. Controls pass by
without being shown to a function.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    BUS_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    SNAPSHOT,
    TXID,
    ConfigError,
    InputError,
    place_in_user_code,
)
from databus.flow._decode import CONTROL_LABEL, fitted_rows
from databus.flow._table_filters import TableFilters
from databus.schema import TableSchema

META_COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP, SEQ, TXID, SNAPSHOT, CONTROL)
"""The bus's columns in typed rows with `meta=full`, in the order in which they follow the table's."""

assert set(BUS_COLUMNS) < set(META_COLUMNS)  # noqa: S101 - the two lists are one

Function = Callable[[pa.RecordBatch], Any]


def is_meta(name: str) -> bool:
    """Whether this is one of the bus's columns."""
    return name in META_COLUMNS


@lru_cache(maxsize=64)
def _function_of(name: str, text: str | None) -> Function:
    where, _, attribute = name.rpartition(":")
    try:
        if text is None:
            module = importlib.import_module(where)
        else:
            module = ModuleType("databus_filter")
            exec(compile(text, where, "exec"), module.__dict__)  # noqa: S102 - the user's own function
        function = getattr(module, attribute)
    except Exception as error:
        raise ConfigError(f"function {name} does not load: {type(error).__name__}: {error}") from error
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(f"function {name}: {attribute} is not a function")
    return function  # type: ignore[no-any-return]  # of the user's module; that it can be called was looked at


class Mapper:
    """Has a function make rows of rows; carries names and text, so that it can be sent anywhere. keeps_rows: whether
    as many have to come back as it is given.
    """

    def __init__(self, name: str, text: str | None, schema: pa.Schema, *, keeps_rows: bool = False) -> None:
        self._name, self._text, self._schema, self._keeps_rows = name, text, schema, keeps_rows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = _function_of(self._name, self._text)
        for batch in batches:
            is_control = pc.equal(batch.column(CHANGE_TYPE), CONTROL_LABEL)
            rows = batch.filter(pc.invert(is_control)) if pc.any(is_control).as_py() else batch
            if rows.num_rows:
                yield self._checked(self._call(function, rows), rows)
            if rows.num_rows < batch.num_rows:
                yield self._controls(batch.filter(is_control))

    def _call(self, function: Function, rows: pa.RecordBatch) -> Any:
        try:
            return function(rows.drop_columns([CONTROL]))
        except Exception as error:
            place = place_in_user_code(error)
            raise InputError(
                f"function {self._name} failed on a batch of {rows.num_rows} rows{f', at {place}' if place else ''}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _checked(self, result: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(result, pa.Table):
            batches = result.combine_chunks().to_batches()
            result = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)
        if not isinstance(result, pa.RecordBatch):
            raise InputError(
                f"function {self._name} returned {type(result).__name__}; it must return a pyarrow RecordBatch or Table"
            )
        if self._keeps_rows and result.num_rows != rows.num_rows:
            raise InputError(
                f"function {self._name} returned {result.num_rows} rows for {rows.num_rows}, and `keeps_rows` says "
                "that it leaves none out"
            )
        columns = [self._column(result, rows, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, result: pa.RecordBatch, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = result.schema.get_field_index(field.name)
        if field.name == CONTROL:
            return pa.nulls(result.num_rows, field.type)
        if index < 0 and is_meta(field.name) and result.num_rows == rows.num_rows:
            return rows.column(field.name)
        if index < 0:
            hint = (
                "it must keep the bus's columns, since it returned another number of rows"
                if is_meta(field.name)
                else f"it returned {', '.join(result.schema.names)}; say what it returns with `columns`"
            )
            raise InputError(f"function {self._name} returned no column {field.name!r}; {hint}")
        column = result.column(index)
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise InputError(
                f"function {self._name} returned column {field.name!r} as {column.type}, which is not {field.type}: "
                f"{error}"
            ) from error

    def _controls(self, controls: pa.RecordBatch) -> pa.RecordBatch:
        named: Mapping[str, pa.Array] = {name: controls.column(name) for name in META_COLUMNS}
        columns = [
            named[field.name] if field.name in named else pa.nulls(controls.num_rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


@dataclass(frozen=True)
class Always:
    """Tells of one definition, whichever is asked for."""

    table: TableSchema

    def __call__(self, _: object) -> TableSchema:
        return self.table


@dataclass(frozen=True)
class FilterMapper:
    """Has a filter over whole tables make rows of rows."""

    filters: TableFilters
    table: TableSchema
    """Their definition."""
    schema: pa.Schema
    """Of what comes out, with the bus's columns."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        steps = self.filters.over(self.table)
        for batch in batches:
            is_control = pc.equal(batch.column(CHANGE_TYPE), CONTROL_LABEL)
            rows = pa.Table.from_batches([batch]).filter(pc.invert(is_control))
            for step in steps:
                rows = step.apply(rows)
            yield from fitted_rows(rows, self.schema).to_batches()
            if pc.any(is_control).as_py():
                yield self._controls(batch.filter(is_control))

    def _controls(self, controls: pa.RecordBatch) -> pa.RecordBatch:
        """Controls, which every filter lets pass, without what a filter that hides columns must not let be seen."""
        given: dict[str, pa.Array] = {name: controls.column(name) for name in META_COLUMNS}
        if any(table_filter.hides for _, table_filter in self.filters.filters):
            bodies = [_without_values(text) for text in given[CONTROL].to_pylist()]
            given[CONTROL] = pa.array(bodies, given[CONTROL].type)
        columns = [given.get(field.name, pa.nulls(controls.num_rows, field.type)) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _without_values(text: str) -> str:
    hidden: Mapping[str, Any] = {"ddl": None, "fill": {}}
    left = {name: hidden.get(name, value) for name, value in json.loads(text).items()}
    return json.dumps(left, ensure_ascii=False, separators=(",", ":"))
