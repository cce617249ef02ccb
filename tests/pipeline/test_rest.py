"""A query with `rest` waits behind a micro-batch as long as it is to, and ends at once when it is asked to."""

import threading

import pytest

from databus.pipeline.engine._writer import Writer
from databus.testing import FakeClock


class Slow(Writer):
    """Takes 20 ms for a micro-batch of nothing."""

    def _write_typed_stream(self, rows, batch_id):
        self.clock.sleep_ms(20)


def test_a_query_rests_for_so_many_times_as_long_as_its_batch_took():
    clock = FakeClock()
    writer = Slow("copy", (), print, None, clock=clock)
    writer.rest = 9
    writer(None, 0)
    assert round(clock.monotonic_s(), 6) == 0.2
    assert writer.is_idle.is_set()


@pytest.mark.parametrize("how", ["ends_batch", "wants_stop"])
def test_a_query_that_rests_ends_when_it_is_asked_to(how):
    """It would rest for hours."""
    ends = threading.Event()

    class Clock(FakeClock):
        def wait(self, event, s_max):
            if self.monotonic_s() > 1:
                ends.set()
            return super().wait(event, s_max)

    clock = Clock()
    writer = Slow("copy", (), print, None, clock=clock, **{how: ends})
    writer.rest = 1_000_000
    writer(None, 0)
    assert 1 < clock.monotonic_s() < 2
