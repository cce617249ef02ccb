"""Damaged logs: an error that names the place, or a result; never a crash, a hang or a byte read beyond the end."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from databus.core import DatabusError
from databus.sources.mysql.binlog import PacketSplitter
from databus.testing.servers import KINDS
from tests.mysql.binlog.campaign import run_campaign
from tests.mysql.binlog.conftest import Log
from tests.mysql.binlog.damage import events_of, outcome, small
from tests.mysql.binlog.test_packets import packets


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_logs_give_an_error_or_a_result(
    kind: str, log_of: Callable[[str, bool], Log], tmp_path: Path, seed: int
) -> None:
    """By kernels that check every access to an array, rows between walls; with GTIDs and without."""
    run_campaign([log_of(kind, True), log_of(kind, False)], tmp_path, seed, 150, is_checked=True)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "as-shipped"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "no-gtid"])
def test_a_million_damaged_logs(
    kind: str, gtid: bool, is_checked: bool, log_of: Callable[[str, bool], Log], tmp_path: Path, seed: int
) -> None:
    """Altogether, by both builds."""
    run_campaign([log_of(kind, gtid)], tmp_path, seed, 1_000_000 // (4 * len(KINDS)), is_checked=is_checked)


def test_a_flipped_bit_under_a_checksum_is_always_found(log: Log, seed: int) -> None:
    raw = small(log)[0]
    whole = outcome(log, raw, 0)
    dice = random.Random(seed)
    for _ in range(200):
        at = dice.randrange(4, len(raw))
        broken = bytearray(raw)
        broken[at] ^= 1 << dice.randrange(8)
        found = outcome(log, bytes(broken), 0)
        if found == whole:
            assert at == 21  # the flag of a file in use: servers change it behind the checksum
        else:
            assert found[-1].startswith(("CorruptData", "LimitExceeded", "unfinished"))


def test_damaged_packets_give_an_error_or_events(log_of: Callable[[str, bool], Log], seed: int) -> None:
    stream = packets(events_of(small(log_of("mariadb-10.11", True))[0]))
    for i in range(2_000):
        dice = random.Random(f"{seed} {i}")
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
