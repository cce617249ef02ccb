"""Our own change rows as messages: a line of JSON each, as relay, `databus tail` and files write it, and its key.

The key is the row's canonical key (docs/key-bytes.md), by which Kafka's clients choose the partition that the bus
itself would.
"""

import numpy as np
import pyarrow as pa

from databus.formats._changes import BigIntegers, lines_by_column
from databus.formats._messages import Messages
from databus.schema import TableSchema, key_bytes


def own_messages(
    table: TableSchema, batch: pa.RecordBatch, *, physical: str, big_integers: BigIntegers = BigIntegers.NUMBER
) -> Messages:
    """Each row of a batch as a message. Raises `UnrepresentableValue` for a time outside the years 0 to 9999."""
    lines = lines_by_column(f"{physical}/{table.source}", batch, big_integers, line_end="")
    return Messages(lines.cast(pa.large_binary()), own_keys(table, batch), pa.array(np.arange(batch.num_rows)))


def own_keys(table: TableSchema, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Each row's canonical key; null where the table has none."""
    if not table.key:
        return pa.nulls(batch.num_rows, pa.large_binary())
    return key_bytes([batch.column(name) for name in table.key]).cast(pa.large_binary())
