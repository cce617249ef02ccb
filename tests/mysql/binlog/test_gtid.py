"""Sets of transactions against slow twins: plain Python sets of single transactions."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import InputError, PositionForeign
from databus.sources.mysql.binlog import GtidSet, GtidState, LogPosition, contains, ordinal_of

UUIDS = [
    "3e11fa47-71ca-11e1-9e33-c80aa9429562",
    "00000000-0000-0000-0000-000000000001",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
]
KEYS = [*UUIDS, f"{UUIDS[0]}:backup", f"{UUIDS[0]}:zz_1", f"{UUIDS[2]}:_t"]

Singles = set[tuple[str, int]]
singles = st.sets(st.tuples(st.sampled_from(KEYS), st.integers(1, 25)), max_size=60)


def made(wanted: Singles) -> GtidSet:
    return GtidSet.parse(",".join(f"{key}:{number}" for key, number in wanted))


def held(gtids: GtidSet) -> Singles:
    return {(key, n) for key, intervals in gtids.parts.items() for a, b in intervals for n in range(a, b + 1)}


@given(singles, singles)
def test_the_algebra_is_that_of_sets(left: Singles, right: Singles) -> None:
    a, b = made(left), made(right)
    assert held(a) == left
    assert held(a.add(b)) == left | right
    assert held(a.subtract(b)) == left - right
    assert held(a.intersect(b)) == left & right
    assert a.contains(b) == (left >= right)
    assert a.size == len(left)
    assert bool(a) == bool(left)
    assert all(a.has(key, n) == ((key, n) in left) for key in KEYS for n in range(27))


@given(singles)
def test_text_and_bytes_come_back_the_same(wanted: Singles) -> None:
    gtids = made(wanted)
    assert GtidSet.parse(str(gtids)) == gtids
    assert GtidSet.parse(str(gtids).upper().replace(",", " ,\n")) == gtids
    assert GtidSet.decode(gtids.encode()) == gtids
    for cut in range(0, len(gtids.encode()), 7):
        with pytest.raises(ValueError, match="early"):
            GtidSet.decode(gtids.encode()[:cut])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_set_or_an_error(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        GtidSet.decode(raw)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        f"{UUIDS[0]}",
        f"{UUIDS[0]}:0",
        f"{UUIDS[0]}:5-3",
        f"{UUIDS[0]}:1-",
        f"{UUIDS[0]}:9223372036854775807",
        "0-1-5",
    ],
)
def test_what_is_no_set_is_refused_with_the_part_that_is_wrong(text: str) -> None:
    with pytest.raises(InputError, match="GTID set"):
        GtidSet.parse(text)


@pytest.mark.parametrize("text", ["x", "0-1", "0-1-2-3", "4294967296-1-1", f"{UUIDS[0]}:1"])
def test_what_is_no_mariadb_position_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="GTID position"):
        GtidState.parse(text)


@given(
    st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 3), st.integers(1, 9))),
    st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 3), st.integers(1, 9))),
)
def test_domains_compare_by_sequence_number(
    left: dict[int, tuple[int, int]], right: dict[int, tuple[int, int]]
) -> None:
    a, b = GtidState(left), GtidState(right)
    assert a.contains(b) == all(left.get(domain, (0, 0))[1] >= number for domain, (_, number) in right.items())
    assert GtidState.parse(str(a)) == GtidState({domain: left[domain] for domain in sorted(left)})
    assert a.add(b).contains(a)
    assert a.add(b).contains(b)
    assert a.size == sum(number for _, number in left.values())


def test_positions_compare_by_gtids_else_on_one_server_only() -> None:
    here = LogPosition("binlog.000002", 500, f"{UUIDS[0]}:1-5", "a")
    assert contains(here, LogPosition("binlog.000009", 9, f"{UUIDS[0]}:1-4", "b"))
    assert not contains(here, LogPosition("binlog.000001", 4, f"{UUIDS[0]}:1-6", "a"))
    assert contains(here, LogPosition("binlog.000002", 500, None, "a"))
    assert not contains(here, LogPosition("binlog.000010", 4, None, "a"))
    assert contains(LogPosition(gtids="0-1-5,1-1-1"), LogPosition(gtids="0-2-4"))
    with pytest.raises(PositionForeign):
        contains(here, LogPosition("binlog.000002", 500, None, "b"))
    with pytest.raises(PositionForeign):
        contains(LogPosition(), here)


def test_the_ordinal_at_a_position_is_below_that_of_what_follows() -> None:
    assert ordinal_of(LogPosition(gtids=f"{UUIDS[0]}:1-5:9,{UUIDS[1]}:1"), "gtid") == 7
    assert ordinal_of(LogPosition(gtids="0-1-5,3-9-100"), "domains") == 105
    assert ordinal_of(LogPosition("binlog.000003", 157), "file-offset") == (3 << 32 | 157) - 1
    assert ordinal_of(LogPosition(), "gtid") == ordinal_of(LogPosition(), "file-offset") == 0
