"""Rows as Python objects, or as those of a model, for who wants them. A frame's columns become lists once; a row is an
index into them.
"""

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, cast, get_type_hints

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from databus.core import CHANGE_TYPE, SEQ, ChangeType, InputError, Pair, UnrepresentableValue
from databus.filters import row_hashes
from databus.schema import TableSchema, forms_of
from databus.wire import Frame

T = TypeVar("T")
_INSERT: Final = ChangeType.INSERT
_PREIMAGE: Final = int(ChangeType.UPDATE_PREIMAGE)
_POSTIMAGE: Final = int(ChangeType.UPDATE_POSTIMAGE)
_KINDS: Final[dict[int, ChangeType]] = {kind.value: kind for kind in ChangeType}
_Make = Callable[[Mapping[str, Any]], Any]
_MISSING: Final = "missing"
_VALUE_CHARS_MAX: Final = 100


class Row:
    """One change of one row; both images of an update together. `row["total"]` is the value of a column as it is now,
    or as it was if the row is gone; `dict(row)` has them all.

    source: `physical/db.table`. change_type: `update_postimage` for an update. before, after: the images, by column
    name; None where there is none (an insert has no `before`; where a filter took one image of an update away, neither
    has it). scn, seq: the pair of the last image.
    """

    __slots__ = ("_after", "_before", "change_type", "scn", "seq", "source", "table")

    def __init__(
        self,
        source: str,
        table: TableSchema,
        change_type: ChangeType,
        scn: int,
        seq: int,
        before: tuple[Any, ...] | None,
        after: tuple[Any, ...] | None,
    ) -> None:
        self.source = source
        self.table = table
        self.change_type = change_type
        self.scn = scn
        self.seq = seq
        self._before = before
        self._after = after

    def complete(self, seq: int, after: tuple[Any, ...]) -> None:
        """Add the second image of an update."""
        self.change_type, self.seq, self._after = ChangeType.UPDATE_POSTIMAGE, seq, after

    def __getitem__(self, column: str) -> Any:
        image = self._before if self._after is None else self._after
        try:
            return (image or ())[self.table.names.index(column)]
        except ValueError:
            near = get_close_matches(str(column), self.table.names, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(self.table.names)}"
            raise KeyError(f"{self.source} has no column {column}; {hint}") from None

    def __contains__(self, column: object) -> bool:
        return column in self.table.names

    def keys(self) -> tuple[str, ...]:
        """The columns' names."""
        return self.table.names

    @property
    def op(self) -> Literal["insert", "update", "delete"]:
        """What happened to the row; rows that a snapshot has read are inserts."""
        if self._after is None:
            return "delete"
        return "insert" if self.change_type is _INSERT else "update"

    def into(self, model: type[T]) -> T:
        """The row as it is now, or as it was if it is gone, as an object of a dataclass or a pydantic model.

        A field is given the column of its name; a column without a field is left out. Types must fit exactly: a text is
        no number, a decimal no float, and None only what may be None. Raises `UnrepresentableValue` naming column and
        field, `InputError` where there is no column for a field without a default.
        """
        return object_of(model, self.source, self.table, self.values)

    @property
    def pair(self) -> Pair:
        """(SCN, `_seq`)."""
        return self.scn, self.seq

    @property
    def before(self) -> dict[str, Any] | None:
        """The row as it was."""
        return None if self._before is None else dict(zip(self.table.names, self._before, strict=True))

    @property
    def after(self) -> dict[str, Any] | None:
        """The row as it is now."""
        return None if self._after is None else dict(zip(self.table.names, self._after, strict=True))

    @property
    def values(self) -> dict[str, Any]:
        """The row as it is now, or as it was if it is gone."""
        image = self._before if self._after is None else self._after
        return dict(zip(self.table.names, image or (), strict=True))

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of the key's columns; empty where the table has none."""
        image = self._before if self._after is None else self._after
        names = self.table.names
        return tuple((image or ())[names.index(name)] for name in self.table.key)

    @property
    def key_hash(self) -> int:
        """The hash of its key, of 31 bits, by which partitions are dealt; that of the table's name where it has no key.

        A copy that several partitions fill keeps it beside the row: `ControlEvent.covers` says what a control removes.
        For many rows use `databus.filters.row_hashes` over `Changes.batch`.
        """
        image = self._before if self._after is None else self._after
        columns = {
            column.name: pa.array([value], forms_of(column.type).arrow)
            for column, value in zip(self.table.columns, image or (), strict=True)
            if column.name in self.table.key
        }
        rows = pa.table(columns) if columns else pa.table({"": [None]})
        return int(row_hashes(self.table, rows)[0])

    def __repr__(self) -> str:
        images = f"{self.before} -> {self.after}" if self._before and self._after else str(self.values)
        return f"<{self.source} {self.change_type.label} {self.scn}:{self.seq} {images}>"


class Cells:
    """The columns of one frame as Python lists."""

    __slots__ = ("images", "kinds", "seqs", "source", "table")

    def __init__(self, frame: Frame, source: str, table: TableSchema) -> None:
        batch = frame.batch
        self.source = source
        self.table = table
        columns = [
            python_values(batch.column(i), f"{frame.place}, {source}.{name}") for i, name in enumerate(table.names)
        ]
        self.images: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * len(batch)
        self.kinds: list[int] = batch.column(CHANGE_TYPE).to_pylist()
        self.seqs: list[int] = batch.column(SEQ).to_pylist()


