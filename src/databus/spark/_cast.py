"""From frames of one table to batches in exactly the schema that Spark takes; columns all the way, never lossy.

Frames of rows are whole Arrow streams. Those of one schema begin with the same schema message, so many small ones are
joined as bytes and read as one stream, which costs a fifth of opening each.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from databus.core import (
    BUS_COLUMNS,
    CHANGE_TYPE,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    ChangeType,
    CorruptData,
    Pair,
    SchemaChanged,
    UnrepresentableValue,
)
from databus.formats import scalar_of
from databus.schema import TYPE_NAMES, ColumnOrigin, SchemaChange, converted, forms_of, origins, widens
from databus.wire import Frame

_MESSAGE_PREFIX: Final = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFFFFFF
_END_OF_STREAM: Final = _MESSAGE_PREFIX.pack(_CONTINUATION, 0)

_TYPE_NAME_OF: Final = {forms_of(name).arrow: name for name in TYPE_NAMES if "(" not in name}


@lru_cache(maxsize=1)
def _labels() -> pa.StringArray:
    return pa.array([None, *(kind.label for kind in ChangeType)], pa.string())  # imports pandas: not while planning


@lru_cache(maxsize=1024)
def type_name_of(arrow: pa.DataType) -> str | None:
    """The column type whose form in frames this is; None if it is none."""
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    return _TYPE_NAME_OF.get(arrow)


def _schema_message_bytes(body: memoryview, place: str) -> int:
    if len(body) < _MESSAGE_PREFIX.size:
        raise CorruptData(f"{place}: the body is not an Arrow stream: {len(body)} bytes")
    mark, length = _MESSAGE_PREFIX.unpack_from(body)
    end: int = _MESSAGE_PREFIX.size + length
    if mark != _CONTINUATION or length <= 0 or end + len(_END_OF_STREAM) > len(body):
        raise CorruptData(f"{place}: the body is not an Arrow stream: it begins with {bytes(body[:8]).hex()}")
    return end


def join_frames(frames: Sequence[Frame]) -> pa.Table:
    """The rows of several frames of one schema, in their order, as one table; zero-copy for a single frame.

    Raises `CorruptData` if a body is not one Arrow stream, the bodies differ in schema, or the rows are not as many as
    the headers say.
    """
    if len(frames) == 1:
        return pa.Table.from_batches([frames[0].batch])
    first = frames[0].body
    schema_end = _schema_message_bytes(first, frames[0].place)
    schema_message = first[:schema_end]
    parts: list[memoryview | bytes] = [schema_message]
    for frame in frames:
        body = frame.body
        if body[:schema_end] != schema_message or body[-len(_END_OF_STREAM) :] != _END_OF_STREAM:
            return pa.Table.from_batches([frame.batch for frame in frames])  # written by another Arrow
        parts.append(body[schema_end : -len(_END_OF_STREAM)])
    try:
        table = ipc.open_stream(pa.py_buffer(b"".join(parts))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise CorruptData(
            f"{frames[0].place} to {frames[-1].place}: the bodies are not Arrow streams: {error}"
        ) from error
    if table.num_rows != sum(frame.header.rows for frame in frames):
        raise CorruptData(
            f"{frames[0].place} to {frames[-1].place}: {table.num_rows} rows are not those of the headers"
        )
    return table


def between(table: pa.Table, after: Pair, until: Pair) -> pa.Table:
    """The rows above `after` and up to `until`, of rows in ascending order; zero-copy."""
    scns = table.column(COMMIT_VERSION).to_numpy()
    seqs = table.column(SEQ).to_numpy()
    start = int(np.count_nonzero((scns < after[0]) | ((scns == after[0]) & (seqs <= after[1]))))
    end = int(np.count_nonzero((scns < until[0]) | ((scns == until[0]) & (seqs <= until[1]))))
    return table.slice(start, max(0, end - start))


class InexactRowsError(Exception):
    """Rows from before changes of the schema cannot be made into today's exactly; says why. It never leaves here."""


