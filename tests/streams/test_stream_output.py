"""The output `stream`: what a process gets on its standard input, and what happens when it does not take it."""

import os
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from databus.core import (
    ConfigError,
    ControlKind,
    FatalError,
    ServiceUnavailable,
    UnrepresentableValue,
    UnsupportedFeature,
)
from databus.sinks.stream._child import Child
from databus.sinks.stream._output import StreamOutputConfig
from databus.testing import OUTPUT_CHECKS
from databus.testing._change_log import ORDERS
from tests.outputs.harnesses import log_of, order
from tests.streams.support import StreamHarness, kept, output_of

WAIT_S = 60


@pytest.mark.parametrize("how", ["exit", "answer", "pipe"])
@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
def test_a_process_conforms(check, how, tmp_path):
    check(StreamHarness(tmp_path, acknowledge=how, controls=how == "exit"))


def all_of(log):
    return log.batch(0, len(log.entries))


def written(output, *batches):
    output.open()
    try:
        for batch in batches:
            output.write(batch)
    finally:
        output.close()


def python(text, *arguments):
    return [sys.executable, "-c", text, *arguments]


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def is_running(pid):
    """Not where it has ended, and waits for who has inherited it to reap it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_arguments_pass_no_shell_and_the_environment_is_the_user_s(tmp_path):
    show = "import os, sys; open('seen', 'w').write(sys.argv[1] + os.environ['TOKEN']); sys.stdin.read()"
    output = output_of(tmp_path, command=python(show, "$HOME; *"), environment={"TOKEN": "hidden"})
    written(output, all_of(log_of(1)))
    assert (tmp_path / "seen").read_text() == "$HOME; *hidden"
    assert "hidden" not in repr(output.config)


def test_lines_of_a_column_are_its_text(tmp_path):
    log = log_of(1)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    log.begin().update(ORDERS, order(1, "new"), order(1, None))
    log.begin().delete(ORDERS, order(1, "old"))
    written(output_of(tmp_path, column="note"), all_of(log))
    assert kept(tmp_path) == ["x", "new", "", "old"]
    log.begin().insert(ORDERS, order(2, "two\nlines"))
    with pytest.raises(UnrepresentableValue, match=r"main\.orders.*note has a line feed"):
        written(output_of(tmp_path, column="note"), all_of(log))
    with pytest.raises(ConfigError, match="no column city"):
        written(output_of(tmp_path, column="city"), all_of(log))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sys; print('no room', file=sys.stderr); sys.exit(3)", "ended with code 3.*it said: no room"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was ended by signal SIGKILL"),
    ],
)
@pytest.mark.parametrize("how", ["exit", "answer"])
def test_a_process_that_fails_has_not_taken_the_batch(tmp_path, how, text, says):
    output = output_of(tmp_path, command=python(text), acknowledge=how)
    with pytest.raises(ServiceUnavailable, match=says):
        written(output, all_of(log_of(1)))
    output = output_of(tmp_path, command=python(text), acknowledge=how, on_error="halt")
    with pytest.raises(FatalError, match=says):
        written(output, all_of(log_of(1)))


def test_a_process_that_closes_its_input_has_not_taken_the_batch(tmp_path):
    output = output_of(tmp_path, command=python("import sys; sys.stdin.readline()"))
    with pytest.raises(ServiceUnavailable, match="ended with code 0 before it had read all of its input"):
        written(output, all_of(log_of(*range(5_000))))


def test_a_process_that_ends_well_without_having_read_has_not_taken_the_batch(tmp_path):
    """All of it stood in the system's pipe."""
    reads_one = "import os; os.read(0, 1)"
    with pytest.raises(ServiceUnavailable, match=r"ended with code 0 before it had read all .* the last \d+ bytes"):
        written(output_of(tmp_path, command=python(reads_one)), all_of(log_of(1)))


