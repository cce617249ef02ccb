"""What the items of a batch are to a Delta table."""

from databus.core import ControlKind, Pair
from databus.flow import StagedRows, TableControl
from databus.sinks.delta._table import DeltaTarget

StagedItem = StagedRows | TableControl


def is_of(item: StagedRows, target: DeltaTarget) -> bool:
    """Whether what a task has made at once is of the table as it is."""
    return item.at_once is None or (target.exists and item.at_once.version == target.table.version())


def begins(item: StagedItem) -> bool:
    """Whether nothing of the table from before this item is needed."""
    if not isinstance(item, TableControl):
        return False
    if item.kind is ControlKind.SCHEMA:
        return not item.body.get("previous")
    return item.kind in (ControlKind.SNAPSHOT_BEGIN, ControlKind.TRUNCATE, ControlKind.DROP)


def pair_of(item: StagedItem) -> Pair:
    """Up to which a table is once it has been applied."""
    return item.last if isinstance(item, StagedRows) else item.pair


def count_of(item: StagedItem) -> int:
    """Its rows."""
    return item.count if isinstance(item, StagedRows) else 0
