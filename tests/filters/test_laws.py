"""Laws of filtered streams, over random tables, histories, conditions, columns and partitions."""

import random

import pytest

from databus.core import ControlKind, DatabusError, UnknownColumn
from databus.filters import FrameFilter, StreamFilter, StreamPartition
from databus.wire import CONTROL
from tests.filters.histories import PHYSICAL, POOL, History, Twin, Wanted, conditions, groups_of, images_of
from tests.seeds import seed_of

ROUNDS = 40


def wanted_of(rng: random.Random, history: History) -> Wanted:
    named = sorted({name for table in history.registry.tables for name in table.names})
    now = list(history.registry.tables[-1].names)
    where = conditions(rng, now if rng.random() < 0.7 else named) if rng.random() < 0.8 else None
    columns = tuple(rng.sample(named, rng.randint(1, 3))) if rng.random() < 0.5 else None
    count = rng.randint(2, 4)
    partition = StreamPartition(rng.randrange(count), count) if rng.random() < 0.4 else None
    return Wanted(where, columns, partition)


def filter_of(wanted: Wanted, history: History) -> FrameFilter:
    return FrameFilter(
        StreamFilter.parse(wanted.where, wanted.columns, None, wanted.partition), PHYSICAL, history.registry
    )


def compare(content: bytes, frames: FrameFilter, wanted: Wanted, history: History) -> DatabusError | None:
    """Hold a filtered stream against the twin; returns what ended it."""
    twin = Twin(wanted, history)
    left = frames.filtered(content)
    found = iter(list(groups_of(left.content)))
    for whole, commit in groups_of(content):
        control = whole[0] if whole and whole[0].header.kind == CONTROL else None
        table = None if not whole else history.registry.definition(whole[0].header.fingerprint)
        before = None
        if control is not None and control.control_kind is ControlKind.SCHEMA:
            before = history.registry.definition(int(control.control["previous"], 16))
            if twin.loses(before, table):
                assert isinstance(left.error, UnknownColumn)
                break
        if table is not None and not twin.judges(table):
            assert isinstance(left.error, UnknownColumn)
            break
        some, its_commit = next(found)
        assert its_commit.header == commit.header
        if control is not None:
            assert some[0].header.first == control.header.first
            (after,) = frames.made_of(table)
            assert after.fingerprint == some[0].header.fingerprint
            assert after.names == twin.sent(table)
            if before is not None:
                is_exact = twin.is_exact(before, table, control.control)
                assert some[0].control.get("exact", True) == is_exact, (wanted, control.control)
            continue
        opened = b"snapshots" in commit.header.position
        expected = [] if table is None else twin.group(table, images_of(whole[0], table), opened=opened)
        got = images_of(some[0], frames.cut_of(table).after) if some else []
        assert got == expected, (wanted, got, expected)
    assert next(found, None) is None
    assert (left.error is None) == (left.taken == len(content))
    return left.error


def test_a_filtered_stream_is_what_the_twin_leaves_of_the_whole():
    ended = whole = 0
    for number in range(ROUNDS):
        seed = seed_of(f"filtered {number}")
        rng = random.Random(seed)
        history = History(rng, first_images=rng.random() < 0.8).run(rng.randint(3, 25))
        content = history.encoded()
        wanted = wanted_of(rng, history)
        try:
            error = compare(content, filter_of(wanted, history), wanted, history)
        except Exception as error:
            raise AssertionError(f"round {number}, seed {seed}: {wanted}") from error
        ended += error is not None
        whole += error is None
    assert ended
    assert whole > ROUNDS / 3


def test_the_partitions_of_a_stream_are_the_whole_of_it_and_share_nothing():
    for number in range(ROUNDS // 3):
        seed = seed_of(f"partitions {number}")
        rng = random.Random(seed)
        history = History(rng).run(rng.randint(3, 20))
        content = history.encoded()
        count = rng.randint(2, 5)
        parts = [
            [
                frames
                for frames, _ in groups_of(_left(content, Wanted(None, None, StreamPartition(index, count)), history))
            ]
            for index in range(count)
        ]
        for at, (whole, _) in enumerate(groups_of(content)):
            table = history.registry.definition(whole[0].header.fingerprint) if whole else None
            if whole and whole[0].header.kind == CONTROL:
                assert all(some[at][0].header.first == whole[0].header.first for some in parts), seed
                continue
            images = [each for some in parts for frame in some[at] for each in images_of(frame, table)]
            expected = [each for frame in whole for each in images_of(frame, table)]
            images.sort(key=lambda each: each.pair)
            assert [(each.pair, each.image) for each in images] == [(each.pair, each.image) for each in expected], seed


def _left(content: bytes, wanted: Wanted, history: History) -> bytes:
    return filter_of(wanted, history).filtered(content).content


def test_what_passes_whole_is_the_same_bytes():
    history = History(random.Random(7)).run(12)
    content = history.encoded()
    assert filter_of(Wanted("id > -5", None, None), history).filtered(content).content is content
    everything = tuple(sorted({"id", "k", *POOL}))
    assert _left(content, Wanted(None, everything, StreamPartition(0, 1)), history) is content


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_filtered_streams(monkeypatch):
    monkeypatch.setitem(globals(), "ROUNDS", 3_000)
    test_a_filtered_stream_is_what_the_twin_leaves_of_the_whole()
    test_the_partitions_of_a_stream_are_the_whole_of_it_and_share_nothing()
