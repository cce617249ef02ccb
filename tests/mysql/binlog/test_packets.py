"""Packets of a replication connection, taken apart."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import Corrupt, LimitExceeded, PositionPurged, SourceChanged, WrongInput
from databus.sources.mysql.binlog import DumpEnded, DumpRefused, PacketSplitter

FULL = 0xFFFFFF


def packets(events: Iterable[bytes], sequence: int = 1) -> bytes:
    """What a server sends for these events."""
    return b"".join(messages([b"\0" + event for event in events], sequence))


def messages(payloads: Iterable[bytes], sequence: int = 1) -> list[bytes]:
    sent = []
    for payload in payloads:
        rest, is_done = payload, False
        while not is_done:
            part, rest = rest[:FULL], rest[FULL:]
            sent.append(len(part).to_bytes(3, "little") + bytes([sequence]) + part)
            sequence = (sequence + 1) & 0xFF
            is_done = len(part) < FULL
    return sent


def event(size: int, seed: int = 0) -> bytes:
    raw = bytearray(random.Random(seed).randbytes(size))
    raw[9:13] = size.to_bytes(4, "little")
    return bytes(raw)


def split(stream: bytes, cuts: Iterable[int]) -> bytes:
    splitter = PacketSplitter()
    out, at = b"", 0
    for cut in cuts:
        out += splitter.feed(stream[at : at + cut]).tobytes()
        at += cut
    return out + splitter.feed(stream[at:]).tobytes()


@given(
    st.lists(st.integers(19, 400), max_size=300),
    st.lists(st.integers(0, 700), max_size=60),
)
def test_events_come_out_whole_wherever_the_stream_is_cut(sizes: list[int], cuts: list[int]) -> None:
    events = [event(size, i) for i, size in enumerate(sizes)]
    assert split(packets(events), cuts) == b"".join(events)


def test_what_is_kept_of_an_event_has_room_for_each_byte_that_follows() -> None:
    stream = packets([event(40, 1), event(30, 2), event(25, 3)])
    for cut in range(len(stream)):
        assert split(stream, [cut, 1, 1, 2]) == event(40, 1) + event(30, 2) + event(25, 3)


@pytest.mark.parametrize("size", [FULL - 2, FULL - 1, FULL, 2 * FULL - 1, 2 * FULL + 5])
def test_an_event_of_several_packets_is_one_event(size: int) -> None:
    events = [event(50), event(size), event(60)]
    assert split(packets(events), [1_000_000] * 40) == b"".join(events)


def test_what_is_fed_may_be_reused_and_what_comes_out_is_the_callers() -> None:
    stream = bytearray(packets([event(40, 1), event(30, 2)]))
    splitter = PacketSplitter()
    first = splitter.feed(stream)
    stream[:] = bytes(len(stream))
    assert first.tobytes() == event(40, 1) + event(30, 2)


def test_a_packet_out_of_sequence_is_refused() -> None:
    with pytest.raises(Corrupt, match="sequence number"):
        PacketSplitter().feed(packets([event(40)], sequence=2))


def test_an_event_that_says_another_size_is_refused() -> None:
    wrong = bytearray(event(40))
    wrong[9] += 1
    with pytest.raises(Corrupt, match="another size"):
        PacketSplitter().feed(packets([bytes(wrong)]))


def test_too_large_an_event_is_refused_before_it_is_there() -> None:
    splitter = PacketSplitter(event_bytes_max=1000)
    with pytest.raises(LimitExceeded, match="event_bytes_max"):
        splitter.feed(packets([event(1001)])[:100])


def test_an_error_comes_after_the_events_before_it() -> None:
    text = b"\xff\xd4\x04#HY000Could not find first log file name in binary log index file"
    splitter = PacketSplitter()
    assert splitter.feed(packets([event(40)]) + messages([text], 2)[0]).tobytes() == event(40)
    assert isinstance(splitter.ended, PositionPurged)
    assert "1236" in str(splitter.ended)
    with pytest.raises(PositionPurged):
        splitter.feed(b"more")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"\xff\xd4\x04#HY000The replica has more GTIDs than the source", SourceChanged),
        (b"\xff\xd4\x04#HY000log event entry exceeded max_allowed_packet", DumpRefused),
        (b"\xff\xcb\x04#42000Access denied; you need REPLICATION SLAVE", WrongInput),
        (b"\xff\x1d\x04#08S01Server shutdown in progress", DumpRefused),
        (b"\xff", DumpRefused),
        (b"\xfe\x00\x00\x00\x00", DumpEnded),
        (b"\x07what", Corrupt),
    ],
)
def test_the_servers_last_words_become_an_error_of_their_kind(message: bytes, expected: type[Exception]) -> None:
    splitter = PacketSplitter()
    splitter.feed(messages([message])[0])
    assert type(splitter.ended) is expected
