"""Kinds of sources by name: the built-in ones, and users' own by entry points of the group `databus.sources`.

A kind is named by `module:Class`, where the class is called with (physical, config) and has an attribute
`config_model`, the pydantic model of its options. What else it may offer is in `_capabilities`.
"""

import difflib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

from databus.core import ConfigError, Contains, UnsupportedFeature, how_to_install
from databus.formats import validated
from databus.sources._config import SourceConfig
from databus.sources._contract import Source

_BUILT_IN: Final = {
    "binlog": "databus.sources.mysql:BinlogSource",
    "kafka": "databus.sources.kafka:KafkaSource",
    "mock": "databus.sources.mock:MockSource",
    "mysql": "databus.sources.mysql:MysqlSource",
    "relay": "databus.sources.relay:RelaySource",
    "sqlite": "databus.sources.sqlite:SqliteSource",
    "stream": "databus.sources.stream:StreamSource",
}
_NEEDS_MYSQL: Final = {"pymysql": "PyMySQL", "numba": "numba"}
_NEEDS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "binlog": ("mysql", _NEEDS_MYSQL),
    "kafka": ("kafka", {"confluent_kafka": "confluent-kafka"}),
    "mysql": ("mysql", _NEEDS_MYSQL),
}
"""By kind: its extra, and the packages of that by the name that they are imported by."""

_BY_SCHEME: Final = {"domains": "mysql", "file-offset": "mysql", "gtid": "mysql", "count": "mock"}
"""By how SCNs are made: the kind of source that knows whether a position contains a transaction."""

GROUP: Final = "databus.sources"


def source_types() -> list[str]:
    """The names of all kinds of sources."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def _class_of(type_name: str, where: str) -> Any:
    if type_name in _BUILT_IN:
        extra, needs = _NEEDS.get(type_name, ("", {}))
        missing = [name for module, name in needs.items() if find_spec(module) is None]
        if missing:
            raise ConfigError(
                f"{where}.type: {type_name} needs {' and '.join(missing)}, which this Python does not have: "
                f"{how_to_install(extra)}"
            )
        module, _, name = _BUILT_IN[type_name].partition(":")
        return getattr(import_module(module), name)
    for entry in entry_points(group=GROUP, name=type_name):
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f'{where}.type: "{type_name}" comes from {entry.value}, which does not load: {error}'
            ) from error
    near = ["mysql"] if type_name == "mariadb" else difflib.get_close_matches(type_name, source_types(), 1)
    hint = f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(source_types())}"
    raise ConfigError(f'{where}.type: no kind of source called "{type_name}"{hint}')


def source_model(type_name: str) -> type[SourceConfig]:
    """The options of a kind of source. Raises `ConfigError` for an unknown name."""
    return cast(type[SourceConfig], _class_of(type_name, "source").config_model)


def parse_source(value: Mapping[str, Any], where: str, folder: Path | None = None) -> SourceConfig:
    """Validate one physical source's options. Raises `ConfigError` naming every wrong path below `where` at once.

    folder: where relative paths in them start; without it they stay as they are.
    """
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str):
        raise ConfigError(f"{where}.type: missing; there are {', '.join(source_types())}")
    model = cast(type[SourceConfig], _class_of(kind, where).config_model)
    return validated(model, dict(value), where, context={"folder": folder})


def offers(config: SourceConfig, capability: Any) -> bool:
    """Whether the kind of source that `config` describes offers that protocol of `_capabilities`."""
    return isinstance(_class_of(config.type, "source"), capability)


def offered(capability: Any, config: SourceConfig, physical: str) -> Any:
    """The class of the source that `config` describes, for what it offers: a protocol of `_capabilities`.

    Raises `UnsupportedFeature` where it does not, naming the kinds that do.
    """
    cls = _class_of(config.type, physical)
    if isinstance(cls, capability):
        return cls
    others = ", ".join(name for name in source_types() if _is_offered_by(name, capability)) or "none"
    word = capability.__name__.lower()
    raise UnsupportedFeature(f"{physical}: a source of type {config.type} is not {word}; types that are: {others}")


def all_offered(capability: Any) -> dict[str, Any]:
    """The classes of all kinds of sources that offer a protocol of `_capabilities`, and that can be had here."""
    return {name: _class_of(name, "source") for name in source_types() if _is_offered_by(name, capability)}


def _is_offered_by(type_name: str, capability: Any) -> bool:
    try:
        return isinstance(_class_of(type_name, "source"), capability)
    except ConfigError:  # a package that it needs is not there
        return False


def contains_of(scheme: str) -> Contains | None:
    """How positions of that scheme are compared with transactions; None where no installed source knows the scheme."""
    try:
        contains: Contains | None = getattr(_class_of(_BY_SCHEME[scheme], "source"), "contains", None)
    except (KeyError, ConfigError):  # a package that it needs is not there
        return None
    return contains


def open_source(physical: str, config: SourceConfig) -> Source:
    """Make the source that `config` describes; it connects when first asked something."""
    return cast(Source, _class_of(config.type, physical)(physical, config))
