"""Targets compared with their source, row by row. Start with `compare`."""

from databus.pipeline.comparing._batch_audit import Chain, audit
from databus.pipeline.comparing._compare import compare, read_source
from databus.pipeline.comparing._compare_found import Comparison, TableDifference
from databus.pipeline.comparing._trace import Fate, Traced, Verdict, trace

__all__ = [
    "Chain",
    "Comparison",
    "Fate",
    "TableDifference",
    "Traced",
    "Verdict",
    "audit",
    "compare",
    "read_source",
    "trace",
]
