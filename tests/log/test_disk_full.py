"""A full disk: nothing half-written, an error that says so, and the same group taken once there is room."""

import errno
import os
import resource
import signal

import pytest

from databus.core import CorruptData, DiskFull
from databus.log import LogConfig
from tests.log.make import ORDERS, SMALL, STOCK, group, open_log, pairs_of, read, scns_of


class FileSizeLimit:
    """A limit on how large this process's files may grow, which a write past it meets as it meets a full disk."""

    def __enter__(self):
        self._soft, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return self

    def set(self, limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def __exit__(self, *_):
        self.set(self._soft)
        signal.signal(signal.SIGXFSZ, self._handler)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".seg", ".json")}


@pytest.mark.parametrize("room", [0, 1, 127, 128, 500, 900])
def test_a_write_without_room_leaves_nothing_and_may_be_repeated(tmp_path, room):
    with FileSizeLimit() as limit, open_log(tmp_path) as log:
        log.append(group(1))
        cursor = log.latest()
        before = files(tmp_path)
        end = log._offset
        limit.set(end + room)
        for _ in range(3):
            with pytest.raises(DiskFull, match=rf"seg: {os.strerror(errno.EFBIG)}; nothing was half-written"):
                log.append(group(2))
            assert files(tmp_path) == before
            assert cursor.read(1 << 20) == []
        limit.set(resource.RLIM_INFINITY)
        log.append(group(2))
        assert scns_of(read(cursor)) == [2]
    with open_log(tmp_path) as log:
        assert scns_of(read(log.beginning())) == [1, 2]


def test_a_part_without_room_does_not_undo_the_parts_before(tmp_path):
    with FileSizeLimit() as limit, open_log(tmp_path) as log:
        log.append(group(1, continues=True))
        limit.set(log._offset + 300)
        with pytest.raises(DiskFull):
            log.append(group(1, first_seq=2))
        limit.set(resource.RLIM_INFINITY)
        log.append(group(1, first_seq=2))
        assert [row[1:3] for row in pairs_of(read(log.beginning()))] == [(1, 1), (1, 2)]


def test_a_next_segment_without_room_leaves_the_log_as_it_was(tmp_path):
    with FileSizeLimit() as limit, open_log(tmp_path) as log:
        while log._offset < 15 << 10:
            log.append(group(log.resume().scn + 1))
        last, segments = log.resume().scn, log.head().segments
        before = files(tmp_path)
        limit.set(500)
        with pytest.raises(DiskFull):
            log.append(group(last + 1, count=50))
        assert files(tmp_path) == before
        assert [path.name for path in tmp_path.glob("*.tmp")] == []
        limit.set(resource.RLIM_INFINITY)
        log.append(group(last + 1, count=50))
        assert log.head().segments == segments + 1
        assert scns_of(read(log.beginning())) == list(range(1, last + 2))


def test_a_schema_without_room_is_not_registered(tmp_path):
    with FileSizeLimit() as limit, open_log(tmp_path) as log:
        log.append(group(1, tables=(ORDERS,)))
        before = files(tmp_path)
        limit.set(100)
        with pytest.raises(DiskFull, match=r"schemas\.json"):
            log.append(group(2, tables=(STOCK,)))
        assert files(tmp_path) == before
        assert "main.stock" not in log.schemas.ids()
        limit.set(resource.RLIM_INFINITY)
        log.append(group(2, tables=(STOCK,)))
    with open_log(tmp_path) as log:
        assert [row[0] for row in pairs_of(read(log.beginning()))] == ["main.orders", "main.stock"]


def test_too_little_free_room_stops_before_anything_is_written(tmp_path):
    config = LogConfig(**{**SMALL.model_dump(), "free_bytes_min": 1 << 60})
    with open_log(tmp_path, config) as log:
        before = files(tmp_path)
        with pytest.raises(DiskFull, match="free_bytes_min=1152921504606846976"):
            log.append(group(1))
        after = files(tmp_path)
        assert {name for name in after if name.endswith(".seg")} == {name for name in before if name.endswith(".seg")}
        assert all(after[name] == before[name] for name in before)
        assert log.head().published.scn == 0


def test_a_failed_fsync_is_never_forgotten(tmp_path, monkeypatch):
    """The kernel reports a lost write once; the log remembers, whatever the next fsync says."""
    with open_log(tmp_path, LogConfig(free_bytes_min=0, fsync_interval_ms=60_000)) as log:
        log.append(group(1))
        log.sync()
        log.append(group(2))

        def fail(fd):
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)  # no file system here can be made to fail one
            with pytest.raises(CorruptData, match="fsync failed"):
                log.sync()
        for call in (log.sync, log.cut_back, lambda: log.append(group(3))):
            with pytest.raises(CorruptData, match="fsync failed"):
                call()
        assert log.durable() == {"cut": 1}
