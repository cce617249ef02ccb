"""How long a run may take to end: what hangs is waited for up to a bound, and then reported."""

import queue
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from databus.pipeline.running._control import _connect
from databus.pipeline.running._queries import Hanging
from databus.pipeline.telling import STOP_S_MAX, Overdue, left_after
from databus.testing import FakeClock


class Worker(threading.Thread):
    """Ends at a time, or never; who joins it lets time pass."""

    def __init__(self, clock: FakeClock, ends_s: float) -> None:
        super().__init__()
        self.clock, self.ends_s = clock, ends_s

    def is_alive(self) -> bool:
        return self.clock.monotonic_s() < self.ends_s

    def join(self, timeout: float | None = None) -> None:
        self.clock.advance_ms((timeout or 0.0) * 1e3)


@pytest.mark.parametrize(("ends_s", "waited_s", "hangs"), [(3, 3, False), (1e9, 9, True)])
def test_threads_are_waited_for_up_to_the_bound(ends_s, waited_s, hangs):
    clock, said = FakeClock(), []
    quick, slow = Worker(clock, 1), Worker(clock, ends_s)
    assert left_after(9, [quick, slow], said.append, clock) == ([slow] if hangs else [])
    assert clock.monotonic_s() == waited_s
    assert said[0] == [quick, slow]
    assert said[-1] == [slow]


def test_a_run_that_does_not_end_is_reported_once_with_what_it_waits_for():
    clock = FakeClock()
    calls: queue.Queue[tuple[str, int]] = queue.Queue()
    overdue = Overdue(lambda *call: calls.put(call), lambda: "Spark", lambda: 3, clock)
    overdue.begin()
    assert calls.get(timeout=60) == ("Spark", 3)
    assert clock.monotonic_s() == STOP_S_MAX
    overdue.hurry()
    assert calls.empty()


def test_a_command_waits_for_room_in_a_full_queue_and_gives_up_in_the_end(tmp_path: Path):
    class Full(socket.socket):
        def connect(self, _: Any) -> None:
            raise BlockingIOError

    clock = FakeClock()
    with Full(socket.AF_UNIX) as connection, pytest.raises(BlockingIOError):
        _connect(connection, tmp_path, clock)
    assert 10 < clock.monotonic_s() < 11


def test_an_output_that_hangs_is_reported_once_logged_every_minute_and_reported_when_it_answers(caplog):
    clock, events = FakeClock(), []
    handle = SimpleNamespace(name="copy", busy_s=0.0)
    bounded = SimpleNamespace(once=True, outputs=["copy"])
    given_up: list[str] = []
    queries: Any = SimpleNamespace(
        all_handles=[handle], overdue_names=set(), left=[], give_up=lambda _, why: given_up.append(why)
    )
    config: Any = SimpleNamespace(name="shop", sections=SimpleNamespace(run=SimpleNamespace(write_ms_max=5_000)))
    hanging = Hanging(queries, lambda: config, lambda event, **more: events.append((event, more)), clock)
    for _ in range(150):
        hanging.look()
        clock.advance_ms(1_000)
        handle.busy_s += 1
    began_us = clock.now_ns() // 1000 - 150_000_000
    assert events == [("hanging", {"output": "copy", "since_us": began_us})]
    assert len([record for record in caplog.records if "does not answer" in record.getMessage()]) == 3
    assert given_up == []
    queries.left = [bounded]
    hanging.look()
    assert given_up == [
        "copy: did not answer within run.write_ms_max=5000; what it was given comes again at the next start"
    ]
    handle.busy_s, queries.left = 0.0, []
    hanging.look()
    assert events[1:] == [("answered", {"output": "copy"})]
