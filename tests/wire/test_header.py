"""Headers: what is packed is unpacked, and any other byte is noticed and named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import CorruptData, LimitExceeded, UnsupportedFeature
from databus.wire import (
    COMMIT,
    CONTINUES,
    CONTROL,
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    PARTIAL,
    ROWS,
    SNAPSHOT,
    UNREAD,
    Header,
    pack_header,
    unpack_header,
)
from databus.wire._header import BODY_BYTES_MAX, COMMIT_BODY_BYTES_MAX, POSITION_BYTES_MAX
from tests.wire.resealed import resealed

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def headers(draw):
    kind = draw(st.sampled_from([ROWS, COMMIT, CONTROL]))
    return {
        "kind": kind,
        "flags": draw(st.sampled_from([0, CONTINUES, SNAPSHOT, CONTINUES | SNAPSHOT, CONTINUES | UNREAD])),
        "body_crc": draw(U32),
        "rows": draw(U32),
        "body_bytes": draw(st.integers(0, COMMIT_BODY_BYTES_MAX if kind == COMMIT else BODY_BYTES_MAX)),
        "source_id": draw(U32),
        "schema_version": draw(U32),
        "fingerprint": draw(U64),
        "first": (draw(I64), draw(I64)),
        "last": (draw(I64), draw(I64)),
        "commit_us": draw(I64),
        "capture_us": draw(I64),
        "position": draw(st.binary(max_size=300)),
    }


@given(headers())
def test_what_is_packed_is_unpacked(fields):
    packed = pack_header(**fields)
    assert len(packed) % 64 == 0
    assert HEADER_BYTES_MIN <= len(packed) <= HEADER_BYTES_MAX
    header = unpack_header(memoryview(packed + b"the body"), "here")
    for name, value in fields.items():
        assert getattr(header, name) == value
    assert header.header_bytes == len(packed)
    assert header.frame_bytes == len(packed) + fields["body_bytes"]
    assert header.publishes == (header.kind == COMMIT and not header.flags & CONTINUES)


@given(headers(), st.data())
def test_any_flipped_byte_is_noticed_and_its_place_named(fields, data):
    packed = bytearray(pack_header(**fields))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptData, match="seg-17 at 8192"):
        unpack_header(memoryview(packed), "seg-17 at 8192")


@given(headers(), st.data())
def test_any_truncation_is_noticed(fields, data):
    packed = pack_header(**fields)
    left = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(CorruptData, match="here"):
        unpack_header(memoryview(left), "here")


@given(st.binary(min_size=HEADER_BYTES_MIN, max_size=400))
def test_what_no_relay_wrote_is_no_header(content):
    with pytest.raises(CorruptData):
        unpack_header(memoryview(content), "here")


def test_the_longest_position_fits_and_the_next_does_not():
    header = {"first": (1, 1), "last": (1, 1), "commit_us": 0, "capture_us": 0}
    packed = pack_header(COMMIT, **header, position=b"x" * POSITION_BYTES_MAX)
    assert len(packed) == HEADER_BYTES_MAX
    assert unpack_header(memoryview(packed), "").position == b"x" * POSITION_BYTES_MAX
    with pytest.raises(ValueError, match="exceeds"):
        pack_header(COMMIT, **header, position=b"x" * (POSITION_BYTES_MAX + 1))


def test_a_header_is_laid_out_as_documented():
    packed = pack_header(
        ROWS,
        flags=SNAPSHOT,
        body_crc=0x01020304,
        rows=5,
        body_bytes=64,
        source_id=40,
        schema_version=2,
        fingerprint=0xF1F2F3F4F5F6F7F8,
        first=(6, 7),
        last=(8, 9),
        commit_us=10,
        capture_us=11,
    )

    def number(at, size):
        return int.from_bytes(packed[at : at + size], "little")

    assert packed[:6] == b"DBF1\x01\x02"
    assert [number(at, 2) for at in (6, 8, 10)] == [2, 128, 0]
    assert [number(at, 4) for at in (16, 20, 32, 36, 96)] == [0x01020304, 5, 40, 2, 0]
    assert [number(at, 8) for at in (24, 40, 48, 56, 64, 72, 80, 88)] == [64, 0xF1F2F3F4F5F6F7F8, 6, 7, 8, 9, 10, 11]
    assert isinstance(unpack_header(memoryview(packed), ""), Header)


FIELDS = {"first": (1, 1), "last": (1, 1), "commit_us": 0, "capture_us": 0}


@pytest.mark.parametrize("kind", [ROWS, COMMIT, CONTROL])
def test_a_body_that_readers_refuse_is_not_written_either(kind):
    largest = COMMIT_BODY_BYTES_MAX if kind == COMMIT else BODY_BYTES_MAX
    packed = pack_header(kind, body_bytes=largest, **FIELDS)
    assert unpack_header(memoryview(packed), "").body_bytes == largest
    with pytest.raises(LimitExceeded, match=f"{largest + 1} bytes"):
        pack_header(kind, body_bytes=largest + 1, **FIELDS)
    larger = resealed(packed, {24: (largest + 1).to_bytes(8, "little")})
    with pytest.raises(CorruptData, match="there: impossible header"):
        unpack_header(memoryview(larger), "there")


@pytest.mark.parametrize("wrong", [{"kind": 4}, {"kind": 0}, {"flags": PARTIAL}, {"flags": 64}, {"rows": 1 << 32}])
def test_a_header_that_readers_refuse_is_not_written_either(wrong):
    with pytest.raises(ValueError, match=r"."):
        pack_header(**{"kind": ROWS, **FIELDS, **wrong})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({5: b"\x03"}, "frame version 3, and this databus reads version 2"),
        ({5: b"\x01"}, "frame version 1"),
        ({6: PARTIAL.to_bytes(2, "little")}, "partial row images"),
        ({6: (1 << 9).to_bytes(2, "little")}, "flags 0x200"),
    ],
)
def test_a_frame_of_a_form_that_is_not_read_is_refused_by_name(changes, said):
    """Not as damage: nothing is cut off for it."""
    packed = resealed(pack_header(ROWS, rows=1, **FIELDS), changes)
    with pytest.raises(UnsupportedFeature, match=f"there: {said}"):
        unpack_header(memoryview(packed), "there")
