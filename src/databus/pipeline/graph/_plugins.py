"""What types of nodes there are, where they come from, and what options they have. Start with `plugins`."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from databus.core import ConfigError, InputError
from databus.pipeline.graph._reference import Option, options_of
from databus.pipeline.graph._registry import Kind, is_built_in, plugin_class, plugin_types


@dataclass(frozen=True)
class Plugin:
    """A type of node. origin: `built in`, or what an entry point names. error: why it does not load; empty if it does.

    delivery: of outputs.
    """

    kind: Kind
    type: str
    origin: str
    about: str = ""
    delivery: str = ""
    options: tuple[Option, ...] = ()
    error: str = ""


def plugins() -> Iterator[Plugin]:
    """All types that have a short name, by kind."""
    for kind in Kind:
        for name in plugin_types(kind):
            yield _plugin(kind, name, None)


def plugin(name: str, folder: Path) -> list[Plugin]:
    """The types of this name, at most one of a kind; one in a file is looked for in `folder`. Raises `InputError`."""
    if ":" in name:
        found = [_plugin(kind, name, folder) for kind in Kind]
        fitting = [each for each in found if not each.error]
        if not fitting:
            raise InputError(found[-1].error)
        return fitting
    kinds = [kind for kind in Kind if name in plugin_types(kind)]
    if not kinds:
        near = difflib.get_close_matches(name, [each for kind in Kind for each in plugin_types(kind)], 1)
        if near:
            raise InputError(f'no type called "{name}"; did you mean "{near[0]}"?')
        there = "; ".join(f"{kind}: {', '.join(plugin_types(kind))}" for kind in Kind)
        raise InputError(f'no type called "{name}"; there are {there}')
    return [_plugin(kind, name, folder) for kind in kinds]


def _plugin(kind: Kind, name: str, folder: Path | None) -> Plugin:
    origin = "built in" if is_built_in(kind, name) else _origin(kind, name)
    try:
        found = plugin_class(kind, name, folder)
    except ConfigError as error:
        return Plugin(kind, name, origin, error=str(error))
    return Plugin(
        kind,
        name,
        origin,
        " ".join((found.config_model.__doc__ or "").split()),
        str(getattr(found, "delivery", "")),
        tuple(options_of(found.config_model, skip=("type",))),
    )


def _origin(kind: Kind, name: str) -> str:
    for entry in entry_points(group=f"databus.{kind}", name=name):
        where = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
        return f"{entry.value}{where}"
    return name
