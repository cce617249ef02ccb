"""The built-in filters: `sql`, `python`, `route`; over whole tables `where`, `project`, `rename`, `mask`, `sample`,
`dedupe`, `tombstones`, `outbox` and `unnest`.
"""

from databus.pipeline.filters._changes import (
    DedupeConfig,
    DedupeFilter,
    OutboxConfig,
    OutboxFilter,
    SampleConfig,
    SampleFilter,
    TombstonesConfig,
    TombstonesFilter,
)
from databus.pipeline.filters._mask import MaskConfig, MaskFilter
from databus.pipeline.filters._python import PythonConfig, PythonFilter
from databus.pipeline.filters._route import RouteConfig, RouteFilter
from databus.pipeline.filters._sql import SqlConfig, SqlFilter
from databus.pipeline.filters._tablewide import (
    ProjectConfig,
    ProjectFilter,
    RenameConfig,
    RenameFilter,
    WhereConfig,
    WhereFilter,
)
from databus.pipeline.filters._unnest import UnnestConfig, UnnestFilter

__all__ = [
    "DedupeConfig",
    "DedupeFilter",
    "MaskConfig",
    "MaskFilter",
    "OutboxConfig",
    "OutboxFilter",
    "ProjectConfig",
    "ProjectFilter",
    "PythonConfig",
    "PythonFilter",
    "RenameConfig",
    "RenameFilter",
    "RouteConfig",
    "RouteFilter",
    "SampleConfig",
    "SampleFilter",
    "SqlConfig",
    "SqlFilter",
    "TombstonesConfig",
    "TombstonesFilter",
    "UnnestConfig",
    "UnnestFilter",
    "WhereConfig",
    "WhereFilter",
]
