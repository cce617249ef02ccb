"""The place of a chunk: a simulated database, its log and its readers, in random interleavings."""

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.sources.snapshots import KeyTracker

KEYS = 12
SOURCE = "shop.orders"


@dataclass
class Chunk:
    low: int  # all transactions up to this one are in it
    read: int  # these are
    high: int  # none beyond this one is
    after: int
    range: tuple[int, int]
    rows: dict[int, int]


@dataclass
class World:
    """Transactions are numbered from 1. A row's value is the number of the one that wrote it, so no two agree."""

    random: Random
    drops: bool = True
    waits: bool = True
    states: list[dict[int, int]] = field(default_factory=lambda: [{}])
    images: list[list[int]] = field(default_factory=lambda: [[]])
    mirror: dict[int, tuple[int, tuple[int, int]]] = field(default_factory=dict)
    followed: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    todo: list[tuple[int, int]] = field(default_factory=list)
    done: list[tuple[int, int]] = field(default_factory=list)
    seq: int = 0

    def commit(self) -> None:
        """A transaction changes some rows; its images' keys are those before and after."""
        state, touched = dict(self.states[-1]), []
        for _ in range(self.random.randint(1, 3)):
            key = self.random.randrange(KEYS)
            kind = self.random.choice(["put", "put", "delete", "move"])
            if kind == "put":
                state[key] = len(self.states)
            elif kind == "delete":
                state.pop(key, None)
            elif key in state:
                other = self.random.randrange(KEYS)
                touched.append(other)
                state.pop(key)
                state[other] = len(self.states)
            touched.append(key)
        self.states.append(state)
        self.images.append(touched)

    def begin(self, tracker: KeyTracker) -> None:
        self.seq += 1
        self.began = (self.followed, 1_000 + self.seq)
        cuts = sorted(self.random.sample(range(1, KEYS), 2))
        self.todo = list(zip([0, *cuts], [*cuts, KEYS], strict=True))

    def read(self) -> None:
        """A chunk is read of what is visible now; the watermarks may be as far off as the rule allows."""
        lo, hi = self.todo.pop(self.random.randrange(len(self.todo)))
        newest = len(self.states) - 1
        read = self.random.randint(self.followed, newest)
        low = self.random.randint(self.followed, read)
        high = self.random.randint(read, newest)
        rows = {key: value for key, value in self.states[read].items() if lo <= key < hi}
        self.chunks.append(Chunk(low, read, high, self.followed, (lo, hi), rows))

    def follow(self, tracker: KeyTracker) -> None:
        """One more transaction of the log reaches the mirror."""
        self.followed += 1
        number, touched = self.followed, self.images[self.followed]
        tracker.add(SOURCE, np.full(len(touched), number), [pa.array(touched, pa.int64())])
        before, after = self.states[number - 1], self.states[number]
        for key in touched:
            self.mirror.pop(key, None)
        for key in touched:
            if key in after:
                self.mirror[key] = (after[key], (number, 0))
        assert all(before.get(key) == after.get(key) for key in range(KEYS) if key not in touched)
        for chunk in self.chunks:
            if chunk.low >= number:
                chunk.after = number
        tracker.forget(SOURCE, min((chunk.after for chunk in self.chunks), default=number))

    def place(self, tracker: KeyTracker) -> None:
        """Each chunk whose high watermark has been reached gets its place."""
        for chunk in list(self.chunks):
            if self.waits and chunk.high > self.followed:
                continue
            self.chunks.remove(chunk)
            self.done.append(chunk.range)
            keys = pa.array(list(chunk.rows), pa.int64())
            stays = tracker.place(SOURCE, chunk.after, [keys], len(keys))
            assert stays is not None
            for key, stay in zip(chunk.rows, stays, strict=True):
                if stay or not self.drops:
                    self.seq += 1
                    self.mirror[key] = (chunk.rows[key], (self.followed, 1_000 + self.seq))

    @property
    def is_consistent(self) -> bool:
        """Whether the ranges that were placed are as the database was at this point of its log."""
        state = self.states[self.followed]
        mirror = {key: value for key, (value, pair) in self.mirror.items() if pair > self.began}
        keys = [key for lo, hi in self.done for key in range(lo, hi)]
        return all(mirror.get(key) == state.get(key) for key in keys)

    def end(self) -> None:
        """What is older than the beginning is gone by now."""
        self.mirror = {key: held for key, held in self.mirror.items() if held[1] > self.began}


