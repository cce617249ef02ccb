"""Damage: any flipped byte, any truncation, any missing file gives the place or the right rows, never wrong ones."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.core import CorruptData, DatabusError, PositionPurged, SourceCheckpoint
from databus.log import LogConfig
from databus.log._mark import MarkFile
from tests.log.make import ORDERS, STOCK, bytes_of, group, open_log, pairs_of, parse, read, us_of

LAST = 60
CONFIG = LogConfig(
    segment_bytes_max=12 << 10, index_bytes_every=1024, free_bytes_min=0, fsync_interval_ms=60_000, fsync_bytes=1 << 30
)


def fill(log):
    for scn in range(1, LAST + 1):
        tables = (ORDERS, STOCK) if scn % 3 == 0 else (ORDERS,)
        log.append(group(scn, tables=tables, continues=scn % 10 == 0))
        if scn % 10 == 0:
            log.append(group(scn, first_seq=10))
        if scn == LAST - 5:
            log.sync()


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A log that was closed: all of it is durable."""
    folder = tmp_path_factory.mktemp("closed")
    with open_log(folder, CONFIG) as log:
        fill(log)
        assert log.head().segments > 3
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A log whose process was killed some transactions after an fsync, inside another one."""
    folder = tmp_path_factory.mktemp("killed")
    copy = tmp_path_factory.mktemp("copies") / "killed"
    with open_log(folder, CONFIG) as log:
        fill(log)
        log.append(group(LAST + 1, continues=True))
        shutil.copytree(folder, copy)
    return copy


@pytest.fixture(scope="module")
def whole(closed):
    with tempfile.TemporaryDirectory() as name:
        folder = shutil.copytree(closed, Path(name) / "log")
        with open_log(folder, CONFIG) as log:
            return pairs_of(read(log.beginning()))


def read_all(folder):
    """The rows served, and the error that ended that, if one did."""
    rows = []
    try:
        with open_log(folder, CONFIG) as log:
            cursor = log.beginning()
            while spans := cursor.read(2000):
                rows += pairs_of(parse(bytes_of(spans)))
            last = log.resume().scn
            log.append(group(last + 1, note="new"))
            assert pairs_of(read(cursor)) == [("main.orders", last + 1, 1, f"new-{last + 1}-1")]
            position = SourceCheckpoint(scn=LAST // 2)
            assert pairs_of(read(log.locate(position)))[-1][1] == last + 1
            assert pairs_of(read(log.at_time(us_of(LAST // 2))))[-1][1] == last + 1
    except DatabusError as error:
        return rows, error
    return rows, None


def damage(folder, data):
    """Do one thing to one file of the log; returns the file."""
    path = data.draw(st.sampled_from(sorted(p for p in folder.iterdir() if p.name != "LOCK")), label="file")
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["flip", "truncate", "delete", "zeros"]), label="how")
    at = data.draw(st.integers(0, len(content) - 1), label="at")
    if how == "flip":
        content[at] ^= data.draw(st.integers(1, 255), label="bits")
    elif how == "truncate":
        del content[at:]
    elif how == "zeros":
        end = min(len(content), at + data.draw(st.integers(1, 5000), label="length"))
        content[at:end] = bytes(end - at)
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(content)
    return path


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_nothing_durable_is_ever_lost_or_wrong_in_silence(closed, whole, data):
    with tempfile.TemporaryDirectory() as name:
        folder = shutil.copytree(closed, Path(name) / "log")
        path = damage(folder, data)
        rows, error = read_all(folder)
    assert rows == whole[: len(rows)]
    if error is None:
        assert rows == whole
    elif isinstance(error, PositionPurged):
        assert path.name == "000000000001.seg"  # gone without a trace, as retention leaves it
    else:
        assert isinstance(error, CorruptData)
        assert str(folder) in str(error)
        assert path.name in str(error)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_after_a_kill_the_tail_is_cut_back_and_what_was_durable_is_whole(killed, whole, data):
    with tempfile.TemporaryDirectory() as name:
        folder = shutil.copytree(killed, Path(name) / "log")
        mark = MarkFile(folder).read()
        path = damage(folder, data)
        rows, error = read_all(folder)
    assert rows == whole[: len(rows)]
    if error is None:
        durable = [row for row in whole if row[1] <= LAST - 5]
        assert rows[: len(durable)] == durable
        if path.suffix != ".seg" or path.stem < f"{mark.segment:012d}":
            assert rows == whole
    elif isinstance(error, PositionPurged):
        assert path.name == "000000000001.seg"
    else:
        assert isinstance(error, CorruptData)
        assert path.name in str(error)


def test_a_kill_alone_costs_nothing_but_the_unfinished_transaction(killed, whole, tmp_path):
    rows, error = read_all(shutil.copytree(killed, tmp_path / "log"))
    assert error is None
    assert rows == whole


@pytest.mark.parametrize("in_body", [True, False])
def test_a_wrong_byte_that_was_never_fsynced_is_cut_off_with_what_follows(tmp_path, in_body):
    with open_log(tmp_path / "log", CONFIG) as log:
        for scn in range(1, 4):
            log.append(group(scn))
        log.sync()
        places = []
        for scn in range(4, 7):
            places.append(log._offset)
            log.append(group(scn))
        copy = shutil.copytree(tmp_path / "log", tmp_path / "killed")
    flip(copy / "000000000001.seg", places[1] + (400 if in_body else 20))
    with open_log(copy, CONFIG) as log:
        assert log.resume().scn == 4
        assert {row[1] for row in pairs_of(read(log.beginning()))} == {1, 2, 3, 4}


def test_a_recovery_that_was_killed_is_done_again(tmp_path):
    with open_log(tmp_path / "log", CONFIG) as log:
        log.append(group(1))
        for part in range(60):
            log.append(group(2, count=10, first_seq=1 + 10 * part, continues=True))
        assert log.head().segments > 3
        copy = shutil.copytree(tmp_path / "log", tmp_path / "killed")
    newest = max(copy.glob("*.seg"))
    newest.unlink()  # as far as the first recovery came
    with open_log(copy, CONFIG) as log:
        assert (log.resume().scn, log.head().segments) == (1, 1)


def test_a_mark_that_retention_has_passed_is_only_old(tmp_path):
    config = LogConfig(**{**CONFIG.model_dump(), "retention_bytes_max": 30 << 10})
    with open_log(tmp_path, config) as log:
        log.append(group(1))
        log.sync()
        old = (tmp_path / "durable.mark").read_bytes()
        for scn in range(2, 100):
            log.append(group(scn))
        log.retain()
        oldest = log.head().oldest.scn
        assert oldest > 1
    (tmp_path / "durable.mark").write_bytes(old)
    with open_log(tmp_path, config) as log:
        assert [row[1] for row in pairs_of(read(log.earliest()))] == list(range(oldest + 1, 100))


def test_retention_leaves_a_mark_that_names_what_is_there(tmp_path):
    config = LogConfig(**{**CONFIG.model_dump(), "retention_bytes_max": 0})
    with open_log(tmp_path / "log", config) as log:
        log.append(group(1))
        log.sync()
        while log.head().segments < 3:
            log.append(group(log.resume().scn + 1))
        log.append(group(log.resume().scn + 1))
        log.retain()
        copy = shutil.copytree(tmp_path / "log", tmp_path / "killed")
        assert MarkFile(copy).read().segment >= log._view.segments[0].number
        last = log.resume().scn
    with open_log(copy, config) as log:
        assert log.resume().scn == last


def test_without_its_mark_a_log_is_read_through_and_is_whole(killed, whole, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "log")
    (folder / "durable.mark").unlink()
    assert read_all(folder) == (whole, None)


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def test_a_corrupt_middle_is_reported_with_its_place_and_what_is_before_it_served(tmp_path):
    with open_log(tmp_path) as log:
        for scn in range(1, 100):
            log.append(group(scn, count=3))
        segment = log._view.segments[2]
        first = log.beginning().measure(to=(segment.header.before.commit.scn, 1)).end.scn + 1
        hurt = segment.first_offset + 900  # inside the body of the first group's rows
        flip(segment.path, hurt)
        cursor = log.beginning()
        served = []
        with pytest.raises(CorruptData, match=rf"{segment.path.name} at {segment.first_offset}: the body's checksum"):
            while spans := cursor.read(1 << 20):
                served += [scn for _, scn, _, _ in pairs_of(parse(bytes_of(spans)))]
        assert served[-1] == first - 1
        assert cursor.position.scn == first - 1
        with pytest.raises(CorruptData):
            cursor.read(1)
        after = log.locate(SourceCheckpoint(scn=first))  # what is behind the damage is still there for who needs it
        assert pairs_of(read(after))[-1][1] == 99


def test_a_segment_cut_under_a_running_log_is_an_error_not_a_crash(tmp_path):
    with open_log(tmp_path) as log:
        for scn in range(1, 100):
            log.append(group(scn, count=3))
        path = log._view.segments[1].path
        os.truncate(path, path.stat().st_size // 2)
        cursor = log.beginning()
        with pytest.raises(CorruptData, match=rf"{path.name} at \d+: the file ends here"):
            read(cursor)
        log.append(group(100))
        assert log.resume().scn == 100


@pytest.mark.parametrize("left_bytes", [0, 10, 100])
def test_a_segment_that_was_only_begun_is_taken_away(tmp_path, left_bytes):
    with open_log(tmp_path) as log:
        for scn in range(1, 50):
            log.append(group(scn))
        last = log._view.segments[-1].number
    begun = tmp_path / f"{last + 1:012d}.seg"
    header = (tmp_path / f"{last:012d}.seg").read_bytes()[:left_bytes]
    begun.write_bytes(header)
    with open_log(tmp_path) as log:
        assert not begun.exists()
        assert log.resume().scn == 49


def test_a_first_segment_that_was_only_begun_is_begun_again(tmp_path):
    (tmp_path / "000000000001.seg").write_bytes(b"DBS1")
    with open_log(tmp_path) as log:
        log.append(group(1))
        assert len(read(log.beginning())) == 1


def test_a_newest_segment_with_frames_behind_a_broken_header_is_not_thrown_away(tmp_path):
    with open_log(tmp_path) as log:
        for scn in range(1, 50):
            log.append(group(scn))
        path = log._view.segments[-1].path
    for mark_is_there in (True, False):
        if not mark_is_there:
            (tmp_path / "durable.mark").unlink()
        flip(path, 40) if mark_is_there else None
        with pytest.raises(CorruptData, match=f"{path.name} at 0: the segment header's checksum"):
            open_log(tmp_path)
        assert path.exists()
