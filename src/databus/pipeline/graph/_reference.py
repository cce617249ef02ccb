"""The reference of configuration, docs/reference.md, made from the models that check it."""

import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from databus.pipeline.graph._config import FilterTest, PipelineSections, RelaySection, RunSection, SparkSection
from databus.pipeline.graph._registry import Kind, is_built_in, plugin_class, plugin_types
from databus.plugins import FilterConfig, OutputConfig, TablesFilterConfig
from databus.sources import SourceConfig, source_model, source_types

_HEAD: Final = """\
# Reference of configuration

Written from the code by `make docs`; do not edit.

Text may hold references, replaced after the file has been parsed: `${NAME}`, `${NAME:default}`, `${file:PATH}`; `$${`
stands for itself. Relative paths start at the file's own folder. `databus validate` finds every mistake at once.
"""


def reference_markdown() -> str:
    """The whole page."""
    return "\n".join(_lines()).rstrip() + "\n"


def options_markdown(model: type[BaseModel]) -> str:
    """The table of one model's options."""
    return "\n".join(_table(model, skip=())).strip()


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "## A pipeline's file\n"
    yield from _table(PipelineSections, skip=())
    for name, model in (("relay", RelaySection), ("spark", SparkSection), ("run", RunSection)):
        yield from _section(f"### `{name}`", model)
    for kind in Kind:
        yield f"## `{kind}`\n"
        yield from _commons(_COMMON[kind])
        for type_name in plugin_types(kind):
            plugin = plugin_class(kind, type_name)
            title = f"{kind.word} `{type_name}`"
            yield from _section(f"### {title}", plugin.config_model, _COMMON[kind])
            if kind is Kind.OUTPUT:
                yield f"Delivery: `{plugin.delivery}`.\n"
            yield from _below(title, plugin.config_model, _COMMON[kind])
    yield from _section("## `tests`", FilterTest)
    yield "## `sources`\n"
    yield from _commons(_OF_SOURCES)
    for type_name in source_types():
        yield from _section(f"### source `{type_name}`", source_model(type_name), _OF_SOURCES)
        yield from _below(f"source `{type_name}`", source_model(type_name), _OF_SOURCES)
    yield "## A relay's file\n"
    from databus.relay import RelayConfig

    yield from _table(RelayConfig, skip=())
    for name in ("access", "tls", "log", "capture", "serve", "bootstrap", "registry"):
        annotation = RelayConfig.model_fields[name].annotation
        yield from _section(f"### relay `{name}`", next(iter(get_args(annotation)), annotation))
    yield '## Options of Spark\'s `format("databus")`\n'
    from databus.spark import DatabusOptions

    yield from _table(DatabusOptions, skip=())


_Commons = Mapping[str, type[BaseModel]]
"""Models whose options are common to others, by their title, the most general first."""
_COMMON: Final[Mapping[Kind, _Commons]] = {
    Kind.INPUT: {},
    Kind.FILTER: {"Every filter": FilterConfig, "Every filter over whole tables": TablesFilterConfig},
    Kind.OUTPUT: {"Every output": OutputConfig},
}
_OF_SOURCES: Final[_Commons] = {"Every source": SourceConfig}


def _commons(commons: _Commons) -> Iterator[str]:
    seen: list[Option] = []
    for title, model in commons.items():
        yield f"### {title}\n"
        if seen:
            yield "Beside those above:\n"
        options = [option for option in options_of(model, ("type",)) if option not in seen]
        yield from _rows(options)
        seen += options
        yield from _below(title[0].lower() + title[1:], model)


def _section(title: str, model: Any, commons: _Commons = types.MappingProxyType({})) -> Iterator[str]:
    yield f"{title}\n"
    yield f"{' '.join((model.__doc__ or '').split())}\n"
    options, among = list(options_of(model, ("type",))), None
    for name, common in commons.items():
        if issubclass(model, common):
            shared = list(options_of(common, ("type",)))
            options, among = [option for option in options if option not in shared], name
    if among is not None:
        link = f"[{among[0].lower()}{among[1:]}](#{among.lower().replace(' ', '-')})"
        yield f"{'Beside' if options else 'Has'} the options of {link}{':' if options else '.'}\n"
    if options or among is None:
        yield from _rows(options)


def _below(title: str, model: type[BaseModel], commons: _Commons = types.MappingProxyType({})) -> Iterator[str]:
    """The options inside options, such as `create_topics` of an output, at any depth."""
    shared = {name for common in commons.values() for name in common.model_fields}
    for name, field in model.model_fields.items():
        for inner in () if name in shared else _models_in(field.annotation):
            yield from _section(f"#### `{field.alias or name}` of {title}", inner)
            yield from _below(f"`{field.alias or name}` of {title}", inner)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _table(model: type[BaseModel], skip: tuple[str, ...]) -> Iterator[str]:
    yield from _rows(options_of(model, skip))


def _rows(options: "Iterable[Option]") -> Iterator[str]:
    yield "| option | values | default | meaning |"
    yield "|---|---|---|---|"
    for option in options:
        cells = (f"`{option.name}`", option.values, option.default, option.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


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

    kind: Kind
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
    for kind in Kind:
        for name in plugin_types(kind):
            yield _plugin(kind, name, None)


def plugin(name: str, folder: Path) -> list[Plugin]:
    """The types of this name, at most one of each kind. folder: where files of classes are. Raises `InputError`."""
    if ":" in name:
        plugins_so_called = [_plugin(kind, name, folder) for kind in Kind]
        fitting = [candidate for candidate in plugins_so_called if not candidate.error]
        if not fitting:
            raise InputError(plugins_so_called[-1].error)
        return fitting
    kinds = [kind for kind in Kind if name in plugin_types(kind)]
    if not kinds:
        types = [type_name for kind in Kind for type_name in plugin_types(kind)]
        raise InputError(f'no type called "{name}"; {hint_for(name, dict.fromkeys(types))}; see `databus plugins`')
    return [_plugin(kind, name, folder) for kind in kinds]


def _plugin(kind: Kind, name: str, folder: Path | None) -> Plugin:
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


def _origin(kind: Kind, name: str) -> str:
    for entry in entry_points(group=f"databus.{kind}", name=name):
        where = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
        return f"{entry.value}{where}"
    return name
