"""Versions of the log's format: an older log is read and goes on; a newer one is refused by name, and left as it is."""

import json
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from databus.core import SourceCheckpoint, UnsupportedFeature
from databus.log._mark import NAME as MARK
from databus.log._segment import SegmentHeader
from databus.wire import OpenSnapshot, header_length, unpack_header
from tests.log.make import bytes_of, group, open_log, pairs_of, parse, read, scns_of, us_of
from tests.wire.older import as_version_1, resealed

LONG = {
    f"main.a_table_with_a_name_of_some_length_{i:05}": OpenSnapshot(1 << 41, (i,), (1, 1 << 41)) for i in range(500)
}
_FIXED = struct.Struct("<4sHHIIIIII")


def make_older(folder: Path) -> None:
    """Turn every segment of a closed log into one of version 1, of the same length."""
    for path in sorted(folder.glob("*.seg")):
        content = path.read_bytes()
        first = SegmentHeader.load(path).header_bytes
        path.write_bytes(_head(content[:first]) + as_version_1(content[first:]))


def _head(head: bytes) -> bytes:
    magic, version, zero, header_bytes, facts_bytes, schemas_bytes, _, schemas_crc, _ = _FIXED.unpack_from(head)
    assert version == 2
    facts = json.loads(head[_FIXED.size : _FIXED.size + facts_bytes])
    for end in ("before", "published"):
        del facts[end]["has_unread"]
    text = json.dumps(facts, separators=(",", ":")).encode()
    schemas = head[_FIXED.size + facts_bytes :][:schemas_bytes]
    fixed = bytearray(_FIXED.size)
    _FIXED.pack_into(fixed, 0, magic, 1, zero, header_bytes, len(text), len(schemas), 0, schemas_crc, 0)
    struct.pack_into("<I", fixed, 20, crc32c(text, crc32c(fixed[:20])))
    return bytes(fixed + text + schemas).ljust(header_bytes, b"\0")


def versions_of(folder):
    """By segment: its version, and those of its frames."""
    found = {}
    for path in sorted(folder.glob("*.seg")):
        head = SegmentHeader.load(path)
        content, at, frames = memoryview(path.read_bytes()), head.header_bytes, set()
        while at < len(content):
            frames.add(content[at + 5])
            at += unpack_header(content[at:], "").frame_bytes
        found[path.name] = (head.version, frozenset(frames))
    return found


def older(folder, count):
    with open_log(folder) as log:
        for scn in range(1, count + 1):
            log.append(group(scn))
    make_older(folder)


@pytest.mark.parametrize("count", [0, 1, 5, 120])
def test_a_log_of_version_1_is_read_and_goes_on(tmp_path, count):
    older(tmp_path, count)
    before = versions_of(tmp_path)
    assert {version for version, _ in before.values()} == {1}
    for last in (count, count + 1, count + 2):
        with open_log(tmp_path) as log:
            assert log.resume().scn == last
            assert scns_of(read(log.beginning())) == list(range(1, last + 1))
            log.append(group(last + 1, snapshots=LONG))
            assert len(read(log.latest())) == 0
            for scn in range(1, last + 1):
                assert scns_of(read(log.locate(SourceCheckpoint(scn=scn, txid=f"tx-{scn}")))) == list(
                    range(scn + 1, last + 2)
                )
            assert scns_of(read(log.at_time(us_of(last + 1)))) == [last + 1]
    after = versions_of(tmp_path)
    assert {name: after[name] for name in before} == before
    assert {version for name, version in after.items() if name not in before} == {(2, frozenset({2}))}


def test_an_older_log_that_was_killed_inside_a_transaction_goes_on_before_it(tmp_path):
    with open_log(tmp_path) as log:
        log.append(group(1))
        log.append(group(2, continues=True))
    make_older(tmp_path)
    with open_log(tmp_path) as log:
        assert log.resume().scn == 1
        log.append(group(2))
        assert scns_of(read(log.beginning())) == [1, 2]


def test_a_transaction_is_cut_back_to_the_end_of_an_older_segment(tmp_path):
    older(tmp_path, 3)
    with open_log(tmp_path) as log:
        log.append(group(4, continues=True))
        log.cut_back()
        assert log.resume().scn == 3
        log.append(group(4))
        assert scns_of(read(log.beginning())) == [1, 2, 3, 4]
    with open_log(tmp_path) as log:
        assert scns_of(read(log.beginning())) == [1, 2, 3, 4]


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_segment_of_a_later_version_is_refused_and_left_as_it_is(tmp_path, has_mark):
    with open_log(tmp_path) as log:
        log.append(group(1))
    path = tmp_path / "000000000001.seg"
    content = bytearray(path.read_bytes())
    content[4] = 3
    facts_bytes = int.from_bytes(content[12:16], "little")
    content[20:24] = crc32c(content[32 : 32 + facts_bytes], crc32c(content[:20])).to_bytes(4, "little")
    path.write_bytes(content)
    if not has_mark:
        (tmp_path / MARK).unlink()
    with pytest.raises(
        UnsupportedFeature, match=r"000000000001\.seg at 4: segment version 3; this databus reads versions 1 to 2"
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
