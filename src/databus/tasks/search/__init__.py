"""What tasks and the driver do with a search index. Start with `SearchWriter`."""

from databus.tasks.search._bulk import Operations, Refusal, Sorted, operations, sort_answer
from databus.tasks.search._client import Client, Cluster
from databus.tasks.search._control import CLAIM, CONTROL_INDEX, EMPTIED, HELD, PLACE, ControlIndex
from databus.tasks.search._document_change import DocumentChange
from databus.tasks.search._indices import IndexPlan, Indices
from databus.tasks.search._mapping import check_names, index_name
from databus.tasks.search._parts import PARTS_INDEX, HeldRows
from databus.tasks.search._sweep import Sweep, as_json
from databus.tasks.search._writer import Fence, SearchWriter, pair_of, shut_out_above

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