class Caster:
    """Makes tables of frames into one schema that Spark takes. One object a reader; not thread-safe.

    where: the table's name, for errors. schema: as `arrow_schema` made it, the bus's columns included.
    """

    def __init__(self, schema: pa.Schema, where: str) -> None:
        self._schema = schema
        self._where = where
        self._origins: dict[tuple[pa.Schema, int], dict[str, ColumnOrigin]] = {}

    def cast(self, table: pa.Table, changes: Sequence[SchemaChange] = ()) -> pa.RecordBatch:
        """One batch with the rows of `table`, which came before these changes of its schema.

        changes: those that stand after the rows, in order, up to the schema that is read as; always the last of one
        list. Renamed columns are renamed, added ones hold the value that the change gave them, types are widened.
        Raises `InexactRowsError` where that cannot be done exactly.
        """
        known = (table.schema, len(changes))
        origins_now = self._origins.get(known)
        if origins_now is None:
            origins_now = self._origins[known] = self._origins_of(table.schema, changes)
        columns = [self._column(table, field, origins_now.get(field.name)) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _origins_of(self, schema: pa.Schema, changes: Sequence[SchemaChange]) -> dict[str, ColumnOrigin]:
        first = {field.name: self._type_of(field) for field in schema if field.name not in BUS_COLUMNS}
        columns = origins(first, changes)
        for field in self._schema:
            origin = columns.get(field.name)
            if field.name in _BUS_AND_CONTROL:
                continue
            if origin is None:
                raise InexactRowsError(
                    f"they have no column {field.name!r}, and no change of the schema says its value"
                )
            if not origin.is_known:
                raise InexactRowsError(f"what column {field.name!r} held in them is unknown")
            if not _fits(origin.types[-1], field.type):
                raise InexactRowsError(
                    f"column {field.name!r} was {origin.types[-1]} and is {field.type} now, without a change of the "
                    "schema that says so"
                )
        return columns

    def _type_of(self, field: pa.Field) -> str:
        name = type_name_of(field.type)
        if name is None:
            raise SchemaChanged(
                f"{self._where}: column {field.name!r} has the Arrow type {field.type}, which this version does not "
                "know; upgrade databus here"
            )
        return name

    def _column(self, table: pa.Table, field: pa.Field, origin: ColumnOrigin | None) -> pa.Array:
        if origin is not None and field.name not in _BUS_AND_CONTROL:
            return _flat(self._user_column(table, field, origin))
        index = table.schema.get_field_index(field.name)
        if index < 0:
            return pa.nulls(table.num_rows, field.type)
        column = table.column(index)
        if field.name == CHANGE_TYPE:
            column = _labels().take(column)
        elif column.type != field.type:
            column = column.cast(field.type)
        return _flat(column)

    def _user_column(self, table: pa.Table, field: pa.Field, origin: ColumnOrigin) -> pa.Array | pa.ChunkedArray:
        if origin.column is None:
            try:
                value = scalar_of(origin.value, origin.types)
            except UnrepresentableValue as error:
                raise InexactRowsError(f"column {field.name!r} was filled with {error}") from error
            return pa.repeat(value, table.num_rows).cast(field.type)
        column = table.column(origin.column)
        if len(origin.types) > 1:
            kinds = [forms_of(name).arrow for name in origin.types[1:]]
            exact = converted(column, kinds)
            if exact is None:
                raise InexactRowsError(
                    f"column {field.name!r} was {' and then '.join(origin.types)}, which does not hold every old value"
                )
            column = exact
        return column if column.type == field.type else column.cast(field.type)


_BUS_AND_CONTROL: Final = frozenset({*BUS_COLUMNS, CONTROL})


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def _fits(name: str, sink: pa.DataType) -> bool:
    return forms_of(name).sink == sink or any(widens(name, wider) for wider in _names_of_sink(sink))


@lru_cache(maxsize=1024)
def _names_of_sink(sink: pa.DataType) -> tuple[str, ...]:
    """The column types whose sink form this is."""
    if pa.types.is_decimal128(sink):
        name = f"decimal({sink.precision},{sink.scale})"
        return (name, "uint64") if (sink.precision, sink.scale) == (20, 0) else (name,)
    return tuple(name for name in _TYPE_NAME_OF.values() if forms_of(name).sink == sink)
