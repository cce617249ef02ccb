"""Targets compared with their source, row by row. Start with `compare`."""

from databus.pipeline.comparing._batch_audit import Chain, audit
from databus.pipeline.comparing._compare import compare
from databus.pipeline.comparing._compare_found import Comparison, TableDifference
from databus.pipeline.comparing._compare_source import read_source

__all__ = ["Chain", "Comparison", "TableDifference", "audit", "compare", "read_source"]
