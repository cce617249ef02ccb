"""How long is waited before something is tried again."""

from random import Random

import pytest

from databus.core import Backoff
from databus.testing import FakeClock


def test_waits_double_up_to_a_bound_and_lie_between_a_half_and_the_whole():
    backoff = Backoff(100, 1_000, rng=Random(1))
    waits = [backoff.next_ms() for _ in range(100)]
    wholes = [100, 200, 400, 800, *[1_000] * 96]
    assert [whole / 2 <= wait <= whole for wait, whole in zip(waits, wholes, strict=True)] == [True] * 100
    assert len(set(waits)) > 90


def test_after_a_success_waits_are_short_again():
    backoff = Backoff(10, 1_000)
    for _ in range(5):
        backoff.next_ms()
    backoff.reset()
    assert backoff.next_ms() <= 10


def test_nothing_is_waited_for_after_no_failure():
    assert Backoff(100, 1_000).after(0) == 0
    assert Backoff(100, 1_000).after(10**6) <= 1_000


def test_sleeping_ends_with_the_time_that_there_is():
    clock = FakeClock()
    backoff = Backoff(50, 5_000, total_ms=30_000, clock=clock)
    sleeps = 0
    while not backoff.is_over:
        backoff.sleep()
        sleeps += 1
    assert clock.monotonic_ns() == 30_000 * 10**6
    assert 8 < sleeps < 25


def test_a_part_that_worked_gives_as_much_time_again_and_no_shorter_waits():
    clock = FakeClock()
    backoff = Backoff(100, 1_000, total_ms=10_000, clock=clock)
    for _ in range(5):
        backoff.sleep()
    clock.advance_ms(10_000)
    assert backoff.is_over
    backoff.extend()
    assert not backoff.is_over
    assert backoff.next_ms() >= 500


@pytest.mark.parametrize("total_ms", [0, -1])
def test_without_time_nothing_is_tried_again(total_ms):
    backoff = Backoff(100, 1_000, total_ms=total_ms)
    assert backoff.is_over
    assert backoff.next_ms() == 0
