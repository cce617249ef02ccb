"""What has failed is tried again, later each time, until it is not: by a clock that stands still until it is asked."""

import threading
from types import SimpleNamespace

import pytest

from databus.core import ConfigError, ServiceUnavailable, TransientError
from databus.pipeline.engine._plan import QueryPlan, Shape
from databus.pipeline.engine._query import QueryThread, Starts
from databus.testing import FakeClock

AWAY = ServiceUnavailable("the relay is away")


class Scripted(QueryThread):
    """Each of its rounds ends as `rounds` says: a number is that of batches that were written before it failed."""

    def __init__(self, rounds, *, clock=None, retries_max=3, once=False, **run):
        self.events = []
        self.clock = clock or FakeClock()
        self.rounds = list(rounds)
        run = SimpleNamespace(
            **{"retry_ms_min": 100, "retry_ms_max": 1_000, "start_ms_max": 0} | run, retries_max=retries_max
        )
        settings = SimpleNamespace(
            config=SimpleNamespace(sections=SimpleNamespace(run=run), embeds_relay=False),
            starting=Starts(1),
            report=self.events.append,
            once=once,
            is_stopping=threading.Event(),
            began_s=0.0,
            clock=self.clock,
            renewed_s=lambda: None,
        )
        super().__init__(settings, QueryPlan("outputs/copy", Shape.TYPED, ("inputs.shop",), ()), [], lambda _: None)

    def _round(self):
        outcome = self.rounds.pop(0)
        if isinstance(outcome, int):
            self._ended(outcome)
            return AWAY
        return outcome

    def waits(self):
        return [event["wait_ms"] for event in self.events if event["event"] == "retry"]


def test_waits_double_up_to_a_bound_and_the_time_passes_between_tries():
    query = Scripted([AWAY] * 8 + [None])
    query.run()
    assert query.error is None
    for wait_ms, whole in zip(query.waits(), [100, 200, 400, 800, 1_000, 1_000, 1_000, 1_000], strict=True):
        assert whole / 2 <= wait_ms <= whole
    assert abs(query.clock.monotonic_s() * 1e3 - sum(query.waits())) < len(query.waits())


def test_a_batch_that_was_done_has_the_next_wait_be_short_again():
    query = Scripted([AWAY] * 6 + [1, None])
    query.run()
    *_, long, short = query.waits()
    assert long >= 500
    assert short <= 100


@pytest.mark.parametrize(("error", "tries"), [(TransientError("of Spark's own"), 4), (ConfigError("wrong"), 1)])
def test_what_does_not_pass_is_given_up(error, tries):
    query = Scripted([error] * 9)
    query.run()
    assert query.error is error
    assert len(query.waits()) == tries - 1
    assert query.events[-1]["event"] == "failed"


def test_a_run_to_the_present_end_gives_up_what_might_pass():
    query = Scripted([AWAY] * 9, once=True)
    query.run()
    assert query.error is AWAY
    assert len(query.waits()) == 3


def test_a_query_that_is_stopped_while_it_waits_is_not_tried_again():
    class Clock(FakeClock):
        def wait(self, event, s_max):
            event.set()  # as by another thread
            return super().wait(event, s_max)

    query = Scripted([AWAY] * 9, clock=Clock(), retry_ms_min=3_600_000, retry_ms_max=3_600_000)
    query.run()
    assert query.error is None
    assert len(query.rounds) == 8
    assert query.clock.monotonic_s() == 0
