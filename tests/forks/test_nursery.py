"""A process that was forked is as one that Python started, but for what is imported already."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.forks import Forked, Nursery

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

MODULE = "tests.forks.told"
ROOT = Path(__file__).resolve().parents[2]
END_S_MAX = 60
SEED = "3"


@contextmanager
def nursery_of(*modules: str) -> Iterator[Nursery]:
    nursery = Nursery(modules, {"PYTHONHASHSEED": SEED})
    try:
        yield nursery
    finally:
        nursery.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursery_of("pyarrow") as made:
        yield made


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **more}


def run(program: str | Path, folder: Path, *arguments: str, **more: str) -> dict[str, Any]:
    """What a process said of itself that this program became."""
    file = folder / "told.json"
    command = [str(program), "-m", MODULE, str(file), *arguments]
    done = subprocess.run(
        command, capture_output=True, env=environment(**more), cwd=folder, timeout=END_S_MAX, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, b"said\n", b"")
    said: dict[str, Any] = json.loads(file.read_text())
    return said


def as_python_does(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name not in {"preloaded", "parent"}}


def waiting(nursery: Nursery, folder: Path) -> Forked:
    """One that has begun, and waits."""
    output = os.open(folder / "output", os.O_RDWR | os.O_CREAT)
    forked = nursery.fork(["-m", MODULE, str(folder / "told.json"), "wait"], output, environment())
    os.close(output)
    assert forked is not None
    until(lambda: (folder / "output").read_bytes() == b"said\n")
    return forked


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # neither files nor processes tell


def is_there(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it went before the file was opened, or after
        return False


def test_a_forked_process_is_as_python_would_have_started_it(nursery: Nursery, tmp_path: Path) -> None:
    """Arguments, environment, folder, path of modules, signals, open files: all as Python has them."""
    program = nursery.python()
    assert program is not None
    more = {"PYTHONUNBUFFERED": "YES", "OF_ITS_OWN": "ä", "PYTHONHASHSEED": SEED}
    plain, forked = (run(each, tmp_path, "a b", "'", **more) for each in (sys.executable, program))
    assert (plain["preloaded"], forked["preloaded"]) == (False, True)
    assert as_python_does(forked) == as_python_does(plain)


def test_a_process_of_other_settings_of_python_is_not_forked(nursery: Nursery, tmp_path: Path) -> None:
    program = nursery.python()
    assert program is not None
    said = run(program, tmp_path, PYTHONHASHSEED="5")
    assert not said["preloaded"]
    assert said["hash"] == run(sys.executable, tmp_path, PYTHONHASHSEED="5")["hash"]


def test_what_a_forked_process_ends_with_is_known(nursery: Nursery, tmp_path: Path) -> None:
    forked = waiting(nursery, tmp_path)
    forked.send_signal(signal.SIGKILL)
    assert forked.wait(END_S_MAX) == -signal.SIGKILL
    assert forked.poll() == -signal.SIGKILL
    assert not is_there(forked.pid)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_who_ends_the_program_ends_what_was_forked_for_it(
    nursery: Nursery, tmp_path: Path, number: int, code: int
) -> None:
    """Spark knows its Python processes by the program that it started."""
    program = nursery.python()
    assert program is not None
    file = tmp_path / "told.json"
    command = [str(program), "-m", MODULE, str(file), "wait"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"said\n"
        (pid,) = (int(each.name) for each in Path("/proc").iterdir() if _writes(each, started.stdout))
        assert pid != started.pid
        started.send_signal(number)
        assert started.stdout.read() == b""  # its end: nobody has the pipe any more
        assert started.wait(END_S_MAX) == code
    until(lambda: not is_there(pid))


def test_what_was_forked_for_a_program_ends_when_who_started_it_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    """Though it looks at nothing: it may be asking a relay that was killed too, again and again."""
    program = nursery.python()
    assert program is not None
    code = "import subprocess, sys; subprocess.run(sys.argv[1:], stdin=subprocess.PIPE)"
    asked = [str(program), "-m", MODULE, str(tmp_path / "told.json"), "wait"]
    starter = [sys.executable, "-c", code, *asked]
    with subprocess.Popen(starter, env=environment(), stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"said\n"
        pids = [int(each.name) for each in Path("/proc").iterdir() if _writes(each, started.stdout)]
        (pid,) = (each for each in pids if each != started.pid)
        started.kill()
    until(lambda: not is_there(pid))


def _writes(process: Path, pipe: Any) -> bool:
    """Whether the standard output of a process, by its folder in /proc, is that pipe."""
    try:
        return process.name.isdigit() and os.path.samestat((process / "fd/1").stat(), os.fstat(pipe.fileno()))
    except OSError:
        return False


def test_a_nursery_goes_when_what_it_forked_has_gone(tmp_path: Path) -> None:
    with nursery_of("pyarrow") as nursery:
        program = nursery.python()
        assert program is not None
        forked = waiting(nursery, tmp_path)
    assert forked.poll() is None
    assert is_there(forked.pid)
    forked.send_signal(signal.SIGTERM)
    assert forked.wait(END_S_MAX) == -signal.SIGTERM
    until(lambda: not nursery.folder.exists())  # the nursery removes it, last


def test_the_program_runs_python_where_there_is_no_nursery_any_more(tmp_path: Path) -> None:
    with nursery_of("pyarrow") as nursery:
        program = nursery.python()
        assert program is not None
        kept = program.rename(tmp_path / "python")
    until(lambda: not nursery.folder.exists())
    assert not run(kept, tmp_path)["preloaded"]


def test_nothing_is_forked_where_an_import_has_started_a_thread(tmp_path: Path) -> None:
    """Locks that the thread held would stay locked."""
    with nursery_of("pyarrow", "tests.forks.threaded") as nursery:
        program = nursery.python()
        assert program is not None
        kept = program.rename(tmp_path / "python")
        until(lambda: not nursery.folder.exists())
        assert not run(kept, tmp_path)["preloaded"]
