"""What is wrong with targets in object stores: their URIs, options that no store has, and stores that do not answer."""

from collections.abc import Iterator

from databus.core import ConfigError, DatabusError
from databus.disk import Location, StoreLocation, is_uri
from databus.pipeline.graph import Kind, NodeSpec, PipelineConfig, Problem


def check_path(node: NodeSpec, config: PipelineConfig) -> Iterator[Problem]:
    """A `path` that its output cannot write to. Nothing is asked."""
    path, where = node.config.path, f"{node.path}.path"
    is_file = path.startswith("file:")
    if (is_uri(path) or is_file) and not getattr(node.config, "takes_stores", False):
        yield Problem(where, f"{path} is no folder; {node.type} writes to folders of this machine, mounted ones too")
        return
    from databus.sinks import path_of, root_of

    try:
        place = root_of(path, config.context_of(node.name))
        if isinstance(place, StoreLocation):
            place.open()
            path_of(path, config.context_of(node.name), "shop", "main.orders")
    except ConfigError as error:
        yield Problem(where, str(error))


def check_stores(config: PipelineConfig) -> Iterator[Problem]:
    """Stores that do not answer, or do not let us in. Each is asked once."""
    from databus.sinks import root_of

    asked: dict[str, str] = {}
    for node in config.nodes.values():
        path = getattr(node.config, "path", None)
        if node.kind is not Kind.OUTPUT or not isinstance(path, str) or any(check_path(node, config)):
            continue
        place = root_of(path, config.context_of(node.name))
        message = asked[str(place)] if str(place) in asked else _trouble_with(place)
        asked[str(place)] = message
        if message:
            yield Problem(f"{node.path}.path", message)


def _trouble_with(place: Location) -> str:
    try:
        place.check()
    except DatabusError as error:
        return str(error).removesuffix("; this is tried again")
    return ""
