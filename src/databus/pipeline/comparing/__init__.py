"""Targets compared with their source, row by row. Start with `compare`."""

from databus.pipeline.comparing._batch_audit import Audited, audit
from databus.pipeline.comparing._batch_chain import Chain, RangeCounts
from databus.pipeline.comparing._compare import compare, read_source
from databus.pipeline.comparing._differences import Comparison, TableDifference
from databus.pipeline.comparing._table_lineage import TableLineage, table_lineages
from databus.pipeline.comparing._trace import Fate, Traced, Verdict, as_shown, cut_image, trace

__all__ = [
    "Audited",
    "Chain",
    "Comparison",
    "Fate",
    "RangeCounts",
    "TableDifference",
    "TableLineage",
    "Traced",
    "Verdict",
    "as_shown",
    "audit",
    "compare",
    "cut_image",
    "read_source",
    "table_lineages",
    "trace",
]
