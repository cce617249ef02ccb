"""docs/reference.md, from the models that check configuration."""

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel

from databus.pipeline.graph._config import FilterTest, PipelineSections, RelaySection, RunSection, SparkSection
from databus.pipeline.graph._options import Option, options_of
from databus.pipeline.graph._registry import NodeKind, plugin_class, plugin_types
from databus.plugins import FilterConfig, OutputConfig, TablesFilterConfig
from databus.relay import RelayConfig
from databus.sources import SourceConfig, source_model, source_types
from databus.spark import DatabusOptions

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
    return "\n".join(_table(model)).strip()


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "## A pipeline's file\n"
    yield from _table(PipelineSections)
    for name, model in (("relay", RelaySection), ("spark", SparkSection), ("run", RunSection)):
        yield from _section(f"### `{name}`", model)
    for kind in NodeKind:
        yield f"## `{kind}`\n"
        yield from _commons(_COMMON[kind])
        for type_name in plugin_types(kind):
            plugin = plugin_class(kind, type_name)
            title = f"{kind.word} `{type_name}`"
            yield from _section(f"### {title}", plugin.config_model, _COMMON[kind])
            if kind is NodeKind.OUTPUT:
                yield f"Delivery: `{plugin.delivery}`.\n"
            yield from _below(title, plugin.config_model, _COMMON[kind])
    yield from _section("## `tests`", FilterTest)
    yield "## `sources`\n"
    yield from _commons(_OF_SOURCES)
    for type_name in source_types():
        yield from _section(f"### source `{type_name}`", source_model(type_name), _OF_SOURCES)
        yield from _below(f"source `{type_name}`", source_model(type_name), _OF_SOURCES)
    yield "## A relay's file\n"
    yield from _table(RelayConfig)
    for name in ("access", "tls", "log", "capture", "serve", "bootstrap", "registry"):
        annotation = RelayConfig.model_fields[name].annotation
        yield from _section(f"### relay `{name}`", next(iter(get_args(annotation)), annotation))
    yield '## Options of Spark\'s `format("databus")`\n'
    yield from _table(DatabusOptions)


_Commons = Mapping[str, type[BaseModel]]
"""Models whose options are common to others, by their title, the most general first."""
_COMMON: Final[Mapping[NodeKind, _Commons]] = {
    NodeKind.INPUT: {},
    NodeKind.FILTER: {"Every filter": FilterConfig, "Every filter over whole tables": TablesFilterConfig},
    NodeKind.OUTPUT: {"Every output": OutputConfig},
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


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield from _rows(options_of(model))


def _rows(options: Iterable[Option]) -> Iterator[str]:
    yield "| option | values | default | meaning |"
    yield "|---|---|---|---|"
    for option in options:
        cells = (f"`{option.name}`", option.values, option.default, option.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
