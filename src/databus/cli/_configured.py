"""The physical sources of a pipeline's file or a relay's."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from databus.sources import SourceConfig


def is_pipeline(path: Path) -> bool:
    """Whether a file is a pipeline's: only that says where rows go.

    One that cannot be read is taken for a pipeline's, whose loader says what is wrong with it.
    """
    from databus.core import ConfigError
    from databus.formats import load_yaml

    try:
        return bool(load_yaml(path).keys() & {"inputs", "outputs"})
    except ConfigError:
        return True


def sources_in(path: Path) -> "Mapping[str, SourceConfig]":
    """All of them, by name."""
    if is_pipeline(path):
        from databus.pipeline import load_pipeline

        return load_pipeline(path).config.sources
    from databus.relay import load_relay

    return load_relay(path).sources


def source_in(path: Path, physical: str) -> "SourceConfig":
    """The one of that name. Raises `UnknownSource` with the nearest name."""
    from difflib import get_close_matches

    from databus.core import UnknownSource

    sources = sources_in(path)
    if physical in sources:
        return sources[physical]
    near = get_close_matches(physical, sources, 1)
    there = ", ".join(sources) or "none: sources are in the file of the relay that captures them; name that file"
    hint = f'did you mean "{near[0]}"?' if near else f"there are {there}"
    raise UnknownSource(f'{path}: no physical source called "{physical}"; {hint}')
