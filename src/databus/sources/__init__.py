"""How changes are read: one folder per database, each a `Source`. Start with `databus.sources._contract`."""

from databus.core import Contains, Identity
from databus.log import Resume
from databus.sources._capabilities import (
    CancelsSnapshots,
    Checkable,
    Comparable,
    Describable,
    Finding,
    Movable,
    Preparable,
    Severity,
    Skippable,
)
from databus.sources._config import ColumnChoice, LocalPath, SourceConfig, SourceName
from databus.sources._contract import ScnCounter, Source, SourceLag
from databus.sources._copying import Copying, RelayHop
from databus.sources._oracle import Oracle, OracleTable, Reading, Row
from databus.sources._registry import (
    all_offered,
    offered,
    offers,
    open_source,
    parse_source,
    source_model,
    source_types,
)

__all__ = [
    "CancelsSnapshots",
    "Checkable",
    "ColumnChoice",
    "Comparable",
    "Contains",
    "Copying",
    "Describable",
    "Finding",
    "Identity",
    "LocalPath",
    "Movable",
    "Oracle",
    "OracleTable",
    "Preparable",
    "Reading",
    "RelayHop",
    "Resume",
    "Row",
    "ScnCounter",
    "Severity",
    "Skippable",
    "Source",
    "SourceConfig",
    "SourceLag",
    "SourceName",
    "all_offered",
    "offered",
    "offers",
    "open_source",
    "parse_source",
    "source_model",
    "source_types",
]
