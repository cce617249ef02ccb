"""What tasks and the driver do with a search index. Start with `SearchWriter`."""

from databus.sinks.search._bulk import operations, sort_answer
from databus.sinks.search._client import SearchCluster
from databus.sinks.search._document_change import DocumentChange
from databus.sinks.search._mapping import check_names, index_name
from databus.sinks.search._writer import SearchWriter

__all__ = [
    "DocumentChange",
    "SearchCluster",
    "SearchWriter",
    "check_names",
    "index_name",
    "operations",
    "sort_answer",
]
