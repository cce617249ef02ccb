"""A query with `rest` waits behind a micro-batch as long as it is to, and ends at once when it is asked to."""

import threading
import time

from databus.core import SourceCheckpoint
from databus.pipeline.engine._writer import Writer


class Slow(Writer):
    """Takes 20 ms for a micro-batch of nothing."""

    def _bounds(self, batch_id):
        return SourceCheckpoint(scn=1), SourceCheckpoint(scn=2)

    def _write(self, micro, feeds):
        time.sleep(0.02)


def took_s(writer):
    began = time.monotonic()
    writer(None, 0)
    return time.monotonic() - began


def test_a_query_rests_for_so_many_times_as_long_as_its_batch_took():
    writer = Slow("copy", (), print, None)
    assert took_s(writer) < 0.2
    writer.rest = 9
    assert took_s(writer) >= 0.2
    assert writer.is_idle.is_set()


def test_a_query_that_rests_ends_when_it_is_asked_to():
    ends = threading.Event()
    writer = Slow("copy", (), print, None, ends_batch=ends)
    writer.rest = 1000
    threading.Timer(0.1, ends.set).start()
    assert took_s(writer) < 5
    writer = Slow("copy", (), print, None, wants_stop=ends)
    writer.rest = 1000
    assert took_s(writer) < 5
