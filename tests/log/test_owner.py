"""One process owns a log, and the next one learns who."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from databus.core import LockHeld
from tests.log.make import group, open_log, read, scns_of

OWNER = """
import sys, time
from pathlib import Path
from tests.log.make import open_log, group
log = open_log(Path(sys.argv[1]))
log.append(group(1))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_and_told_the_first_ones_name(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        try:
            assert owner.stdout.readline() == b"open\n"
            with pytest.raises(LockHeld, match=rf"process {owner.pid} on \S+ since \S+ \(\S*python\S* -c import sys"):
                open_log(tmp_path)
        finally:
            owner.send_signal(signal.SIGKILL)
            owner.wait(60)
    with open_log(tmp_path) as log:
        assert scns_of(read(log.beginning())) == [1]


def test_a_second_log_of_the_same_process_is_refused_too(tmp_path):
    with open_log(tmp_path) as log:
        log.append(group(1))
        with pytest.raises(LockHeld, match="owned by process"):
            open_log(tmp_path)
        log.append(group(2))
    open_log(tmp_path).close()


def test_a_log_that_failed_to_open_is_let_go_of(tmp_path):
    with open_log(tmp_path) as log:
        log.append(group(1))
    (tmp_path / "schemas.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(Exception, match=r"schemas\.json"):
            open_log(tmp_path)


def test_opening_reads_neither_sealed_segments_nor_what_is_durable(tmp_path):
    """20 GB of segments, by their headers only; their holes take no room."""
    with open_log(tmp_path) as log:
        while log.head().segments < 80:
            log.append(group(log.resume().scn + 1, count=20))
        sealed = [segment.path for segment in log._view.segments[:-1]]
    for path in sealed:
        with path.open("r+b") as file:
            header_bytes = int.from_bytes(file.read(12)[8:], "little")
            file.truncate(header_bytes)
            file.truncate(256 << 20)
    read_before = _bytes_read()
    with open_log(tmp_path) as log:
        assert log.head().segments == 80
    assert _bytes_read() - read_before < 4 << 20


def _bytes_read():
    return int(Path("/proc/self/io").read_text().split()[1])
