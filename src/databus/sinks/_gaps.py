"""Gaps, for outputs whose targets would not notice that changes are missing."""

from databus.core import UnsupportedFeature
from databus.flow import Batch, TableControl


def refuse_gaps(batch: Batch, output: str, who: str) -> None:
    """Raise `UnsupportedFeature` for a gap that no snapshot is said to follow. who: would not notice it."""
    for item in batch.items:
        if isinstance(item, TableControl) and item.missing is not None:
            raise UnsupportedFeature(
                f"outputs.{output}: changes of {batch.physical}/{item.table.source} are missing ({item.missing}), "
                f"which {who} would not notice. Have the table read again (`databus snapshot`), and say "
                f"`on_gap: continue`"
            )
