"""The begin of a next segment that fails: the log goes on where it ended, and nothing of it is lost by a kill."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from databus.core import CorruptData, DiskFull, ServiceUnavailable
from databus.log import LogConfig
from databus.log._opening import create_segment
from databus.log._segment import segment_numbers
from tests.log.make import SMALL, group, open_log, read, scns_of

ROOT = Path(__file__).parents[2]
WAIT_S = 60

CONFIG = LogConfig(**{**SMALL.model_dump(), "fsync_interval_ms": 60_000})


@contextmanager
def no_more_files(spare):
    """This process, in which no other thread opens or closes files, may open `spare` more files, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY)]
    largest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest + 1, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (largest + 1 + spare, hard))
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fill_first_segment(log):
    """Leave room for one small group; returns the last SCN."""
    while log._offset < CONFIG.segment_bytes_max - 3_500:
        log.append(group(log.resume().scn + 1))
    assert log.head().segments == 1
    return log.resume().scn


def check_after_a_kill(folder, copy, last, segments):
    """What is in the files now is the whole log, and it goes on."""
    shutil.copytree(folder, copy)
    with open_log(copy, CONFIG) as log:
        assert scns_of(read(log.beginning())) == list(range(1, last + 1))
        assert log.head().segments == segments
        log.append(group(last + 1, count=50))
        log.append(group(last + 2))
        assert scns_of(read(log.beginning())) == list(range(1, last + 3))


def roll_without_files(tmp_path, spare):
    folder = tmp_path / "log"
    with open_log(folder, CONFIG) as log:
        last = fill_first_segment(log)
        with no_more_files(spare):
            is_rolled = spare >= 2
            with nullcontext() if is_rolled else pytest.raises(ServiceUnavailable, match=os.strerror(errno.EMFILE)):
                log.append(group(last + 1, count=50))
            last += is_rolled
            log.append(group(last + 1))
            log.sync()
        assert segment_numbers(folder) == ([1, 2] if is_rolled else [1])
        assert list(folder.glob("*.tmp")) == []
        check_after_a_kill(folder, tmp_path / "killed", last + 1, 1 + is_rolled)
        log.append(group(last + 2, count=50))
        assert log.head().segments == 2
        assert scns_of(read(log.beginning())) == list(range(1, last + 3))
        check_after_a_kill(folder, tmp_path / "killed later", last + 2, 2)


@pytest.mark.parametrize("spare", range(5))
def test_what_is_appended_after_a_failed_roll_survives_a_kill(tmp_path, spare):
    """A roll takes several descriptors; whichever of them cannot be had, the next small group is not lost."""
    asks = f"roll_without_files(Path({str(tmp_path)!r}), {spare})"
    code = f"from pathlib import Path; from tests.log.test_roll import roll_without_files; {asks}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("name", ["open", "fsync", "rename"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_roll_that_fails_at_any_step_leaves_the_log_as_it_was(tmp_path, monkeypatch, number, name, at):
    folder = tmp_path / "log"
    with open_log(folder, CONFIG) as log:
        last = fill_first_segment(log)
        real, left = getattr(os, name), [at]

        def fail(*args, **more):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(number, os.strerror(number))
            return real(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)  # no file system here can be made to fail each of them
            try:
                log.append(group(last + 1, count=50))
                last += 1
            except (DiskFull, ServiceUnavailable) as error:
                assert isinstance(error, DiskFull) == (number == errno.ENOSPC)  # noqa: PT017 - at a step that is none
        log.append(group(last + 1))
        log.sync()
        check_after_a_kill(folder, tmp_path / "killed", last + 1, log.head().segments)


def test_a_segment_that_cannot_be_removed_again_stops_the_log(tmp_path, monkeypatch):
    """Else what is appended after it would be lost by the next kill."""
    folder = tmp_path / "log"
    with open_log(folder, CONFIG) as log:
        last = fill_first_segment(log)
        log.sync()
        real, left = os.fsync, [1]

        def fail(fd):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, "Input/output error")
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(CorruptData, match=r"000000000002\.seg: this segment was begun"):
                log.append(group(last + 1, count=50))
        with pytest.raises(CorruptData, match="this segment was begun"):
            log.append(group(last + 1))
    check_after_a_kill(folder, tmp_path / "killed", last, 1)


def test_a_segment_whose_head_is_untrue_is_not_believed(tmp_path):
    """An older version left such a one behind where a roll had failed, and went on in the segment before."""
    folder = tmp_path / "log"
    with open_log(folder, CONFIG) as log:
        last = fill_first_segment(log)
        log.sync()
        header = log._view.segments[-1].header
        head = type(header)(
            **{name: getattr(header, name) for name in ("log", "physical", "identity", "timeline", "created_us")},
            number=2,
            before=log._ends.tail,
            published=log._ends.tail,
            previous_bytes=log._offset,
            in_force=log._ends.forces.in_force,
        )
        create_segment(folder, head, log.schemas)
        log.append(group(last + 1))
        log.sync()
        assert segment_numbers(folder) == [1, 2]
        check_after_a_kill(folder, tmp_path / "killed", last + 1, 1)
