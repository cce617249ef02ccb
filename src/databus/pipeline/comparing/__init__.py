"""Targets compared with their source, row by row. Start with `compare`."""

from databus.pipeline.comparing._compare import compare
from databus.pipeline.comparing._compare_found import Comparison, TableDifference
from databus.pipeline.comparing._compare_source import read_source

__all__ = ["Comparison", "TableDifference", "compare", "read_source"]
