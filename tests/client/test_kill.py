"""SIGKILL at every crash point of the client and at random moments: nothing lost, order kept, nothing invented."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from databus.client import load_checkpoint, windows
from databus.core import CRASH_POINTS
from tests.client.conftest import captured, mock, wait_for

UNTIL = 400


def start(relay, folder, *, checkpoint_ms=0, crash_at=None):
    env = {name: value for name, value in os.environ.items() if name != "DATABUS_CRASH_AT"}
    if crash_at:
        env["DATABUS_CRASH_AT"] = crash_at
    command = [sys.executable, "-m", "tests.client.victim", relay.url, str(folder), str(UNTIL), str(checkpoint_ms)]
    return subprocess.Popen(command, env=env)


def verify(folder, relay):
    """Each run goes on exactly after its checkpoint, which was never ahead of what had been done before."""
    done: dict[int, str] = {}
    expected = 0
    for line in (folder / "effects").read_text().splitlines():
        first, second = line.split()
        if first == "start":
            assert int(second) <= len(done), "the checkpoint was ahead of what had been done: a loss"
            expected = int(second) + 1
            continue
        assert int(first) == expected, "out of order, or a gap"
        expected += 1
        assert done.setdefault(int(first), second) == second, "a window came again with other rows"
    assert list(done) == list(range(1, UNTIL + 1))
    assert load_checkpoint(folder / "checkpoint.json").sources["shop"].scn == UNTIL
    with windows(relay.url, follow=False) as following:
        assert len(list(following)) == UNTIL


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point.startswith("client.")])
def test_nothing_is_lost_by_a_kill_at(point, relay_of, tmp_path):
    relay = relay_of(shop=mock(transactions_total=UNTIL))
    captured(relay, UNTIL)
    for count in (1, 37):
        victim = start(relay, tmp_path, crash_at=f"{point}:{count}")
        assert victim.wait(60) == -signal.SIGKILL, "the crash point was not passed"
    assert start(relay, tmp_path).wait(60) == 0
    verify(tmp_path, relay)


def test_nothing_is_lost_by_kills_at_random_moments_under_load(relay_of, tmp_path, seed):
    rng = random.Random(seed)
    relay = relay_of(shop=mock(transactions_per_s=200, transactions_total=UNTIL))
    effects = tmp_path / "effects"
    for kill in range(5):
        victim = start(relay, tmp_path, checkpoint_ms=rng.choice([0, 20]))
        size = effects.stat().st_size if effects.exists() else 0
        wait_for(
            lambda size=size: effects.exists() and effects.stat().st_size > size, f"the start of victim {kill}", 60
        )
        time.sleep(rng.random() * 0.3)  # the moment is what is random
        victim.kill()
        victim.wait()
    assert start(relay, tmp_path, checkpoint_ms=20).wait(60) == 0
    verify(tmp_path, relay)
