"""Random histories, refusals, kills and replays: per key, what is taken is the history in order, in the end all of it.

A key's changes are taken in order, each behind all that were before it since its table was last emptied; one comes
again only after a kill, or where the client said so by `on_rollback`. After everything was mended and replayed, target
and twin are equal.
"""

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from databus.client import _consumer_loop, _letter_folder, _parking
from tests.client.parking import QUICK, Copy, Killed, Parts, World

SEEDS = 8


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch):
    for module in (_consumer_loop, _letter_folder):
        monkeypatch.setattr(module, "LOOK_S", 0)


class Twin:
    """The history as a person would write it: `rows` at the end, and by key its changes and where they were emptied."""

    def __init__(self, rng, feed):
        self.rng, self.feed = rng, feed
        self.rows = {}
        self.of_key = defaultdict(list)  # pairs, and None where the table was emptied
        self.scn = 0

    def build(self, transactions):
        for _ in range(transactions):
            if self.rng.random() < 0.06:
                self.feed.truncate()
                self.rows.clear()
                for pairs in self.of_key.values():
                    pairs.append(None)
                continue
            self.scn += 1
            seq = 0
            for _ in range(self.rng.randint(1, 5)):
                seq = self.change(seq)
                if self.rng.random() < 0.1:
                    self.feed.part()
            self.feed.commit()

    def change(self, seq):
        rng, feed = self.rng, self.feed
        row = {"id": rng.randint(1, 6), "note": rng.choice("abcdef"), "n": self.scn}
        old = self.rows.get(row["id"])
        if old is None:
            feed.insert("main.orders", row)
            self.rows[row["id"]] = row
            self.of_key[row["id"]].append((self.scn, seq + 1))
            return seq + 1
        if rng.random() < 0.25:
            feed.delete("main.orders", old)
            del self.rows[row["id"]]
            self.of_key[row["id"]].append((self.scn, seq + 1))
            return seq + 1
        free = [number for number in range(1, 7) if number not in self.rows]
        if free and rng.random() < 0.3:
            row = {**row, "id": rng.choice(free)}
            del self.rows[old["id"]]
        feed.update("main.orders", old, row)
        self.rows[row["id"]] = row
        for key in {old["id"], row["id"]}:
            self.of_key[key].append((self.scn, seq + 2))
        return seq + 2


class Buffering(Copy):
    """Writes when a checkpoint is due: what fails is known then, and not of which window it was."""

    def __init__(self, world):
        super().__init__(world)
        self.buffer = []

    def on_data_events(self, changes):
        self.staged += changes.rows()

    def on_end_window(self, window):
        staged, self.staged = self.staged, []
        self.buffer += staged

    def on_checkpoint(self, checkpoint):
        self.world_dies("before commit")
        for each in self.buffer:
            if not hasattr(each, "kind") and self.world.refuses(each):
                raise ValueError("refused")
        buffer, self.buffer = self.buffer, []
        for each in buffer:
            self.apply(each)
        self.world_dies("after commit")

    def on_rollback(self, physical, position):
        super().on_rollback(physical, position)
        self.buffer = []


def check_order(world, twin):
    """No change before an earlier one of its key; again only where everything behind a place was said to come again."""
    done = defaultdict(set)
    last = defaultdict(lambda: -1)
    for what, each in world.taken:
        if what == "run":
            last.clear()
        elif what == "roll":
            for key, history in twin.of_key.items():
                behind = [at for at, pair in enumerate(history) if pair is not None and pair > each.pair]
                if behind:
                    last[key] = min(last[key], behind[0] - 1)
        elif what == "row":
            for key in {image["id"] for image in (each.before, each.after) if image is not None}:
                history = twin.of_key[key]
                at = history.index(each.pair)
                assert at > last[key], f"key {key}: {each.pair} again, or out of order"
                begin = max((n + 1 for n in range(at) if history[n] is None), default=0)
                if world.was_killed and None in history[at:]:
                    continue  # a kill came after letters were void, and before the place behind was saved
                missing = [history[n] for n in range(begin, at) if n not in done[key]]
                assert missing == [], f"key {key}: {each.pair} before {missing}"
                last[key] = at
                done[key].add(at)


@pytest.mark.parametrize("consumer", [Copy, Buffering])
def test_each_key_is_taken_in_order_and_all_of_it_in_the_end(consumer, tmp_path, seed, monkeypatch):
    histories(range(SEEDS), consumer, tmp_path, seed, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("consumer", [Copy, Buffering])
def test_it_is_so_in_many_histories(consumer, tmp_path, seed, monkeypatch):
    histories(range(SEEDS, 400), consumer, tmp_path, seed, monkeypatch)


def histories(numbers, consumer, tmp_path, seed, monkeypatch):
    for number in numbers:
        case = f"DATABUS_SEED={seed} case {number}"
        rng = random.Random(seed * 1000 + number)
        world = World(Parts(), tmp_path / str(number))
        kills = rng.choice([0, 0, 0.02])
        world.was_killed = kills > 0
        world.kills = lambda _where, rng=rng, kills=kills: rng.random() < kills
        monkeypatch.setattr(_parking, "crash_point", lambda name, world=world: _die(world, name))
        batch = rng.choice([0, 20])
        world.config = replace(
            QUICK, retries_max=rng.randint(0, 2), checkpoint_ms=rng.choice([0, 1000]), batch_rows_max=batch,
            refused_in_a_row_max=1000,
        )  # fmt: skip
        twin = Twin(rng, world.feed)
        refused = rng.choice(["", "a", "ab"])
        for _ in range(rng.randint(2, 5)):
            twin.build(rng.randint(1, 6))
            world.refuses = lambda row, refused=refused: row["note"] in refused
            world.run(consumer=consumer)
            if rng.random() < 0.4 and world.folder.exists():
                world.letters.replay()
                refused = rng.choice(["", "a", "b"])
        world.refuses = world.kills = lambda _what: False
        world.run(consumer=consumer)
        world.letters.replay()
        world.run(consumer=consumer)
        check_order(world, twin)
        assert world.pairs == [], case
        assert {key: row for (_, key), row in world.rows.items()} == twin.rows, case


def _die(world, name):
    if world.kills(name):
        raise Killed
