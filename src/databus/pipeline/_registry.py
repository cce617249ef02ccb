"""Kinds of inputs, filters and outputs by name: the built-in ones, and users' own by entry points.

A distribution offers its own with entry points of the groups `databus.inputs`, `databus.filters` and
`databus.outputs`, each naming a class with the contract of its kind.
"""

import difflib
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from databus.core import ConfigError


class Kind(StrEnum):
    """The three kinds of nodes, by the name of their section."""

    INPUT = "inputs"
    FILTER = "filters"
    OUTPUT = "outputs"

    @property
    def word(self) -> str:
        """One of them, in a sentence."""
        return self.value.removesuffix("s")


_BUILT_IN: Final[Mapping[Kind, Mapping[str, str]]] = {
    Kind.INPUT: {
        "databus": "databus.pipeline.inputs:DatabusInput",
        "mock": "databus.pipeline.inputs:MockInput",
    },
    Kind.FILTER: {
        "mask": "databus.pipeline.filters:MaskFilter",
        "project": "databus.pipeline.filters:ProjectFilter",
        "python": "databus.pipeline.filters:PythonFilter",
        "rename": "databus.pipeline.filters:RenameFilter",
        "route": "databus.pipeline.filters:RouteFilter",
        "sql": "databus.pipeline.filters:SqlFilter",
        "where": "databus.pipeline.filters:WhereFilter",
    },
    Kind.OUTPUT: {
        "console": "databus.pipeline.outputs:ConsoleOutput",
        "count": "databus.pipeline.outputs:CountOutput",
        "delta": "databus.pipeline.outputs:DeltaOutput",
        "files": "databus.pipeline.outputs:FilesOutput",
        "mock": "databus.pipeline.outputs:MockOutput",
    },
}


def plugin_types(kind: Kind) -> list[str]:
    """The names of all types of a kind."""
    return sorted({*_BUILT_IN[kind], *(entry.name for entry in entry_points(group=f"databus.{kind}"))})


@cache
def plugin_class(kind: Kind, type_name: str) -> Any:
    """The class of a type. Raises `ConfigError`, without a path, for a name that is none or one that does not load."""
    if type_name in _BUILT_IN[kind]:
        module, _, name = _BUILT_IN[kind][type_name].partition(":")
        return getattr(import_module(module), name)
    for entry in entry_points(group=f"databus.{kind}", name=type_name):
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f'type "{type_name}" comes from {entry.value}, which does not load: {error}') from error
    types = plugin_types(kind)
    near = difflib.get_close_matches(type_name, types, 1)
    hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(types)}"
    raise ConfigError(f'no type of {kind.word} called "{type_name}"; {hint}')
