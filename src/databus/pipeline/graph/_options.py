"""The options of models and the types of plugins, as `databus plugins` shows them and docs/reference.md has them."""

import json
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from databus.core import ConfigError, InputError
from databus.formats import hint_for
from databus.pipeline.graph._registry import NodeKind, is_built_in, plugin_class, plugin_types


@dataclass(frozen=True)
class Option:
    """One option, in Markdown."""

    name: str
    values: str
    default: str
    meaning: str


def options_of(model: type[BaseModel], skip: Sequence[str] = ()) -> Iterator[Option]:
    """The options of a model, except those in `skip`."""
    for name, field in model.model_fields.items():
        if name in skip:
            continue
        meaning = field.description or ""
        if field.examples:
            shown = " or ".join(f"`{_value(example)}`" for example in field.examples)
            meaning = f"{meaning} Example: {shown}"
        yield Option(field.alias or name, _values(field), _default(field), meaning)


def _values(field: FieldInfo) -> str:
    words = _type(field.annotation)
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [
        f"{signs[sign]} {value:,}"
        for constraint in field.metadata
        for sign in signs
        if (value := getattr(constraint, sign, None)) is not None
    ]
    return ", ".join([words, *limits])


_NAMES: Final = {str: "text", SecretStr: "text", int: "integer", float: "number", bool: "true or false", Path: "text"}


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    known = [member for member in inner if member is not type(None)]
    if origin is Literal:
        text = " or ".join(f"`{choice}`" for choice in inner)
    elif origin in (Union, types.UnionType):
        text = " or ".join(map(_type, known))
    elif origin is Annotated:
        text = _type(inner[0])
    elif origin in (list, dict):
        text = ("list of " if origin is list else "") + " to ".join(map(_type, inner))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        text = "options"
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        text = " or ".join(f"`{member.value}`" for member in annotation)
    else:
        text = _NAMES.get(annotation, "anything")
    return text


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel) or value in ({}, []):
        return ""
    return f"`{_value(value)}`"


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        value = {
            name: item.model_dump(mode="json") if isinstance(item, BaseModel) else item for name, item in value.items()
        }
    return str(value) if isinstance(value, str) else json.dumps(value, default=str)


@dataclass(frozen=True)
class Plugin:
    """A type of node."""

    kind: NodeKind
    type: str
    origin: str
    """`built in`, or the class that an entry point names."""
    about: str = ""
    delivery: str = ""
    """Of outputs."""
    options: tuple[Option, ...] = ()
    error: str = ""
    """Why it does not load, if it does not."""


def plugins() -> Iterator[Plugin]:
    """All types with a short name, by kind."""
    for kind in NodeKind:
        for name in plugin_types(kind):
            yield _plugin(kind, name, None)


def plugin(name: str, folder: Path) -> list[Plugin]:
    """The types of this name, at most one of each kind. folder: where files of classes are. Raises `InputError`."""
    if ":" in name:
        plugins_so_called = [_plugin(kind, name, folder) for kind in NodeKind]
        fitting = [candidate for candidate in plugins_so_called if not candidate.error]
        if not fitting:
            raise InputError(plugins_so_called[-1].error)
        return fitting
    kinds = [kind for kind in NodeKind if name in plugin_types(kind)]
    if not kinds:
        types = [type_name for kind in NodeKind for type_name in plugin_types(kind)]
        raise InputError(f'no type called "{name}"; {hint_for(name, dict.fromkeys(types))}; see `databus plugins`')
    return [_plugin(kind, name, folder) for kind in kinds]


def _plugin(kind: NodeKind, name: str, folder: Path | None) -> Plugin:
    origin = "built in" if is_built_in(kind, name) else _origin(kind, name)
    try:
        found_class = plugin_class(kind, name, folder)
    except ConfigError as error:
        return Plugin(kind, name, origin, error=str(error))
    return Plugin(
        kind,
        name,
        origin,
        " ".join((found_class.config_model.__doc__ or "").split()),
        str(getattr(found_class, "delivery", "")),
        tuple(options_of(found_class.config_model, skip=("type",))),
    )


def _origin(kind: NodeKind, name: str) -> str:
    for entry in entry_points(group=f"databus.{kind}", name=name):
        where = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
        return f"{entry.value}{where}"
    return name
