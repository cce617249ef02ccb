"""Damaged logs: an error that names the place, or a result; never a crash, a hang or a byte read beyond the end."""

import os
import random
import re
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from databus.core import DatabusError
from databus.sources.mysql.binlog import PacketSplitter, Run
from databus.testing.servers import KINDS
from tests.mysql.binlog.conftest import Log
from tests.mysql.binlog.support import scanner
from tests.mysql.binlog.test_packets import packets

SEED = int(os.environ.get("DATABUS_SEED", random.SystemRandom().randrange(1 << 32)))
GUARD = 256


def _events(raw: bytes) -> list[bytes]:
    events, at = [], 4
    while at < len(raw):
        size = int.from_bytes(raw[at + 9 : at + 13], "little")
        events.append(raw[at : at + size])
        at += size
    return events


def _sealed(event: bytes) -> bytes:
    return event[:-4] + zlib.crc32(event[:-4]).to_bytes(4, "little") if len(event) > 23 else event


def _damage(event: bytearray, dice: random.Random) -> bytearray:
    """One event with a few bytes that are not its own; some of them where lengths and counts stand."""
    if len(event) < 19:
        return event
    what = dice.randrange(6)
    at = dice.randrange(len(event)) if dice.random() < 0.5 else dice.randrange(min(len(event), 60))
    if what == 0:
        event[at] ^= 1 << dice.randrange(8)
    elif what == 1:
        event[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF))
    elif what == 2:
        event[at : at + dice.randrange(1, 9)] = dice.randbytes(dice.randrange(9))
    elif what == 3:
        del event[at:]
    elif what == 4:
        event[9:13] = dice.choice((0, 18, 19, 23, len(event) - 1, len(event) + 1, 1 << 31, (1 << 32) - 1)).to_bytes(
            4, "little"
        )
    else:
        event[4] = dice.choice((*range(43), *range(160, 172), 250, 255))
    return event


def damaged(raw: bytes, dice: random.Random) -> bytes:
    """A log in which one to three events were changed, lost, doubled or moved; half of them with checksums that are
    right."""
    events = _events(raw)
    is_sealed = dice.random() < 0.7
    for _ in range(dice.randrange(1, 4)):
        i = dice.randrange(len(events))
        what = dice.randrange(10)
        if what == 0:
            del events[i]
        elif what == 1:
            events.insert(i, events[dice.randrange(len(events))])
        elif what == 2:
            j = dice.randrange(len(events))
            events[i], events[j] = events[j], events[i]
        else:
            event = bytes(_damage(bytearray(events[i]), dice))
            if is_sealed and dice.random() < 0.8:
                event = event[:9] + len(event).to_bytes(4, "little") + event[13:]
            events[i] = _sealed(event) if is_sealed else event
        if not events:
            break
    if is_sealed:
        events = _placed(events)
    whole = b"\xfebin" + b"".join(events)
    return whole[: dice.randrange(len(whole))] if dice.random() < 0.1 else whole


def _placed(events: list[bytes]) -> list[bytes]:
    """With end positions that are right, so that what is behind a change is reached."""
    placed, at = [], 4
    for event in events:
        at += len(event)
        if len(event) > 23:
            placed.append(_sealed(event[:13] + at.to_bytes(4, "little") + event[17:]))
        else:
            placed.append(event)
    return placed


def outcome(log: Log, raw: bytes, guard: int) -> tuple[str, ...]:
    """What scanning gives, in words. The bytes lie in front of a guard that must not matter."""
    memory = np.full(len(raw) + GUARD, guard, np.uint8)
    memory[: len(raw)] = np.frombuffer(raw, np.uint8)
    scanning = scanner(log.kind, log.scheme, run_events_max=64, event_bytes_max=1 << 20, inflate_bytes_max=1 << 20)
    words: list[str] = []
    try:
        scanning.open_file("binlog.000001")
        scanning.feed(memory[: len(raw)])
        steps = 0
        while (item := scanning.next()) is not None:
            words.append(_said(item))
            steps += 1
            assert steps < 10_000
        if scanning.position.offset != len(raw):
            words.append("unfinished")
    except DatabusError as error:
        words.append(f"{type(error).__name__}: {error}")
    if words and words[-1].startswith("Corrupt"):
        assert re.search(r"binlog\.\d+ at \d+", words[-1])
    return tuple(words)


