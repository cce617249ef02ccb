"""Packets of a replication connection, taken apart."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import CorruptData, InputError, LimitExceeded, PositionPurged, SourceChanged
from databus.sources.mysql.binlog import DumpEnded, DumpRefused, PacketSplitter
from databus.sources.mysql.binlog._event_types import EventType

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


BEGINS = (EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID)
ROWS = (EventType.TABLE_MAP, EventType.WRITE_ROWS, EventType.UPDATE_ROWS_V1, EventType.WRITE_ROWS_COMPRESSED)


def of_kind(kind: int, size: int = 40) -> bytes:
    raw = bytearray(event(size, kind))
    raw[4] = kind
    return bytes(raw)


def kinds_in(events: bytes) -> list[tuple[int, int]]:
    """Place and kind of each."""
    found, at = [], 0
    while at < len(events):
        found.append((at, events[at + 4]))
        at += int.from_bytes(events[at + 9 : at + 13], "little")
    return found


TRANSACTIONS = st.tuples(
    st.sampled_from(BEGINS),
    st.lists(st.tuples(st.sampled_from(ROWS), st.integers(19, 300)), max_size=4),
    st.sampled_from([EventType.XID, EventType.QUERY]),
)


@given(st.lists(TRANSACTIONS, max_size=40), st.lists(st.integers(0, 900), max_size=60))
def test_a_block_ends_between_transactions_where_that_holds_little_back(
    transactions: list[tuple[int, list[tuple[int, int]], int]], cuts: list[int]
) -> None:
    whole = [
        [of_kind(begin), *(of_kind(kind, size) for kind, size in rows), of_kind(end)]
        for begin, rows, end in transactions
    ]
    stream = packets(each for events in whole for each in events)
    ends = [0]  # of each transaction: in the stream, and among the events
    for events in whole:
        ends.append(ends[-1] + sum(map(len, events)))
    splitter = PacketSplitter(holds_transactions=True)
    given_out, at = b"", 0
    for cut in [*cuts, len(stream)]:
        block = splitter.feed(stream[at : at + cut]).tobytes()
        at = min(at + cut, len(stream))
        given_out += block
        events_fed = split(stream[:at], [])
        assert len(given_out) >= max(
            end for end in ends if end <= len(events_fed)
        )  # what is finished waits for nothing
        found = kinds_in(block)
        if found and found[-1][1] in ROWS:
            assert 2 * max((place for place, kind in found if kind in BEGINS), default=0) < len(block)
    assert given_out == b"".join(each for events in whole for each in events)


def test_what_the_server_ends_inside_a_transaction_comes_before_its_last_words() -> None:
    events = [of_kind(EventType.XID, 200), of_kind(EventType.GTID), of_kind(EventType.WRITE_ROWS)]
    splitter = PacketSplitter(holds_transactions=True)
    assert splitter.feed(packets(events)).tobytes() == b"".join(events[:1])
    assert splitter.feed(messages([b"\xfe\x00\x00\x00\x00"], 4)[0]).tobytes() == b"".join(events[1:])
    assert isinstance(splitter.ended, DumpEnded)


def test_a_packet_out_of_sequence_is_refused() -> None:
    with pytest.raises(CorruptData, match="sequence number"):
        PacketSplitter().feed(packets([event(40)], sequence=2))


def test_an_event_that_says_another_size_is_refused() -> None:
    wrong = bytearray(event(40))
    wrong[9] += 1
    with pytest.raises(CorruptData, match="another size"):
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
        (b"\xff\xcb\x04#42000Access denied; you need REPLICATION SLAVE", InputError),
        (b"\xff\x1d\x04#08S01Server shutdown in progress", DumpRefused),
        (b"\xff", DumpRefused),
        (b"\xfe\x00\x00\x00\x00", DumpEnded),
        (b"\x07what", CorruptData),
    ],
)
def test_the_servers_last_words_become_an_error_of_their_kind(message: bytes, expected: type[Exception]) -> None:
    splitter = PacketSplitter()
    splitter.feed(messages([message])[0])
    assert type(splitter.ended) is expected
