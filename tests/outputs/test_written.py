"""An output tells how many rows it has written, without those that its target had: screen and events count these."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from databus.core import Checkpoint
from databus.flow import StagedFeed, joined
from databus.flow._stage import receipts_of
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._writer import Writer
from databus.testing._change_log import ORDERS
from tests.feeds import bring
from tests.local_engine import LocalRows
from tests.outputs.harnesses import DeltaHarness, FilesHarness
from tests.outputs.test_delta import log_of


@pytest.fixture(params=["mirror", "history", "files"])
def harness(request, tmp_path):
    return FilesHarness(tmp_path, "parquet") if request.param == "files" else DeltaHarness(tmp_path, request.param)


def test_rows_that_are_known_are_not_counted(harness):
    log = log_of(1, 2, 3, 4)
    output = harness.make()
    counted = []
    for begin, end in ((0, 2), (0, 2), (1, 4)):
        counted.append(output.write(log.batch(begin, end)).rows)
    output.close()
    assert counted == [{ORDERS.source: 2}, {ORDERS.source: 0}, {ORDERS.source: 2}]


class Noted:
    """The offsets of a query whose every batch ends at one place."""

    physical = "shop"
    origin = SimpleNamespace(starting_version=0)

    def position(self, batch_id):
        return log_of(1, 2, 3).position(3)

    def checkpoint(self, batch_id):
        return Checkpoint({"shop": self.position(batch_id)})


def test_an_event_counts_what_was_written(harness, tmp_path):
    events = []
    handle = OutputHandle("copy", harness.make(), tmp_path)
    feed = bring(handle)

    class OfOne(Writer):
        def _staged(self, micro, feeds):
            writer = handle.output.part_writer()
            feed = StagedFeed(lambda _: True, lambda _, rows, __: [rows], writer, lambda _: (0, 0), {})
            receipts = receipts_of(log_of(1, 2, 3).batch(0, 3), [feed])
            return [joined(pa.Table.from_batches([receipts]), 0)]

    writer = OfOne("query", [(feed, handle)], events.append, Noted(), decode=lambda _: [])
    writer(LocalRows(), 0)
    writer(LocalRows(), 0)
    assert [(event["rows"], event["tables"]) for event in events if event["event"] == "batch"] == [
        (3, {ORDERS.source: 3}),
        (0, {ORDERS.source: 0}),
    ]
