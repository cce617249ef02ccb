"""Trouble that lasts is in the log at once, then once a minute, and once more when it is over."""

from databus.pipeline.telling._reminders import Reminders


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_same_trouble_is_said_once_a_minute_and_another_at_once() -> None:
    clock = Clock()
    reminders = Reminders(clock)
    said = []
    for clock.now_s in range(0, 150, 10):
        if reminders.is_due("copy", "refused"):
            said.append(clock.now_s)
    assert said == [0, 60, 120]
    assert reminders.is_due("copy", "no route")
    assert reminders.is_due("other", "refused")
    assert not reminders.is_due("copy", "refused")  # it alternates with another: neither is new


def test_trouble_that_is_over_is_news_when_it_comes_again() -> None:
    reminders = Reminders(Clock())
    assert not reminders.end("copy")
    assert reminders.is_due("copy", "refused")
    assert reminders.is_known("copy")
    assert reminders.end("copy")
    assert not reminders.is_known("copy")
    assert not reminders.end("copy")
    assert reminders.is_due("copy", "refused")
