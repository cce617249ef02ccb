"""Spark imports every top-level module called `pyspark_*` and registers its `DefaultSource`: `format("databus")`."""

from databus.spark import DatabusSource as DefaultSource

__all__ = ["DefaultSource"]
