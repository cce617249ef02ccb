"""However a file is edited, runs end, and targets and logs are put back: no row is lost, repeated, or out of order."""

from dataclasses import replace

import pytest

from databus.places import Position, _reconcile
from tests.places import targets
from tests.places.campaign import Engine, failures

CHUNK = 50
FIRST = 100_000


@pytest.mark.parametrize("first", range(FIRST, FIRST + 300, CHUNK))
def test_no_row_is_lost_repeated_or_out_of_order(first):
    found, counts = failures(range(first, first + CHUNK))
    assert found == {}
    assert counts["verified"] > 1_000


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(FIRST + 1_000, FIRST + 21_000, 1_000))
def test_no_row_is_lost_repeated_or_out_of_order_in_any_of_many_histories(first):
    found, _ = failures(range(first, first + 1_000))
    assert found == {}


# Each rule turned off: seeds have to fail


def without_marks(patch):
    patch.setattr(_reconcile, "_lacks", lambda noted, word: False)


def with_words_without_seeds(patch):
    seeded = Position.seeded

    def asked(self, seeds):
        return seeded(self, {name: seed for name, seed in seeds.items() if seed in (None, "asked")})

    patch.setattr(Position, "seeded", asked)


def with_tables_behind_that_ride_along(patch):
    patch.setattr(Position, "behind", lambda self, start: {})


def with_tables_that_are_forgotten_when_they_are_taken_away(patch):
    patch.setattr(Position, "choosing", lambda self, choice, there: replace(self, tables=choice))


def with_buckets_that_do_not_drop_what_they_have(patch):
    write = targets.Kafka.write

    def without_own(self, batch, out, tick):
        done = Position.done
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Position, "done", lambda one, name: done(one, name) if one is batch.position else (0, 0))
            return write(self, batch, out, tick)

    patch.setattr(targets.Kafka, "write", without_own)


def with_a_ledger_that_is_not_written_before_the_first_batch(patch):
    begin = Engine._begin

    def silent(self, out):
        put = out.put
        out.put = lambda position, tick=None: None
        try:
            begin(self, out)
        finally:
            out.put = put

    patch.setattr(Engine, "_begin", silent)


def with_refused_tables_that_keep_their_place(patch):
    patch.setattr(Position, "refusing", lambda self, names: self)


def with_marks_that_fall(patch):
    def fallen(self, marks, written):
        kept = {name: noted for name, noted in self.marks.items() if name not in written}
        return replace(self, marks={**kept, **marks})

    patch.setattr(Position, "noting", fallen)


MUTANTS = [
    (without_marks, 100_005),
    (with_words_without_seeds, 100_225),
    (with_tables_behind_that_ride_along, 100_005),
    (with_tables_that_are_forgotten_when_they_are_taken_away, 100_036),
    (with_buckets_that_do_not_drop_what_they_have, 100_001),
    (with_refused_tables_that_keep_their_place, 100_022),
    (with_a_ledger_that_is_not_written_before_the_first_batch, 100_020),
    (with_marks_that_fall, 111_887),
]


@pytest.mark.parametrize(("mutant", "seed"), MUTANTS, ids=lambda each: getattr(each, "__name__", ""))
def test_without_a_rule_something_is_lost_or_comes_twice(monkeypatch, mutant, seed):
    assert failures([seed])[0] == {}
    mutant(monkeypatch)
    found, _ = failures([seed])
    assert found
