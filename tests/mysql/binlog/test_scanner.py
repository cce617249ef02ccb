"""The scanner over the logs of real servers."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.sources.mysql.binlog import GtidSet, GtidState, LoggedStatement, LogRun, contains
from databus.testing.servers import KINDS
from tests.mysql.binlog.conftest import Log
from tests.mysql.binlog.support import positions_of, scan, scanner, transactions_of, without_start


def test_transactions_rows_and_statements_are_those_that_a_slow_reader_finds(log: Log) -> None:
    scanning = scanner(log.kind, log.scheme)
    found = transactions_of(scanning, scan(scanning, log.files))
    assert found == without_start(log.transactions)
    assert any(each.items for each in found)
    stats = scanning.stats
    assert stats.bytes == sum(len(raw) - 4 for raw in log.files.values())
    assert stats.transactions == len(log.transactions)
    assert stats.skipped_bytes > 0


def test_ordinals_rise_and_are_what_the_scheme_says(log: Log) -> None:
    scanning = scanner(log.kind, log.scheme)
    ordinals: list[int] = []
    for item in scan(scanning, log.files):
        if isinstance(item, LogRun):
            ordinals += item.scn.tolist()
        elif isinstance(item, LoggedStatement):
            ordinals.append(item.scn)
    ordinals = list(dict.fromkeys(ordinals))
    assert ordinals == sorted(set(ordinals))
    assert len(ordinals) == len(log.transactions)
    if log.scheme == "file-offset":
        first = log.transactions[0]
        assert ordinals[0] == int(first.file.rsplit(".", 1)[1]) << 32 | first.start
    else:
        size = (GtidSet if log.scheme == "gtid" else GtidState).parse(log.executed).size
        assert ordinals == list(range(size - len(ordinals) + 1, size + 1))


def test_position_at_the_end_is_the_servers(log: Log) -> None:
    scanning = scanner(log.kind, log.scheme)
    scan(scanning, log.files)
    last = list(log.files)[-1]
    assert (scanning.position.file, scanning.position.offset) == (last, len(log.files[last]))
    executed = scanning.position.gtids
    assert executed == (log.executed.replace("\n", "") if log.scheme != "file-offset" else None)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(cuts=st.lists(st.integers(1, 30_000), min_size=1, max_size=20), events_max=st.integers(2, 50))
def test_cuts_of_the_bytes_and_sizes_of_runs_change_nothing(
    kind: str, cuts: list[int], events_max: int, log_of: Callable[[str, bool], Log]
) -> None:
    log = log_of(kind, True)
    scanning = scanner(kind, log.scheme, run_events_max=events_max, inflate_bytes_max=20_000)
    assert transactions_of(scanning, scan(scanning, log.files, cuts)) == without_start(log.transactions)


def test_every_position_is_one_to_resume_from(log: Log) -> None:
    scanning = scanner(log.kind, log.scheme)
    positions = positions_of(scan(scanning, log.files, (5_000,)))
    assert len(positions) == len(log.transactions)
    for before, after in itertools.pairwise(positions):
        assert contains(after, before)
        assert not contains(before, after)
    for count in range(1, len(positions), 7):
        again = scanner(log.kind, log.scheme, positions[count - 1])
        rest = transactions_of(again, scan(again, log.files))
        assert rest == without_start(log.transactions[count:])
        later = {name: raw for name, raw in log.files.items() if name >= positions[count - 1].file}
        again = scanner(log.kind, log.scheme, positions[count - 1])
        assert transactions_of(again, scan(again, later)) == rest
