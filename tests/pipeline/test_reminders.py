"""Trouble that lasts is in the log at once, then once a minute, and once more when it is over."""

from databus.pipeline.telling._reminders import Reminders
from databus.testing import FakeClock


def test_the_same_trouble_is_said_once_a_minute_and_another_at_once() -> None:
    clock = FakeClock()
    reminders = Reminders(clock)
    said = []
    for _ in range(15):
        if reminders.is_due("copy", "refused"):
            said.append(clock.monotonic_s())
        clock.advance_ms(10_000)
    assert said == [0, 60, 120]
    assert reminders.is_due("copy", "no route")
    assert reminders.is_due("other", "refused")
    assert not reminders.is_due("copy", "refused")  # it alternates with another: neither is new


def test_trouble_that_is_over_is_news_when_it_comes_again() -> None:
    reminders = Reminders(FakeClock())
    assert not reminders.end("copy")
    assert reminders.is_due("copy", "refused")
    assert reminders.is_known("copy")
    assert reminders.end("copy")
    assert not reminders.is_known("copy")
    assert not reminders.end("copy")
    assert reminders.is_due("copy", "refused")
