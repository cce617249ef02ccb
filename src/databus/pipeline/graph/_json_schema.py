"""The JSON Schema of a pipeline's file, for editors, made from the models that check it.

It is less strict than `databus validate`, which also checks references and combinations.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from databus.core import ConfigError
from databus.pipeline.graph._config import PipelineSections, RelaySection
from databus.pipeline.graph._registry import NodeKind, plugin_class, plugin_types
from databus.sources import source_model, source_types

Json = dict[str, Any]
_REFERENCE: Final = {"type": "string", "pattern": r"\$\{"}
_LEAVES: Final = frozenset({"integer", "number", "boolean", "string"})
_OF_THE_RELAY: Final = ("tls", "log", "capture", "serve")
_Mode = Literal["validation"]
_MODE: Final[_Mode] = "validation"


def pipeline_schema() -> Json:
    """The schema, without the types of plugins that do not load."""
    from databus.relay import RelayConfig

    nodes = {kind: dict(_models_of(kind)) for kind in NodeKind}
    sources = {name: source_model(name) for name in source_types()}
    models: list[type[BaseModel]] = [PipelineSections, RelayConfig, *sources.values()]
    models += [model for node in nodes.values() for model in node.values()]
    places, generated = models_json_schema(
        [(model, _MODE) for model in dict.fromkeys(models)], ref_template="#/$defs/{model}"
    )
    refs = {model: places[model, _MODE] for model in models}
    definitions: Json = generated["$defs"]
    top = _of(refs[PipelineSections], definitions)
    for kind, models_by_name in nodes.items():
        top["properties"][kind] |= _by_name(models_by_name, refs, definitions)
    top["properties"]["sources"] |= _by_name(sources, refs, definitions)
    own, relay = _of(refs[RelayConfig], definitions), definitions[RelaySection.__name__]
    for name in _OF_THE_RELAY:
        relay["properties"][name] = {**own["properties"][name], **_described(relay["properties"][name])}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "databus: a pipeline", **top}
    schema["$defs"] = definitions
    whole: Json = _with_references(schema)
    return whole


def _models_of(kind: NodeKind) -> Iterator[tuple[str, type[BaseModel]]]:
    for name in plugin_types(kind):
        try:
            yield name, plugin_class(kind, name).config_model
        except ConfigError:  # `databus plugins list` says so
            continue


def _of(ref: Mapping[str, str], definitions: Json) -> Json:
    definition: Json = definitions[ref["$ref"].rpartition("/")[2]]
    return definition


def _described(value: Json) -> Json:
    return {key: text for key, text in value.items() if key == "description"}


def _by_name(models: Mapping[str, type[BaseModel]], refs: Mapping[Any, Any], definitions: Json) -> Json:
    """For a section whose keys are names: the options of each, by its `type`."""
    cases = []
    for name, model in models.items():
        _of(refs[model], definitions)["properties"]["type"] = {"const": name}
        cases.append({"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": refs[model]})
    kinds = {"anyOf": [{"enum": list(models)}, {"type": "string", "pattern": ":"}]}  # a class of the user's own
    return {
        "additionalProperties": {"type": "object", "required": ["type"], "properties": {"type": kinds}, "allOf": cases}
    }


def _with_references(value: Any) -> Any:
    """The same schema, in which any value may be a text with `${NAME}`."""
    if isinstance(value, list):
        return [_with_references(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "const" in value or ("enum" in value and "type" not in value):
        return value
    if isinstance(value.get("type"), str) and value["type"] in _LEAVES and _narrows(value):
        about = {key: option for key, option in value.items() if key in ("description", "title", "default", "examples")}
        rest = {key: option for key, option in value.items() if key not in about}
        return {**about, "anyOf": [rest, _REFERENCE]}
    kept = ("default", "examples")
    return {key: option if key in kept else _with_references(option) for key, option in value.items()}


def _narrows(value: Json) -> bool:
    """Whether the schema forbids some texts."""
    return value["type"] != "string" or bool(value.keys() & {"enum", "pattern", "minLength", "maxLength", "format"})
