"""Two pipelines of one name over two databases that are first started in the same moments: neither finds the other's
positions when it begins.
"""

from functools import partial

import pytest

from databus.core import ServiceUnavailable, SourceCheckpoint
from databus.pipeline.engine._handle import OutputHandle
from databus.places import Position
from databus.testing._staged_writes import write_buckets
from tests.feeds import bring
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import log_of

NAME = "shop/main.orders"


def begun(server, folder, prefix, number):
    """A pipeline that has begun, with topics of its own, and a control topic that it shares."""
    folder.mkdir(exist_ok=True)
    output = output_of(server, folder, f"{prefix}.{number}", buckets=1, control_topic=f"{prefix}.control")
    handle = OutputHandle("topics", output, folder / ".databus")
    bring(handle)
    handle.open()
    handle.put("shop", Position(SourceCheckpoint(), handle.choice("shop")))
    return handle


def write(handle, log):
    batch = log.batch(0, len(log.entries))
    handle.write_direct(batch, partial(write_buckets, handle.output, batch))


@pytest.fixture
def both(kafka, tmp_path):
    """The two, the second over another log; the first has written."""
    prefix = new_prefix()
    handles = [begun(kafka, tmp_path / f"{number}", prefix, number) for number in (1, 2)]
    write(handles[0], log_of(1, 2, 3))
    other = log_of(4, 5)
    other.uuid = "log-2"
    return prefix, handles[1], other


def test_the_second_leaves_no_row_out_and_asks_whose_positions_these_are(kafka, both):
    prefix, second, log = both
    with pytest.raises(ServiceUnavailable, match="another log"):
        write(second, log)
    assert rows_in(kafka, f"{prefix}.2.orders") == []
    assert second.output.held({NAME: None})[NAME].place.scn == 3


def test_it_goes_on_where_the_relay_knows_that_place(kafka, both):
    """As it does of a database whose log was made anew when the first of its batches had been written."""
    _, second, log = both
    word = second.output.held({NAME: None})[NAME].place
    second.put("shop", second.known("shop"), accepted=[word.log])
    log.begin()
    write(second, log)
