"""Kinds of inputs, filters and outputs by name: the built-in ones, and users' own.

A distribution offers its own with entry points of the groups `databus.inputs`, `databus.filters` and
`databus.outputs`, each naming a class with the contract of its kind. Without a distribution, `type` names the class
itself: `mypackage.outputs:Queue`, or `queue.py:Queue`, a file beside the pipeline's.
"""

import importlib.util
import sys
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pydantic import BaseModel

from databus.core import ConfigError
from databus.formats import hint_for
from databus.plugins import Filter, Input, Output, TakesFrames, misspelt

_CLASSES_MAX: Final = 1_000


class NodeKind(StrEnum):
    """The three kinds of nodes, by the name of their section."""

    INPUT = "inputs"
    FILTER = "filters"
    OUTPUT = "outputs"

    @property
    def word(self) -> str:
        """One of them, in a sentence."""
        return self.value.removesuffix("s")


_BASES: Final[Mapping[NodeKind, type]] = {NodeKind.INPUT: Input, NodeKind.FILTER: Filter, NodeKind.OUTPUT: Output}
_BUILT_IN: Final[Mapping[NodeKind, Mapping[str, str]]] = {
    NodeKind.INPUT: {
        "databus": "databus.pipeline.inputs:DatabusInput",
        "mock": "databus.pipeline.inputs:MockInput",
    },
    NodeKind.FILTER: {
        "dedupe": "databus.pipeline.filters:DedupeFilter",
        "mask": "databus.pipeline.filters:MaskFilter",
        "outbox": "databus.pipeline.filters:OutboxFilter",
        "project": "databus.pipeline.filters:ProjectFilter",
        "python": "databus.pipeline.filters:PythonFilter",
        "rename": "databus.pipeline.filters:RenameFilter",
        "route": "databus.pipeline.filters:RouteFilter",
        "sample": "databus.pipeline.filters:SampleFilter",
        "sql": "databus.pipeline.filters:SqlFilter",
        "tombstones": "databus.pipeline.filters:TombstonesFilter",
        "unnest": "databus.pipeline.filters:UnnestFilter",
        "where": "databus.pipeline.filters:WhereFilter",
    },
    NodeKind.OUTPUT: {
        "console": "databus.sinks._console:ConsoleOutput",
        "count": "databus.sinks._mock:CountOutput",
        "delta": "databus.sinks.delta._output:DeltaOutput",
        "elasticsearch": "databus.sinks.search._output:ElasticsearchOutput",
        "files": "databus.sinks.files._output:FilesOutput",
        "http": "databus.sinks.http._output:HttpOutput",
        "kafka": "databus.sinks.kafka._output:KafkaOutput",
        "mock": "databus.sinks._mock:MockOutput",
        "opensearch": "databus.sinks.search._output:OpenSearchOutput",
        "stream": "databus.sinks.stream._output:StreamOutput",
    },
}


def is_built_in(kind: NodeKind, type_name: str) -> bool:
    """Whether a type comes with databus."""
    return type_name in _BUILT_IN[kind]


def plugin_types(kind: NodeKind) -> list[str]:
    """The names of all types of a kind."""
    return sorted({*_BUILT_IN[kind], *(entry.name for entry in entry_points(group=f"databus.{kind}"))})


def plugin_class(kind: NodeKind, type_name: str, folder: Path | None = None) -> Any:
    """The class of a type; loaded again if it is in a file that has changed. folder: where files of classes are.

    Raises `ConfigError`, without a path, for an unknown name, a class that does not load, and one of another kind.
    """
    where = type_name.rpartition(":")[0]
    return _class_of(kind, type_name, folder, _digest((folder or Path()) / where) if where.endswith(".py") else "")


def _digest(path: Path) -> str:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError:  # loading it reports that
        return ""


@lru_cache(_CLASSES_MAX)
def _class_of(kind: NodeKind, type_name: str, folder: Path | None, digest: str) -> Any:
    del digest
    if type_name in _BUILT_IN[kind]:
        module, _, name = _BUILT_IN[kind][type_name].partition(":")
        return getattr(import_module(module), name)
    if ":" in type_name:
        return _checked(kind, type_name, _loaded(type_name, folder or Path()))
    for entry in entry_points(group=f"databus.{kind}", name=type_name):
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # a plugin's module may raise anything
            raise ConfigError(
                f'type "{type_name}" comes from {entry.value}, which does not load: {type(error).__name__}: {error}'
            ) from error
        return _checked(kind, type_name, loaded)
    raise ConfigError(f'no type of {kind.word} called "{type_name}"; {hint_for(type_name, plugin_types(kind))}')


def _loaded(type_name: str, folder: Path) -> Any:
    where, _, name = type_name.rpartition(":")
    try:
        module = _module_of(folder / where) if where.endswith(".py") else import_module(where)
        loaded = getattr(module, name, None)
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything
        raise ConfigError(f'type "{type_name}" does not load: {type(error).__name__}: {error}') from error
    if loaded is None:
        raise ConfigError(f'type "{type_name}" does not load: {where} has no class {name}')
    return loaded


def _module_of(path: Path) -> ModuleType:
    """A file as a module under a name of its own. The module is not left in `sys.modules`, so Spark sends its functions
    by value: other processes could not import it.
    """
    name = f"databus_plugin_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look here for the names in annotations
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _checked(kind: NodeKind, type_name: str, loaded: Any) -> Any:
    base = _BASES[kind]
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise ConfigError(f'type "{type_name}": {loaded!r} is no subclass of databus.pipeline.{base.__name__}')
    missing = sorted(getattr(loaded, "__abstractmethods__", ()))
    if issubclass(loaded, Output) and not issubclass(loaded, TakesFrames):
        way = "write" if loaded.part_writer is Output.part_writer else "commit"
        missing += [way] if getattr(loaded, way) is getattr(Output, way) else []
    if missing:
        raise ConfigError(f'type "{type_name}": has no {" and no ".join(missing)}, which its contract asks for')
    for own, meant in misspelt(loaded) if issubclass(loaded, Output) else ():
        raise ConfigError(
            f'type "{type_name}": has {own}, which no contract knows; did you mean {meant}? Begin a name of your own '
            f"with an underscore"
        )
    model = getattr(loaded, "config_model", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ConfigError(f'type "{type_name}": has no `config_model` with its options')
    return loaded
