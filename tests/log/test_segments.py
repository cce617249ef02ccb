"""Segments: how they follow each other, what retention removes and what it never does, and their indexes."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from databus.core import CorruptData, PositionPurged
from databus.log import LogConfig
from databus.log._index import SparseIndex
from databus.log._segment import SegmentHeader, segment_numbers
from databus.testing import FakeClock
from tests.log.make import SMALL, bytes_of, group, open_log, pairs_of, read, scns_of


def with_retention(**more):
    return LogConfig(**{**SMALL.model_dump(), **more})


def test_retention_by_bytes_removes_whole_segments_from_the_front(tmp_path):
    with open_log(tmp_path, with_retention(retention_bytes_max=60 << 10)) as log:
        for scn in range(1, 300):
            log.append(group(scn))
        log.retain()
        head = log.head()
        assert 44 << 10 < head.bytes <= 60 << 10
        assert sum(path.stat().st_size for path in tmp_path.glob("*.seg")) == head.bytes
        scns = scns_of(read(log.earliest()))
        assert scns == list(range(head.oldest.scn + 1, 300))
    with open_log(tmp_path, with_retention(retention_bytes_max=60 << 10)) as log:
        assert scns_of(read(log.earliest())) == scns


def test_the_logs_own_thread_applies_retention(tmp_path):
    with open_log(tmp_path, with_retention(retention_bytes_max=60 << 10)) as log:
        for scn in range(1, 300):
            log.append(group(scn))
        with log._changed:
            assert log._changed.wait_for(lambda: len(log._view.segments) <= 4, 10)


def test_retention_by_time_counts_from_the_end_of_a_segment(tmp_path):
    clock = FakeClock()
    with open_log(tmp_path, with_retention(retention_ms_max=1000), clock=clock) as log:
        while log.head().segments < 4:
            log.append(group(log.resume().scn + 1))
        clock.advance_ms(900)
        while log.head().segments < 6:
            log.append(group(log.resume().scn + 1))
        log.retain()
        assert log.head().segments == 6
        clock.advance_ms(200)
        log.retain()
        assert log.head().segments == 3
        clock.advance_ms(100_000)
        log.sync()
        log.retain()
        assert log.head().segments == 1


def test_retention_never_removes_the_last_published_group_nor_what_follows(tmp_path):
    with open_log(tmp_path, with_retention(retention_bytes_max=0)) as log:
        log.append(group(1, note="published"))
        for part in range(100):
            log.append(group(2, count=5, first_seq=1 + part * 5, continues=True))
            log.retain()
        assert log.head().segments > 3
        assert [note for *_, note in pairs_of(read(log.earliest()))] == ["published-1-1"]
        log.cut_back()
        assert log.resume().scn == 1


def test_a_segment_that_cannot_be_removed_now_is_removed_later_and_leaves_no_hole(tmp_path, monkeypatch):
    with open_log(tmp_path, with_retention(retention_bytes_max=1 << 30, fsync_interval_ms=60_000)) as log:
        for scn in range(1, 120):
            log.append(group(scn))
        log.config = with_retention(retention_bytes_max=60 << 10)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", _fails_for("000000000001.seg", Path.unlink))
            with pytest.raises(OSError, match="Input/output error"):
                log.retain()
        assert segment_numbers(tmp_path)[0] == 1
        for scn in range(120, 160):
            log.append(group(scn))
        log.retain()
        first = log.head().oldest.scn + 1
        assert segment_numbers(tmp_path)[0] > 1
    with open_log(tmp_path) as log:
        assert scns_of(read(log.earliest())) == list(range(first, 160))


def _fails_for(name, really):
    def unlink(path, missing_ok=False):
        if path.name == name:
            raise OSError(errno.EIO, "Input/output error")
        really(path, missing_ok=missing_ok)

    return unlink


def test_a_reader_keeps_what_it_holds_when_retention_removes_it(tmp_path):
    with open_log(tmp_path, with_retention(retention_bytes_max=20 << 10)) as log:
        for scn in range(1, 100):
            log.append(group(scn))
        cursor = log.earliest()
        spans = cursor.read(4000)
        held = bytes_of(spans)
        first = spans[0].file.path
        for scn in range(100, 300):
            log.append(group(scn))
        log.retain()
        assert not first.exists()
        assert bytes_of(spans) == held
        with pytest.raises(PositionPurged):
            cursor.read(4000)
        assert descriptors_of(first)
        del spans, cursor
        assert not descriptors_of(first)


def descriptors_of(path: Path) -> list[str]:
    """Descriptors of this process that hold a file, also one without a name any more."""
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(str(each.readlink()))
    return [link for link in links if link.removesuffix(" (deleted)") == str(path)]


def test_a_segment_header_tells_all_that_came_before(tmp_path):
    with open_log(tmp_path) as log:
        for scn in range(1, 40):
            log.append(group(scn))
        for part in range(40):
            log.append(group(40, count=5, first_seq=1 + part * 5, continues=part < 39))
        numbers = [segment.number for segment in log._view.segments]
        headers = [SegmentHeader.load(tmp_path / f"{number:012d}.seg") for number in numbers]
    inside = [header for header in headers if header.before.commit.continues]
    assert inside
    assert {(each.published.commit.scn, each.published.commit.position["cut"]) for each in inside} == {(39, 39)}
    for before, header in pairwise(headers):
        assert header.log == log.uuid
        assert header.identity == log.identity
        assert header.previous_bytes == (tmp_path / f"{before.number:012d}.seg").stat().st_size
        assert header.before.segment == before.number
        assert header.before.commit.txid == f"tx-{header.before.commit.scn}"


def test_indexes_are_beside_sealed_segments_and_made_anew_when_missing(tmp_path):
    with open_log(tmp_path) as log:
        for scn in range(1, 200):
            log.append(group(scn))
        segments = sorted(tmp_path.glob("*.seg"))
        assert sorted(path.stem for path in tmp_path.glob("*.idx")) == [path.stem for path in segments[:-1]]
        written = {path: path.read_bytes() for path in tmp_path.glob("*.idx")}
        position = log.at_time(log.head().oldest.ts_us).position
    for path in written:
        path.unlink()
    with open_log(tmp_path) as log:
        for scn in range(1, 199):
            position = log.locate(log.head().oldest.__class__("db-1", scn)).position
            assert position.scn == scn
        assert {path: path.read_bytes() for path in tmp_path.glob("*.idx")} == written


def test_an_index_spares_reading_the_segment(tmp_path):
    config = LogConfig(free_bytes_min=0, index_bytes_every=4096)
    with open_log(tmp_path, config) as log:
        for scn in range(1, 2000):
            log.append(group(scn))
        end = log._view.published.offset
        entry = log._view.index(log._view.segments[0]).before_pair((1500, 0), end)
        assert entry is not None
        assert end * 0.7 < entry.offset < end * 0.8
        assert (1490, 0) < (entry.scn, entry.seq) <= (1500, 0)


def test_a_log_that_was_opened_again_finds_what_came_before(tmp_path):
    config = LogConfig(free_bytes_min=0, index_bytes_every=512)
    with open_log(tmp_path, config) as log:
        for scn in range(1, 50):
            log.append(group(scn))
    with open_log(tmp_path, config) as log:
        for scn in range(50, 100):
            log.append(group(scn))
        for scn in (1, 30, 48, 49, 50, 51, 70, 99):
            cursor = log.locate(log.head().oldest.__class__("db-1", scn, txid=f"tx-{scn}"))
            assert scns_of(read(cursor)) == list(range(scn + 1, 100))


def test_a_group_larger_than_a_segment_gets_one_of_its_own(tmp_path):
    with open_log(tmp_path) as log:
        log.append(group(1))
        log.append(group(2, count=3000))
        log.append(group(3))
        assert log.head().segments == 3
        assert scns_of(read(log.beginning())) == [1, 2, 3]


def test_readers_that_miss_the_same_index_make_it_side_by_side(tmp_path):
    readers = 8
    with open_log(tmp_path) as log, ThreadPoolExecutor(readers) as pool:
        for scn in range(1, 120):
            log.append(group(scn))
        sealed = log._view.segments[:-1]
        assert len(sealed) > 3
        together = threading.Barrier(readers)

        def find_all():
            together.wait(60)
            return [len(log._view.index(segment)) for segment in sealed]

        for _ in range(20):
            for segment in sealed:
                log._view.forget(segment)
            found = [reader.result(60) for reader in [pool.submit(find_all) for _ in range(readers)]]
            assert found == [found[0]] * readers
            assert [path.stem for path in sorted(tmp_path.glob("*.idx*"))] == [each.path.stem for each in sealed]


@pytest.mark.parametrize("what", ["retain", "cut_back"])
def test_an_index_made_while_its_segment_goes_is_not_kept(tmp_path, monkeypatch, what):
    build = SparseIndex.build
    config = LogConfig(**{**SMALL.model_dump(), "retention_bytes_max": 1 << 30})
    with open_log(tmp_path, config) as log:
        for scn in range(1, 60):
            log.append(group(scn))
        for part in range(60):
            log.append(group(60, first_seq=1 + part, continues=True))
        view = log._view
        segment = view.segments[0] if what == "retain" else view.segment(view.published.segment)
        view.forget(segment)

        def slow(*args):  # a spy, to have a reader that is overtaken
            made = build(*args)
            if what == "retain":
                log.config = SMALL.model_copy(update={"retention_bytes_max": 20 << 10})
                log.sync()
                log.retain()
            else:
                log.cut_back()
            return made

        monkeypatch.setattr(SparseIndex, "build", slow)
        view.index(segment)
        monkeypatch.undo()
        assert (segment in view.segments) == (what == "cut_back")
        assert not segment.index_path().exists()
        assert segment.number not in view._indexes


def test_a_stretch_that_was_checked_before_and_is_gone_is_an_error_before_it_is_sent(tmp_path):
    with open_log(tmp_path) as log:
        for scn in range(1, 60):
            log.append(group(scn))
        assert scns_of(read(log.beginning())) == list(range(1, 60))
        path = log._view.segments[0].path
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(CorruptData, match="the file ends here"):
            log.beginning().read(1 << 20)
