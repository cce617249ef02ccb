"""Versions of the log's format: another one is refused by name, and left as it is; and positions of any size."""

import pytest
from crc32c import crc32c

from databus.core import SourceCheckpoint, UnsupportedFeature
from databus.log._mark import NAME as MARK
from databus.log._segment import SegmentHeader
from databus.wire import OpenSnapshot, header_length
from tests.log.make import bytes_of, group, open_log, pairs_of, parse, read, scns_of
from tests.wire.resealed import resealed

LONG = {
    f"main.a_table_with_a_name_of_some_length_{i:05}": OpenSnapshot(1 << 41, (i,), (1, 1 << 41)) for i in range(500)
}


@pytest.mark.parametrize("has_mark", [True, False])
@pytest.mark.parametrize("version", [1, 3])
def test_a_segment_of_another_version_is_refused_and_left_as_it_is(tmp_path, version, has_mark):
    with open_log(tmp_path) as log:
        log.append(group(1))
    path = tmp_path / "000000000001.seg"
    content = bytearray(path.read_bytes())
    content[4] = version
    facts_bytes = int.from_bytes(content[12:16], "little")
    content[20:24] = crc32c(content[32 : 32 + facts_bytes], crc32c(content[:20])).to_bytes(4, "little")
    path.write_bytes(content)
    if not has_mark:
        (tmp_path / MARK).unlink()
    with pytest.raises(
        UnsupportedFeature, match=rf"000000000001\.seg at 4: segment version {version}; this databus reads version 2"
    ):
        open_log(tmp_path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("has_mark", [True, False])
def test_frames_of_a_later_version_are_no_torn_tail(tmp_path, has_mark):
    """Nothing that another version of databus wrote is cut off as if a crash had torn it."""
    with open_log(tmp_path) as log:
        log.append(group(1))
        end = log._offset
    path = tmp_path / "000000000001.seg"
    if not has_mark:
        (tmp_path / MARK).unlink()
    content = path.read_bytes()
    frame = content[SegmentHeader.load(path).header_bytes :]
    assert header_length(memoryview(frame), "") == 128
    path.write_bytes(content + resealed(frame, {5: b"\x03"}))
    with pytest.raises(UnsupportedFeature, match=rf"at {end}: frame version 3"):
        open_log(tmp_path)
    assert path.read_bytes() == content + resealed(frame, {5: b"\x03"})


def test_positions_of_any_size_survive_rolls_kills_and_searches(tmp_path):
    """500 open snapshots in each commit frame: beyond what a header holds."""
    with open_log(tmp_path) as log:
        for scn in range(1, 12):
            log.append(group(scn, snapshots=LONG, continues=scn == 11))
        assert log.head().segments > 5
        cursor = log.beginning()
        groups = []
        while spans := cursor.read(1000, sources=frozenset()):
            groups += parse(bytes_of(spans))
            assert set(cursor.position.snapshots) <= set(LONG)
        assert [each.commit.last_scn for each in groups] == list(range(1, 11))
        measured = log.beginning().measure(rows_max=5)
        assert (measured.rows, measured.groups, measured.end.scn) == (5, 5, 5)
        log.sync()
    with open_log(tmp_path) as log:
        resume = log.resume()
        assert (resume.scn, dict(resume.snapshots)) == (10, LONG)
        log.append(group(11))
        assert scns_of(read(log.locate(SourceCheckpoint(scn=4)))) == list(range(5, 12))
        assert len(pairs_of(read(log.beginning()))) == 11
