"""Planning: batches of a table with few rows in a log whose relay looks for only so long at a time."""

from pathlib import Path

import pytest

from databus.log import _scan
from databus.relay import _range
from databus.spark._options import parse_options
from databus.spark._plan import Planner
from tests.relay.support import Database, order, published, sale, scripted


def test_no_row_is_left_out_of_a_batch_that_the_relay_measures_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch over many groups without a row of the table advances, and a replay of it holds the rows behind them."""
    groups = [sale(scn) if scn % 100 == 0 else order(scn) for scn in range(1, 401)]
    with scripted(tmp_path, {"shop": Database(groups=groups)}) as relay:
        published(relay, "shop", 400)
        monkeypatch.setattr(_scan, "SCAN_BYTES_MAX", 10_000)
        monkeypatch.setattr(_range, "RANGE_SCAN_MS_MAX", 0)
        options = parse_options(
            {"relay": relay.url, "shape": "ranges", "sources": "shop/main.stock", "startingVersion": "beginning"}
        )
        planner = Planner(options, None)
        start = position = planner.initial()
        ends = []
        with_rows = 0
        while position.scn < 400:
            end = planner.end_after(position, rows_max=1000, bytes_max=None, available=None)
            assert end.pair > position.pair
            with_rows += bool(planner.split(position, end))
            ends.append(end)
            position = end
        assert len(ends) > 10
        assert with_rows == 4
        replayed = Planner(options, planner.target).split(start, position)  # all of them as one batch
        assert (replayed[0].start, replayed[-1].until) == (start, position.pair)
        assert [each.until for each in replayed[:-1]] == [each.start.pair for each in replayed[1:]]
        planner.close()
