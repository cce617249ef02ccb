"""The built-in filters: `sql`, `route` and `python`."""

from databus.pipeline.filters._python import PythonConfig, PythonFilter
from databus.pipeline.filters._route import RouteConfig, RouteFilter
from databus.pipeline.filters._sql import SqlConfig, SqlFilter

__all__ = ["PythonConfig", "PythonFilter", "RouteConfig", "RouteFilter", "SqlConfig", "SqlFilter"]
