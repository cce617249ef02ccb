"""One small event straight into an Arrow stream, against the same event through arrays."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from databus.core import CorruptData
from databus.schema import frame_schema
from databus.sources.mysql._definition import FieldType, TableDefinition
from databus.sources.mysql.rows import bus_arrays, decode, small_events
from tests.mysql.rows.guarded import guarded
from tests.mysql.rows.images import KINDS, Kind, column, image, tables
from tests.mysql.rows.test_images import plan_of
from tests.mysql.rows.walker import place

pytestmark = pytest.mark.usefixtures("walls")

Table = tuple[TableDefinition, list[Kind], list[list[Any]]]
SCN, BEFORE, COMMIT_US = (3 << 55) + 77, 41, 1_800_000_000_123_456


def _event(data: bytes, kind: int) -> tuple[Any, Any, Any, Any]:
    padded = b"\xaa" + data
    ints = (np.array([each], np.int64) for each in (1, len(padded)))
    return (guarded(padded), np.array([kind], np.int8), *ints)


PLAIN = [
    kind for kind in KINDS if small_events(plan_of(TableDefinition("d", "t", (column("c", kind, is_nullable=True),))))
]


@given(tables(PLAIN), st.sampled_from([1, 2, 3]), st.text("0123456789abcdef-:", min_size=1, max_size=60))
def test_a_small_event_is_the_same_batch_as_by_arrays(table: Table, kind: int, txid: str) -> None:
    definition, kinds, rows = table
    rows = rows[: len(rows) // 2 * 2] if kind == 2 else rows
    plan = plan_of(definition)
    small = small_events(plan)
    assert small is not None
    if not rows:
        return
    event = _event(b"".join(image(kinds, row) for row in rows), kind)
    for _ in range(2):  # what it keeps from one event to the next is not seen
        found = small.decode(*event, place, numbers=(SCN, BEFORE, COMMIT_US), txid=txid, row_bytes_max=1 << 20)
    assert found is not None
    (decoded,) = decode(plan, *event, place)
    own = bus_arrays(
        decoded,
        np.array([BEFORE], np.int64),
        np.array([0], np.int32),
        scns=np.array([SCN]),
        commits_us=np.array([COMMIT_US]),
        txids=lambda _low, _high: pa.array([txid], pa.string()),
    )
    expected = pa.RecordBatch.from_arrays([*decoded.arrays, *own], schema=frame_schema(plan.table))
    found.batch.validate(full=True)
    assert found.images == len(rows)
    assert found.batch.schema.equals(expected.schema, check_metadata=True)
    assert found.batch.equals(expected)
    reader = ipc.open_stream(found.body)
    assert reader.read_next_batch().equals(expected)
    assert len(found.body) % 8 == 0


def test_most_kinds_of_columns_need_no_arrays() -> None:
    assert len(PLAIN) > len(KINDS) / 2


def test_a_damaged_event_gives_an_error_and_the_next_one_is_read() -> None:
    kind = next(kind for kind in KINDS if kind.define["type"] is FieldType.LONG)
    definition = TableDefinition("d", "t", (column("c", kind, is_nullable=False),))
    small = small_events(plan_of(definition))
    assert small is not None
    options: dict[str, Any] = {"numbers": (SCN, BEFORE, COMMIT_US), "txid": "t", "row_bytes_max": 1 << 20}
    with pytest.raises(CorruptData, match=r"d\.t"):
        small.decode(*_event(b"\0\1\2", 1), place, **options)
    found = small.decode(*_event(b"\0\1\2\0\0", 1), place, **options)
    assert found is not None
    assert found.batch["c"].to_pylist() == [513]
