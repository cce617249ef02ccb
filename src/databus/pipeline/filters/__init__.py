"""The built-in filters: `sql`, `python`, `route`; over whole tables `where`, `project`, `rename`, `mask`, `sample`,
`dedupe`, `tombstones`, `outbox` and `unnest`.
"""

from databus.pipeline.filters._changes import DedupeFilter, OutboxFilter, SampleFilter, TombstonesFilter
from databus.pipeline.filters._python import PythonFilter
from databus.pipeline.filters._route import RouteFilter
from databus.pipeline.filters._sql import SqlFilter
from databus.pipeline.filters._tablewide import MaskFilter, ProjectFilter, RenameFilter, UnnestFilter, WhereFilter

__all__ = [
    "DedupeFilter",
    "MaskFilter",
    "OutboxFilter",
    "ProjectFilter",
    "PythonFilter",
    "RenameFilter",
    "RouteFilter",
    "SampleFilter",
    "SqlFilter",
    "TombstonesFilter",
    "UnnestFilter",
    "WhereFilter",
]