def merged_rows(cells: list[Cells], frame_numbers: list[int], row_numbers: list[int], scn: int) -> list[Row]:
    """Rows in the order given, both images of an update joined."""
    out: list[Row] = []
    joined = (-1, -1, -1)  # frame, row and `_seq` that the other image of the update before would have
    for number, index in zip(frame_numbers, row_numbers, strict=True):
        of = cells[number]
        kind, image = of.kinds[index], of.images[index]
        if kind == _POSTIMAGE:
            if joined == (number, index, of.seqs[index]):
                out[-1].complete(of.seqs[index], image)
                continue
            out.append(Row(of.source, of.table, ChangeType.UPDATE_POSTIMAGE, scn, of.seqs[index], None, image))
        elif kind == _INSERT:
            out.append(Row(of.source, of.table, _INSERT, scn, of.seqs[index], None, image))
        else:
            out.append(Row(of.source, of.table, _KINDS[kind], scn, of.seqs[index], image, None))
            if kind == _PREIMAGE:
                joined = (number, index + 1, of.seqs[index] + 1)
    return out


def python_values(array: pa.Array, place: str) -> list[Any]:
    """A column's values as Python holds them.

    Timestamps, dates apart, take a way that is twenty times faster than Arrow's own. Raises `UnrepresentableValue`
    naming `place` for one that lies outside Python's years 1 to 9999.
    """
    if not pa.types.is_timestamp(array.type):
        values: list[Any] = array.to_pylist()
        return values
    times: list[Any] = array.to_numpy(zero_copy_only=False).astype("datetime64[us]", copy=False).tolist()
    nulls = 0
    for index, value in enumerate(times):
        if value is None:
            nulls += 1
        elif not isinstance(value, dt.datetime):
            raise UnrepresentableValue(
                f"{place}, row {index}: {np.datetime64(value, 'us')} is beyond Python's datetime"
            )
    if nulls != array.null_count:
        raise UnrepresentableValue(f"{place}: the smallest 64-bit timestamp is beyond Python's datetime")
    if array.type.tz is None:
        return times
    return [value if value is None else value.replace(tzinfo=dt.UTC) for value in times]


def object_of(model: type[T], source: str, table: TableSchema, values: Mapping[str, Any]) -> T:
    """The model's object with these values. Raises `UnrepresentableValue` for one of another type than its field has,
    `InputError` where the table has no column for a field without a default.
    """
    try:
        return cast("T", _maker_of(cast("Any", model))(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        column = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == _MISSING and column not in table.names:
            raise InputError(
                f"{source}: {model.__name__}.{field} has no default, and the table has no column of that name; it has "
                f"{', '.join(table.names)}"
            ) from error
        if column not in table.names:  # the model's own validators, which see all columns
            raise UnrepresentableValue(f"{source}: the row is no {model.__name__}: {first['msg']}") from error
        value = repr(values[column])[:_VALUE_CHARS_MAX]
        raise UnrepresentableValue(
            f"{source}: column {column} ({table.column(column).type}) does not fit {model.__name__}.{field}: "
            f"{first['msg']}; it is {value}"
        ) from error


@lru_cache(maxsize=256)
def _maker_of(model: type) -> _Make:
    """What checks the values and makes the object. To look at a model takes as long as many rows."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        return _maker_of_pydantic(model)
    if not (isinstance(model, type) and dataclasses.is_dataclass(model)):
        raise InputError(f"{model!r}: a row becomes a dataclass or a pydantic model; this is neither")
    try:
        hints = get_type_hints(model, include_extras=True)
        fields = [field for field in dataclasses.fields(model) if field.init]
        adapters = {field.name: _adapter_of(hints[field.name]) for field in fields}
    except Exception as error:
        raise InputError(f"{model.__name__}: the types of its fields cannot be used: {error}") from error
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def make(values: Mapping[str, Any]) -> Any:
        lacking = next((name for name in adapters if name in required and name not in values), None)
        if lacking is not None:
            raise _error_of(model, {"type": _MISSING, "loc": (lacking,), "input": None})
        given = {name: adapter for name, adapter in adapters.items() if name in values}
        return model(**{name: _checked(model, name, adapter, values[name]) for name, adapter in given.items()})

    return make


def _maker_of_pydantic(model: type[BaseModel]) -> _Make:
    def column_of(name: str) -> str:
        alias = model.model_fields[name].validation_alias
        return alias if isinstance(alias, str) else name

    columns = {name: column_of(name) for name in model.model_fields}

    def make(values: Mapping[str, Any]) -> Any:
        made = model.model_validate(dict(values), strict=True)
        for name, column in columns.items():
            _check_float(model, column, values.get(column), getattr(made, name))
        return made

    return make


def _check_float(model: type, column: str, value: Any, made: Any) -> None:
    """Pydantic's strict mode lets integers and decimals become floats, which may not hold them exactly."""
    if isinstance(made, float) and isinstance(value, int | Decimal):
        details = {"type": "float_type", "loc": (column,), "input": value}
        raise _error_of(model, details)


def _adapter_of(hint: Any) -> TypeAdapter[Any]:
    is_model = isinstance(hint, type) and (issubclass(hint, BaseModel) or dataclasses.is_dataclass(hint))
    # pydantic refuses a configuration for a type that may have its own
    return TypeAdapter(hint) if is_model else TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


def _checked(model: type, name: str, adapter: TypeAdapter[Any], value: Any) -> Any:
    try:
        made = adapter.validate_python(value, strict=True)
        _check_float(model, name, value, made)
        return made
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        details = {"type": "value_error", "loc": (name, *first["loc"]), "input": value, "ctx": {"error": first["msg"]}}
        raise _error_of(model, details) from error


def _error_of(model: type, details: dict[str, Any]) -> ValidationError:
    return ValidationError.from_exception_data(model.__name__, [cast("Any", details)])
