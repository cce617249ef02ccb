"""What keeps a source from being captured is told once, and again when it is over."""

import queue
from collections.abc import Mapping
from typing import Any

import pytest

from databus.core import ServiceUnavailable
from databus.pipeline.running._source_watch import SourceWatch, exit_code_of
from databus.testing import FakeClock


def state(name: str = "RUNNING", message: str = "", scn: int | None = 1) -> dict[str, Any]:
    return {"name": "shop", "state": name, "status": name.lower(), "message": message, "SCN": scn}


class Relay:
    """Answers with what it was told to; without anything, as one that is being restarted does."""

    def __init__(self) -> None:
        self.now: list[Mapping[str, Any]] | None = None

    def states(self) -> list[Mapping[str, Any]]:
        if self.now is None:
            raise ServiceUnavailable("it does not answer")
        return self.now


@pytest.fixture
def relay() -> Relay:
    return Relay()


def test_trouble_is_told_once_and_its_end_too(relay):
    told: queue.Queue[Mapping[str, Any]] = queue.Queue()
    watch = SourceWatch(relay.states, told.put)
    watch.start()
    relay.now = [state("INITIALIZING")]
    relay.now = [state("ERROR_RETRY", "connection refused")]
    assert told.get(timeout=60) == {
        "source": "shop",
        "status": "error_retry",
        "message": "connection refused",
        "is_well": False,
    }
    relay.now = None
    relay.now = [state("SUSPENDED_ON_ERROR", "Access denied")]
    assert told.get(timeout=60)["message"] == "Access denied"
    relay.now = [state()]
    assert told.get(timeout=60)["status"] == "running"
    watch.stop()
    assert told.empty()


@pytest.mark.parametrize(
    ("states", "code", "without_logs"),
    [
        ([state()], 0, 0),
        ([state("ERROR_RETRY", "away")], 75, 0),
        ([state("ERROR_RETRY", "away", None)], 75, 75),
        ([state("SUSPENDED_ON_ERROR", "no", None), state("ERROR_RETRY", "away", None)], 75, 75),
        ([state("SUSPENDED_ON_ERROR", "no", None), state()], 3, 0),
        (None, 0, 0),
    ],
)
def test_an_exit_code_says_what_could_not_be_captured(relay, states, code, without_logs):
    relay.now = states
    watch = SourceWatch(relay.states, lambda told: None)
    found = exit_code_of(watch.uncaptured()), exit_code_of(watch.uncaptured_without_logs())
    assert found == (code, without_logs)


def test_trouble_that_lasts_is_logged_once_a_minute_and_reported_once(relay, caplog):
    caplog.set_level("INFO")
    reported: list[Mapping[str, Any]] = []
    clock = FakeClock()
    watch = SourceWatch(relay.states, reported.append, clock=clock)
    relay.now = [state("SUSPENDED_ON_ERROR", "Access denied")]
    for _ in range(360):
        watch.uncaptured()
        clock.advance_ms(500)
    assert [event["message"] for event in reported] == ["Access denied"]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 3


def test_a_relay_that_does_not_answer_is_shown_until_the_end_but_not_after_it(relay):
    shown: list[tuple[int, str]] = []
    watch = SourceWatch(relay.states, lambda told: None, [lambda states, why: shown.append((len(states), why))])
    for relay.now in (None, [state()]):
        watch.uncaptured()
    watch.stop()
    relay.now = None  # as our own is while the run ends
    watch.uncaptured()
    assert shown == [(0, "it does not answer"), (1, "")]
