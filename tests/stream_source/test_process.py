"""A process whose standard output is captured: restarts, ends, and what it leaves behind."""

import sys
import time

import psutil
import pytest

from databus.core import ConfigError, FatalError
from databus.log import Resume
from databus.sources.stream import StreamSource
from databus.testing._source_suite import Tape, resume_at
from tests.stream_source.support import config_of

WAIT_S = 60


def is_running(pid):
    """Also where it ends, or is reaped, while it is looked at."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def python(text):
    return [sys.executable, "-c", text]


def source_of(text, resume=None, **options):
    made = StreamSource("app", config_of(command=python(text), **options))
    made.identify()
    made.start(resume or Resume(log_id="suite-log"))
    return made


def lines_until(source, count):
    """Its rows until there are so many, and the log that holds them."""
    tape, deadline = Tape(), time.monotonic() + WAIT_S
    rows = []
    while len(rows) < count:
        assert time.monotonic() < deadline
        group = source.poll(50)
        if group is not None:
            tape.append(group)
            rows += [row for each in group.rows for row in each.batch.to_pylist()]
    return [(row["stream"], row["offset"], row["line"]) for row in rows], tape


def test_lines_come_as_they_are_printed_and_the_last_one_without_its_end():
    source = source_of("import sys; print('one', flush=True); sys.stdout.write('two')", on_exit="stop")
    found, _ = lines_until(source, 2)
    assert found == [("run-1", 0, "one"), ("run-1", 4, "two")]
    with pytest.raises(FatalError, match="ended with code 0; `on_exit` is stop"):
        source.poll(30_000)
    source.close()


def test_a_process_that_ends_is_started_again_and_its_runs_are_told_apart():
    source = source_of("import sys; print('x'); print('why', file=sys.stderr); sys.exit(3)")
    found, _ = lines_until(source, 3)
    source.close()
    assert found == [("run-1", 0, "x"), ("run-2", 0, "x"), ("run-3", 0, "x")]


def test_a_run_after_a_restart_of_the_relay_has_the_next_number():
    text = "print('x'); import time; time.sleep(600)"
    source = source_of(text)
    _, tape = lines_until(source, 1)
    source.close()
    source = source_of(text, resume_at(tape.groups[-1].commit))
    found, _ = lines_until(source, 1)
    source.close()
    assert found == [("run-2", 0, "x")]


def test_closing_ends_the_process_and_what_it_has_started():
    text = (
        "import subprocess, sys, os\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(os.getpid(), flush=True); print(other.pid, flush=True); other.wait()"
    )
    source = source_of(text)
    found, _ = lines_until(source, 2)
    source.close()
    for pid in (int(line) for _, _, line in found):
        deadline = time.monotonic() + WAIT_S
        while is_running(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)  # processes that are not ours do not tell when they end


def test_a_program_that_is_not_there_is_told():
    source = StreamSource("app", config_of(command=["no-such-program"]))
    source.start(Resume(log_id="suite-log"))
    source.poll(0)
    with pytest.raises(ConfigError, match="no-such-program cannot be started"):
        source.poll(0)