def _said(item: object) -> str:
    if not isinstance(item, Run):
        return str(item)
    images = [
        item.buffer[a:b].tobytes() for a, b in zip(item.event_start.tolist(), item.event_end.tolist(), strict=True)
    ]
    for a, b in zip(item.event_start.tolist(), item.event_end.tolist(), strict=True):
        assert 0 <= a < b <= len(item.buffer)
        assert item.place(a)
    return str((item.txids(0, len(item)).to_pylist(), item.scn.tolist(), item.end_file_offset.tolist(), images))


def _small(log: Log) -> list[bytes]:
    """The log's files without what is large."""
    files = []
    for raw in log.files.values():
        events = [event for event in _events(raw) if len(event) < 4_000]
        files.append(b"\xfebin" + b"".join(_placed(events)))
    return files


def _campaign(log: Log, count: int, seed: int) -> None:
    files = _small(log)
    whole = [outcome(log, raw, 0) for raw in files]
    refused = 0
    for i in range(count):
        dice = random.Random(f"{seed} {i}")
        which = dice.randrange(len(files))
        raw = damaged(files[which], dice)
        try:
            first, second = outcome(log, raw, 0), outcome(log, raw, 0xFF)
            assert first == second, "what follows the bytes matters"
        except BaseException as error:
            error.add_note(f"DATABUS_SEED={seed}, number {i} of file {which}: {raw.hex()}")
            raise
        refused += first != whole[which]
    assert refused > count // 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "no-gtid"])
def test_damaged_logs_give_an_error_or_a_result(kind: str, gtid: bool, log_of: Callable[[str, bool], Log]) -> None:
    print(f"DATABUS_SEED={SEED}")  # noqa: T201 - pytest shows it on failure
    _campaign(log_of(kind, gtid), 300, SEED)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_damaged_logs(kind: str, log_of: Callable[[str, bool], Log]) -> None:
    print(f"DATABUS_SEED={SEED}")  # noqa: T201 - pytest shows it on failure
    _campaign(log_of(kind, True), 1_000_000 // len(KINDS), SEED)


def test_a_flipped_bit_under_a_checksum_is_always_found(log: Log) -> None:
    raw = _small(log)[0]
    whole = outcome(log, raw, 0)
    dice = random.Random(SEED)
    for _ in range(200):
        at = dice.randrange(4, len(raw))
        broken = bytearray(raw)
        broken[at] ^= 1 << dice.randrange(8)
        found = outcome(log, bytes(broken), 0)
        if found == whole:
            assert at == 21, f"DATABUS_SEED={SEED}"  # the flag of a file in use: servers change it behind the checksum
        else:
            assert found[-1].startswith(("Corrupt", "LimitExceeded", "unfinished")), f"DATABUS_SEED={SEED}"


def test_damaged_packets_give_an_error_or_events(log_of: Callable[[str, bool], Log]) -> None:
    stream = packets(_events(_small(log_of("mariadb-10.11", True))[0]))
    for i in range(2_000):
        dice = random.Random(f"{SEED} {i}")
        broken = bytearray(stream)
        for _ in range(dice.randrange(1, 4)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        splitter = PacketSplitter(event_bytes_max=1 << 20)
        at = 0
        try:
            while at < len(broken):
                step = dice.randrange(1, 3_000)
                splitter.feed(bytes(broken[at : at + step]))
                at += step
                assert splitter.held_bytes <= (1 << 20) + 3_000
        except DatabusError:
            pass
