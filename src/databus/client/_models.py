"""Rows as objects of a model: a dataclass, or one of pydantic's."""

import dataclasses
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from databus.core import InputError, UnrepresentableValue
from databus.schema import TableSchema

T = TypeVar("T")
_Make = Callable[[Mapping[str, Any]], Any]
_MISSING: Final = "missing"
_VALUE_CHARS_MAX: Final = 100


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
        fields = [each for each in dataclasses.fields(model) if each.init]
        adapters = {each.name: _adapter_of(hints[each.name]) for each in fields}
    except Exception as error:
        raise InputError(f"{model.__name__}: the types of its fields cannot be used: {error}") from error
    required = {
        each.name
        for each in fields
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }

    def make(values: Mapping[str, Any]) -> Any:
        lacking = next((name for name in adapters if name in required and name not in values), None)
        if lacking is not None:
            raise _error_of(model, {"type": _MISSING, "loc": (lacking,), "input": None})
        found = {name: each for name, each in adapters.items() if name in values}
        return model(**{name: _checked(model, name, each, values[name]) for name, each in found.items()})

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


def _check_float(model: type, column: str, value: Any, found: Any) -> None:
    """Pydantic's strict mode lets integers and decimals become floats, which may not hold them exactly."""
    if isinstance(found, float) and isinstance(value, int | Decimal):
        details = {"type": "float_type", "loc": (column,), "input": value}
        raise _error_of(model, details)


def _adapter_of(hint: Any) -> TypeAdapter[Any]:
    is_model = isinstance(hint, type) and (issubclass(hint, BaseModel) or dataclasses.is_dataclass(hint))
    # pydantic refuses a configuration for a type that may have its own
    return TypeAdapter(hint) if is_model else TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


def _checked(model: type, name: str, adapter: TypeAdapter[Any], value: Any) -> Any:
    try:
        found = adapter.validate_python(value, strict=True)
        _check_float(model, name, value, found)
        return found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        details = {"type": "value_error", "loc": (name, *first["loc"]), "input": value, "ctx": {"error": first["msg"]}}
        raise _error_of(model, details) from error


def _error_of(model: type, details: dict[str, Any]) -> ValidationError:
    return ValidationError.from_exception_data(model.__name__, [cast("Any", details)])
