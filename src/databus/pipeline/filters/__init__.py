"""The built-in filters: `sql`, `python`, `route`; over whole tables `where`, `project`, `rename` and `mask`."""

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

__all__ = [
    "MaskConfig",
    "MaskFilter",
    "ProjectConfig",
    "ProjectFilter",
    "PythonConfig",
    "PythonFilter",
    "RenameConfig",
    "RenameFilter",
    "RouteConfig",
    "RouteFilter",
    "SqlConfig",
    "SqlFilter",
    "WhereConfig",
    "WhereFilter",
]
