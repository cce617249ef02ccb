"""What tasks and the driver do with a search index. Start with `SearchWriter`."""

from databus.sinks.search._bulk import Operations, Refusal, Sorted, operations, sort_answer
from databus.sinks.search._client import Client, Cluster
from databus.sinks.search._control import CLAIM, CONTROL_INDEX, EMPTIED, HELD, PLACE, ControlIndex
from databus.sinks.search._document_change import DocumentChange
from databus.sinks.search._indices import IndexPlan, Indices
from databus.sinks.search._mapping import check_names, index_name
from databus.sinks.search._parts import PARTS_INDEX, HeldRows
from databus.sinks.search._sweep import Sweep, as_json
from databus.sinks.search._writer import Fence, SearchWriter, pair_of, shut_out_above

__all__ = [
    "CLAIM",
    "CONTROL_INDEX",
    "EMPTIED",
    "HELD",
    "PARTS_INDEX",
    "PLACE",
    "Client",
    "Cluster",
    "ControlIndex",
    "DocumentChange",
    "Fence",
    "HeldRows",
    "IndexPlan",
    "Indices",
    "Operations",
    "Refusal",
    "SearchWriter",
    "Sorted",
    "Sweep",
    "as_json",
    "check_names",
    "index_name",
    "operations",
    "pair_of",
    "shut_out_above",
    "sort_answer",
]
