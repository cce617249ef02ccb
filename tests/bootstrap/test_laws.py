"""The law of answers: who is given one has what he would have who had followed all the time.

Random histories with every kind of change and DDL, snapshots and gaps; states at any moment; answers that break off and
go on from another state. The twin is `mirror_of`, one image at a time.
"""

import random
from collections import Counter

import pytest

from databus.core import MalformedRequest, UnknownColumn
from databus.testing._change_log import mirror_of
from databus.wire import answer_name
from tests.bootstrap.world import EXPECTED, Consumer, World, ask_of, passes, projected

SEEDS = 300


def run(seed, stats=None):
    """What is broken, or None."""
    world = World(seed)
    rng = world.rng
    steps = {
        world.transaction: 10,
        world.ddl: 4,
        world.gap: 2,
        world.note: 3,
        world.expire: 1,
        world.cut_log: 1,
    }
    calm = rng.random() < 0.4  # so that *since* is not rare
    if calm:
        steps[world.ddl] = steps[world.gap] = 0

    def go_on(count):
        for _ in range(count):
            rng.choices([*steps], [*steps.values()])[0]()

    go_on(rng.randrange(5, 20))
    index = None if rng.random() < 0.2 else rng.randrange(rng.choice((0, world.low)), len(world.log.entries) + 1)
    consumer = Consumer(world, ask_of(rng), index)
    go_on(rng.randrange(3, 15))
    broken = 0
    for turn in range(60):
        cut = rng.randrange(1, 6) if broken < 6 and rng.random() < 0.6 else None
        try:
            done = consumer.ask_once(world.kept(), cut)
        except (UnknownColumn, MalformedRequest):
            return None  # the condition's column is gone: 400
        except EXPECTED as error:
            if "log store does not go back" in str(error):
                return None
            done = False
            world.transaction()
            world.note()
        for name in sorted(consumer.unread & {f"main.{each}" for each in world.tables}):
            world.snapshot(name.removeprefix("main."))
        consumer.unread.clear()
        if done and consumer.position.pair >= world.position(len(world.log.entries)).pair:
            break
        if not done:
            broken += 1
            go_on(rng.randrange(3))
            if consumer.is_inside and rng.random() < 0.4:  # the state that it is given goes
                world.note()
                used = answer_name(consumer.position.log).split(";")[1]
                world.states = [each for each in world.states if each.name != used]
        elif turn > 20:
            world.transaction()
            world.note()
    else:
        return f"seed {seed}: asks for ever at {consumer.position}"
    if stats is not None:
        stats.update(consumer.kinds)
    return _difference(world, consumer, seed)


def _difference(world, consumer, seed):
    for source in sorted(consumer.ask.sources):
        if source == "main.k":
            want = [each.pair for each in world.log.entries if each.table.source == source and hasattr(each, "row")]
            got = [each.pair for each in consumer.entries if each.table.source == source and hasattr(each, "row")]
            if want != got:
                return f"seed {seed} {source}: {got}, not {want}"
            continue
        full = mirror_of(world.log.entries, source)
        table = next((e.table for e in reversed(world.log.entries) if e.table.source == source), None)
        want = {
            key: projected(consumer.ask, table, row)
            for key, (row, _) in full.items()
            if passes(consumer.ask, table, row)
        }
        if (got := consumer.rows(source)) != want:
            return f"seed {seed} {source}: has {got}, should have {want}"
    return None


def test_whoever_is_given_answers_has_what_a_follower_has():
    stats = Counter()
    broken = [found for seed in range(SEEDS) if (found := run(seed, stats)) is not None]
    assert broken == []
    assert min(stats["all"], stats["since"], stats["every"]) > SEEDS // 20, stats


@pytest.mark.soak
def test_whoever_is_given_answers_has_what_a_follower_has_in_many_histories():
    first = random.randrange(10**9)
    assert [found for seed in range(first, first + 20_000) if (found := run(seed)) is not None] == []
