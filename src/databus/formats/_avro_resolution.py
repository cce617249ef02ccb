"""What a message was written in, by its writer's own Avro schema, and how a table's columns come out of that.

As Avro's schema resolution has it, by names: columns that the table does not have are passed over, columns that the
writer did not have are null, integers and decimals may have become wider. What would change a value is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from databus.core import UnrepresentableValue
from databus.formats._avro_reading import AvroCursor, Wanted
from databus.schema import Column, avro_field_name, avro_name

_NULL: Final = "null"
_INTEGERS: Final = ("int", "long")
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(), "int": pa.int64(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "bytes": pa.binary(), "enum": pa.int64(),
}  # fmt: skip
_MILLISECONDS: Final = "io.debezium.time.Timestamp"
_MICROSECONDS: Final = "io.debezium.time.MicroTimestamp"
_DIGITS: Final = {_MILLISECONDS: "datetime(3)", _MICROSECONDS: "datetime(6)"}
_DECIMAL: Final = "decimal"
_PRECISION_MAX: Final = 38


class WrittenSchema:
    """The schema that messages were written in, and the types that it names."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._named: dict[str, Any] = {}
        with _is_schema():
            self._note(schema, "")
        self.fields = self.record(schema)

    def record(self, avro: Any) -> "list[WrittenField]":
        """The fields of a record. Raises `UnrepresentableValue` for another type."""
        avro = self._resolved(avro)
        if not isinstance(avro, Mapping) or avro.get("type") != "record":
            raise UnrepresentableValue(f"its schema has {_shown(avro)} where a record is to be")
        with _is_schema():
            return [self._field(field) for field in avro["fields"]]

    def _field(self, field: Mapping[str, Any]) -> "WrittenField":
        avro, name = field["type"], _name_of(field)
        if not isinstance(avro, list):
            return WrittenField(field["name"], name, self._resolved(avro), None)
        others = [branch for branch in avro if branch != _NULL]
        if len(avro) != 2 or len(others) != 1:
            raise UnrepresentableValue(f"its schema has a union in {field['name']} that is not of null and one type")
        return WrittenField(field["name"], name, self._resolved(others[0]), avro.index(_NULL))

    def _resolved(self, avro: Any) -> Any:
        return self._named.get(avro, avro) if isinstance(avro, str) else avro

    def _note(self, avro: Any, space: str) -> None:
        """Remember the types that it names, by full names and as they are called inside their namespace."""
        if isinstance(avro, list):
            for branch in avro:
                self._note(branch, space)
        elif isinstance(avro, Mapping):
            space = avro.get("namespace", space)
            if "name" in avro:
                self._named[avro["name"]] = avro
                self._named[f"{space}.{avro['name']}"] = avro
            for field in avro.get("fields", ()):
                self._note(field["type"], space)
            if isinstance(avro.get("type"), Mapping | list):
                self._note(avro["type"], space)

    def skip(self, cursor: AvroCursor, field: "WrittenField", wanted: Wanted) -> None:
        """Pass over a field. Raises `UnrepresentableValue` for a type that rows do not have."""
        wanted = field.present(cursor, wanted)
        kind = field.base
        if kind == "record":
            for member in self.record(field.avro):
                self.skip(cursor, member, wanted)
        elif kind in _ARROW:
            cursor.column(_ARROW[kind], wanted)
        else:
            raise UnrepresentableValue(f"its schema has a type in {field.name} that cannot be passed over: {kind}")


