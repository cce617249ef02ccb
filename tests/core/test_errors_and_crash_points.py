"""A caller tells input, transient and fatal errors apart by type; crash points kill where they say."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from databus import core
from databus.core import CRASH_POINTS, DatabusError, FatalError, InputError, ServiceUnavailable, TransientError
from databus.testing import RelayProcess


def test_every_error_is_an_input_a_transient_or_a_fatal_error_and_says_whether_to_retry():
    leaves = [each for each in vars(core).values() if isinstance(each, type) and issubclass(each, DatabusError)]
    for each in leaves:
        if each is not DatabusError:
            assert sum(issubclass(each, kind) for kind in (InputError, TransientError, FatalError)) == 1
            assert each.retryable is issubclass(each, TransientError)
    assert len({kind.exit_code for kind in (InputError, TransientError, FatalError)}) == 3


def run(point: str, passes: int) -> int:
    code = f"from databus.core import crash_point\nfor _ in range({passes}): crash_point('log.fsync.before')"
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "DATABUS_CRASH_AT": point}, check=False, capture_output=True
    ).returncode


@pytest.mark.parametrize(
    ("point", "passes", "code"),
    [
        ("log.fsync.before", 1, -signal.SIGKILL),
        ("log.fsync.before:3", 3, -signal.SIGKILL),
        ("log.fsync.before:3", 2, 0),
        ("log.fsync.after", 5, 0),
        ("no.such.point", 1, 1),
    ],
)
def test_a_crash_point_kills_at_the_pass_it_is_armed_for(point, passes, code):
    assert run(point, passes) == code


def test_a_process_that_was_forked_is_killed_where_its_own_environment_says(tmp_path):
    relay = RelayProcess(tmp_path, {"shop": {"type": "mock", "transactions_total": 3}})
    relay.env = {"DATABUS_CRASH_AT": "log.append.before:2"}
    with suppress(ServiceUnavailable):  # it died before it answered
        relay.start()
    assert relay.wait_until_dead() == -signal.SIGKILL


def test_every_crash_point_is_placed_in_the_code():
    """A name that no code passes would make a kill test that cannot fail."""
    package = Path(core.__file__).parents[1]
    text = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "_crash.py")
    assert [name for name in CRASH_POINTS if f'"{name}"' not in text] == []
