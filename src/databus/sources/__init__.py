"""How changes are read: one folder per database, each a `Source`. Start with `databus.sources._contract`."""

from databus.core import Contains, Identity
from databus.log import Resume
from databus.sources._config import ColumnChoice, LocalPath, SourceConfig
from databus.sources._contract import Source, SourceLag
from databus.sources._registry import open_source, parse_source, source_model, source_types

__all__ = [
    "ColumnChoice",
    "Contains",
    "Identity",
    "LocalPath",
    "Resume",
    "Source",
    "SourceConfig",
    "SourceLag",
    "open_source",
    "parse_source",
    "source_model",
    "source_types",
]
