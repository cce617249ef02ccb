"""A query with `rest` waits behind a micro-batch as long as it is to, and ends at once when it is asked to."""

import threading
import time

from databus.pipeline.engine._writer import Writer


class Slow(Writer):
    """Takes 20 ms for a micro-batch of nothing."""

    def _write_typed_stream(self, rows, batch_id):
        time.sleep(0.02)


def test_a_query_rests_for_so_many_times_as_long_as_its_batch_took():
    writer = Slow("copy", (), print, None)
    writer.rest = 9
    began = time.monotonic()
    writer(None, 0)
    assert time.monotonic() - began >= 0.2
    assert writer.is_idle.is_set()


def test_a_query_that_rests_ends_when_it_is_asked_to():
    """It would rest for hours."""
    ends = threading.Event()
    writer = Slow("copy", (), print, None, ends_batch=ends)
    writer.rest = 1_000_000
    threading.Timer(0.1, ends.set).start()
    writer(None, 0)
    assert ends.is_set()
    writer = Slow("copy", (), print, None, wants_stop=ends)
    writer.rest = 1_000_000
    writer(None, 0)