class WrittenField(NamedTuple):
    """A field as its writer has it."""

    field: str
    """The field's name in Avro."""
    name: str
    """The column's name in the database; Avro allows fewer characters."""
    avro: Any
    """The field's type, without null."""
    null_branch: int | None
    """Which branch of two is null; None where it cannot be."""

    @property
    def base(self) -> str:
        """Avro's own type."""
        avro = self.avro
        while isinstance(avro, Mapping):
            avro = avro["type"]
        return str(avro)

    @property
    def logical(self) -> str | None:
        """What the base type stands for, in Connect's words or in Avro's."""
        avro = self.avro
        if not isinstance(avro, Mapping):
            return None
        name = avro.get("logicalType") if avro.get("logicalType") == _DECIMAL else avro.get("connect.name")
        return name or avro.get("logicalType")

    def present(self, cursor: AvroCursor, wanted: Wanted) -> Wanted:
        """Which of the messages have a value."""
        return wanted if self.null_branch is None else cursor.present(wanted, self.null_branch)

    def as_written(self, column: Column, ours: "WrittenField") -> Column:
        """The column as it has to be read. ours: the field as we would have written it.

        Raises `UnrepresentableValue` where it cannot become what the column is.
        """
        if self.base == "bytes" and self.logical == _DECIMAL and column.type.startswith(_DECIMAL):
            return replace(column, type=self._decimal_of(column))
        if self.base == "float" and ours.base == "double":
            return replace(column, type="float32")
        is_text = self.base in ("string", "bytes") and _DECIMAL not in (ours.logical, self.logical)
        is_same = self.base == ours.base or (self.base in _INTEGERS and ours.base in _INTEGERS)
        if self.logical in _DIGITS and ours.logical in _DIGITS:
            return replace(column, db_type=_DIGITS[self.logical])
        if is_same and (is_text or self.logical == ours.logical):
            return column
        raise self._unlike(column)

    def _decimal_of(self, column: Column) -> str:
        """The type of its decimals: of more digits than a column may have, where its writer has named no number (64, by
        Confluent's converter), as many as there may be; a value that has more is refused by itself.
        """
        precision, scale = self.avro.get("precision"), self.avro.get("scale", 0)
        is_decimal = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision
        if not is_decimal or precision == 0 or scale > _PRECISION_MAX:
            raise self._unlike(column)
        return f"decimal({min(precision, _PRECISION_MAX)},{scale})"

    def _unlike(self, column: Column) -> UnrepresentableValue:
        return UnrepresentableValue(
            f"{column.name} was written as {_shown(self.avro)}, of which no {column.type} can be made"
        )


class WrittenColumn(NamedTuple):
    """A field that is a column of the table."""

    at: int
    """Index of the column in the table."""
    read_as: Column
    """How the field's values have to be read."""


def written_columns(
    fields: Sequence[WrittenField], columns: Sequence[Column], ours: Sequence[WrittenField]
) -> list[WrittenColumn | None]:
    """Which column each field is; None for those that the table does not have. ours: the columns as we write them.

    Raises `UnrepresentableValue` for a column that the table lacks null for, or whose values it cannot hold.
    """
    by_name = {column.name: at for at, column in enumerate(columns)}
    chosen: list[WrittenColumn | None] = []
    for field in fields:
        at = by_name.get(field.name)
        chosen.append(None if at is None else WrittenColumn(at, field.as_written(columns[at], ours[at])))
    _check_changed_names(fields, columns, ours)
    places = [column.at for column in chosen if column is not None]
    for at, column in enumerate(columns):
        if places.count(at) > 1 or (at not in places and not column.nullable):
            what = "more than one field" if at in places else "no field, and null is none of its values"
            raise UnrepresentableValue(f"its schema has {what} for column {column.name}")
    return chosen


def _check_changed_names(
    fields: Sequence[WrittenField], columns: Sequence[Column], ours: Sequence[WrittenField]
) -> None:
    """Raises `UnrepresentableValue` where a field may be a column whose name its writer has changed without saying."""
    names = {field.name for field in fields}
    for column, our in zip(columns, ours, strict=False):
        if our.field == column.name or column.name in names:
            continue
        for changed in (our.field, avro_name(column.name)):
            if changed in names:
                raise UnrepresentableValue(
                    f"its schema has the field {changed}, which may be column {column.name} or another: call it "
                    f"{changed} in the table, or leave it out"
                )


def _name_of(field: Mapping[str, Any]) -> str:
    """What the database calls a field: its `doc`, where that is the name that was changed and no comment."""
    name, doc = str(field["name"]), str(field.get("doc", ""))
    changed = {avro_field_name(doc), avro_name(doc)}  # the latter by Debezium's `avro`, and by databus before
    return doc if doc and name.rstrip("_") in {spelling.rstrip("_") for spelling in changed} else name


@contextmanager
def _is_schema() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise UnrepresentableValue(f"what it was written in is no schema of Avro: {error!r}") from error


def _shown(avro: Any) -> str:
    if not isinstance(avro, Mapping):
        return str(avro)
    name = avro.get("connect.name") or avro.get("logicalType") or avro.get("name")
    return f"{_shown(avro.get('type'))}{f' ({name})' if name else ''}"