def test_an_answer_behind_many_lines_that_nobody_has_asked_for_is_seen(tmp_path):
    prints = "for number in range(3_000): print(number)\nprint('17.3')"
    child = Child("cache", python(prints), tmp_path, {}, answers=True)
    child._process.wait()
    child._readers[-1].join()
    try:
        assert "17.3" in [child.answer(time.monotonic() + WAIT_S) for _ in range(1_000)]
    finally:
        child.kill()


def test_a_driver_with_many_open_files_can_write_to_a_process(tmp_path):
    """More than `select` takes."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        open_already = len([*Path("/proc/self/fd").iterdir()])
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_already + 2_048, limits[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1_024):
            stack.enter_context(open(os.devnull))  # noqa: PTH123
        written(output_of(tmp_path), all_of(log_of(1)))
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("rows", [1, 5_000])
def test_a_process_that_never_reads_is_killed_in_time_with_what_it_has_started(tmp_path, rows):
    text = "trap '' TERM; sleep 600 & echo $$ $! > pids; mv pids started; wait"
    output = output_of(tmp_path, command=["sh", "-c", text], batch_ms_max=4_000)  # a shell has begun by then
    with pytest.raises(ServiceUnavailable, match="in time"):
        written(output, all_of(log_of(*range(rows))))
    first, second = map(int, (tmp_path / "started").read_text().split())
    assert is_gone(first)
    deadline = time.monotonic() + WAIT_S
    while is_running(second):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_for_all_that_dies_between_batches_is_started_again(tmp_path):
    """With answers nothing is lost. Without, it is told."""
    dies = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    if '_acknowledge' in line: print(json.loads(line)['_acknowledge'], flush=True); sys.exit(1)\n"
        "    open('kept', 'a').write(line)\n"
    )
    log = log_of(1, 2, 3)
    output = output_of(tmp_path, command=python(dies), acknowledge="answer")
    for batch in log.batches([1, 2]):
        output.write(batch)
        output._child._process.wait()
    output.close()
    assert len(kept(tmp_path)) == 3
    output = output_of(tmp_path, command=python("import sys; sys.stdin.readline(); sys.exit(9)"), acknowledge="pipe")
    first, second = log.batches([1])
    output.write(first)
    output._child._process.wait()
    with pytest.raises(ServiceUnavailable, match=r"code 9 between two batches.*is lost"):
        output.write(second)
    output.write(second)
    with pytest.raises(ServiceUnavailable, match="ended with code 9"):
        output.close()


def test_an_answer_that_does_not_come_ends_the_wait(tmp_path):
    text = "import sys\nfor line in sys.stdin: print('1.0', flush=True)"
    output = output_of(tmp_path, command=python(text), acknowledge="answer", batch_ms_max=1_000)
    with pytest.raises(ServiceUnavailable, match="has not answered in time"):
        written(output, all_of(log_of(1)))


def test_a_program_that_is_not_there_is_told_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="there is no program no-such-program"):
        output_of(tmp_path, command=["no-such-program"]).open()
    with pytest.raises(ConfigError, match=r"no program \./x\.sh"):
        output_of(tmp_path, command=["./x.sh"]).open()


def test_changes_that_are_missing_stop_the_output(tmp_path):
    log = log_of(1)
    log.begin().control(ControlKind.GAP, ORDERS, reason="purged")
    with pytest.raises(UnsupportedFeature, match="are missing"):
        written(output_of(tmp_path), all_of(log))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"command": []}, "at least 1"),
        ({"command": [""]}, "a program and its arguments"),
        ({"environment": {"A=B": "x"}}, "no name of a variable"),
        ({"controls": True, "column": "x"}, "`format: own` alone"),
        ({"format": "debezium", "column": "x"}, "give one of them"),
    ],
)
def test_options_that_make_no_sense_are_told(given, says):
    with pytest.raises(ValueError, match=says):
        StreamOutputConfig.model_validate({"type": "stream", "from": "shop", "command": ["cat"], **given})