def agrees(random: Random, *, drops: bool = True, waits: bool = True) -> bool:
    """Whether the mirror is as the database in the end, and each range from its place on."""
    world, tracker = World(random, drops, waits), KeyTracker(1_000, 1 << 20)
    for key in random.sample(range(KEYS), 4):  # rows of long ago, which the log has forgotten, and a mirror's errors
        world.states[0][key] = -key
        world.mirror[random.randrange(KEYS)] = (-99, (0, 0))
    for _ in range(random.randrange(4)):
        world.commit()
    for _ in range(random.randrange(len(world.states))):
        world.follow(tracker)
    world.begin(tracker)
    for _ in range(random.randrange(40)):
        step = random.choice(["commit", "read", "follow", "follow", "place"])
        if step == "commit":
            world.commit()
        elif step == "read" and world.todo:
            world.read()
        elif step == "follow" and world.followed < len(world.states) - 1:
            world.follow(tracker)
        elif step == "place":
            world.place(tracker)
        if not world.is_consistent:
            return False
    while world.todo:
        world.read()
    while world.followed < len(world.states) - 1:
        world.follow(tracker)
        world.place(tracker)
        if not world.is_consistent:
            return False
    world.place(tracker)
    world.end()
    return {key: value for key, (value, _) in world.mirror.items()} == world.states[-1]


@given(st.randoms(use_true_random=False))
@settings(max_examples=500, deadline=None)
def test_a_mirror_ends_as_the_database_whatever_happens_while_chunks_are_read(random: Random) -> None:
    assert agrees(random)


@pytest.mark.parametrize("left_out", ["drops", "waits"])
def test_each_half_of_the_rule_is_needed(left_out: str) -> None:
    """Dropping rows that the log says more about; waiting for the high watermark."""
    assert not all(agrees(Random(seed), **{left_out: False}) for seed in range(300))


def _keys(*columns: list[object]) -> list[pa.Array]:
    return [pa.array(column) for column in columns]


def test_keys_of_several_columns_are_compared_column_by_column() -> None:
    tracker = KeyTracker(100, 1 << 20)
    tracker.add("t", np.array([5, 6]), _keys([1, 2], ["ab", "b"], [b"\x00", b"x"]))
    stays = tracker.place(
        "t", 4, _keys([1, 1, 2, 12, 2], ["ab", "a", "b", "b", "ab"], [b"\x00", b"b", b"x", b"", b"x"]), 5
    )
    assert stays is not None
    assert stays.tolist() == [False, True, False, True, True]


def test_only_images_after_the_low_watermark_count() -> None:
    tracker = KeyTracker(100, 1 << 20)
    tracker.add("t", np.array([5, 6, 6]), _keys([1, 2, 3]))
    for after, expected in [(4, [False, False, False, True]), (5, [True, False, False, True]), (6, [True] * 4)]:
        stays = tracker.place("t", after, _keys([1, 2, 3, 4]), 4)
        assert stays is not None
        assert stays.tolist() == expected


def test_more_keys_than_the_bound_discard_the_chunks_that_needed_them_and_no_others() -> None:
    tracker = KeyTracker(10, 1 << 20)
    for scn in range(1, 5):
        tracker.add("t", np.full(4, scn), _keys([scn, scn + 10, scn + 20, scn + 30]))
    assert tracker.held("t") == 8
    assert tracker.place("t", 1, _keys([1]), 1) is None
    stays = tracker.place("t", 2, _keys([3, 99]), 2)
    assert stays is not None
    assert stays.tolist() == [False, True]


def test_keys_are_bounded_in_bytes_too() -> None:
    tracker = KeyTracker(1_000_000, 10_000)
    tracker.add("t", np.array([1]), _keys(["x" * 20_000]))
    assert tracker.held("t") == 0
    assert tracker.place("t", 0, _keys(["y"]), 1) is None
    assert tracker.place("t", 1, _keys(["y"]), 1) is not None


def test_a_control_discards_what_was_read_before_it() -> None:
    tracker = KeyTracker(100, 1 << 20)
    tracker.control("t", 7)
    assert tracker.place("t", 6, _keys([1]), 1) is None
    assert tracker.place("t", 7, _keys([1]), 1) is not None


def test_a_chunk_without_rows_has_its_place_whatever_was_logged() -> None:
    tracker = KeyTracker(1, 1 << 20)
    tracker.add("t", np.array([5, 5]), _keys([1, 2]))
    tracker.add("u", np.array([5]), _keys([1]))
    for source in ("t", "u"):
        assert tracker.place(source, 4, _keys([]), 0) is not None
    tracker.control("u", 6)
    assert tracker.place("u", 4, _keys([]), 0) is None


def test_rows_without_a_key_are_discarded_by_any_image() -> None:
    tracker = KeyTracker(100, 1 << 20)
    tracker.add("t", np.array([5]), [])
    assert tracker.place("t", 4, [], 3) is None
    assert tracker.place("t", 5, [], 3) is not None
