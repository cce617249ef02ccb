"""The bus's own columns against what a slow reader makes of the same events."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.sources.mysql.rows import Decoded, bus_arrays

pytestmark = pytest.mark.usefixtures("walls")

EVENTS = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 3)), min_size=1, max_size=40)
"""Of each event: its images, and how many transactions lie between it and the one before."""


@given(EVENTS.filter(lambda events: any(images for images, _ in events)), st.integers(0, 1 << 40))
def test_each_image_carries_what_its_transaction_says(events: list[tuple[int, int]], base: int) -> None:
    transactions = np.cumsum([step for _, step in events]).astype(np.int32)
    count = int(transactions[-1]) + 1
    images = np.array([each for each, _ in events], np.int32)
    before = np.arange(len(events), dtype=np.int64) * 1_000
    scns, times = base + 3 * np.arange(count), base + 7 * np.arange(count)
    kinds = np.arange(images.sum(), dtype=np.int8) % 4 + 1
    arrays = bus_arrays(
        Decoded(0, images, kinds, []),
        before,
        transactions,
        scns=scns,
        commits_us=times,
        txids=lambda low, high: pa.array([f"t{number}" for number in range(low, high)], pa.string()),
    )
    for array in arrays:
        array.validate(full=True)
    expected = [
        (int(scns[of]), int(before[event]) + number, int(times[of]), f"t{of}", False)
        for event, of in enumerate(transactions.tolist())
        for number in range(1, int(images[event]) + 1)
    ]
    change_types, scn, seq, commit_us, txid, snapshot = arrays
    assert change_types.to_pylist() == kinds.tolist()
    found = [array.to_pylist() for array in (scn, seq, commit_us.cast(pa.int64()), txid, snapshot)]
    assert list(zip(*found, strict=True)) == expected
