"""Pairs in rows: where rows may be parted."""

import itertools
import random

import pyarrow as pa

from databus.flow._pairs import pairs_of, parted


def test_parts_are_apart_by_their_pairs_and_no_larger_than_they_have_to_be(seed):
    rng = random.Random(seed)
    for _ in range(300):
        pairs: list[tuple[int, int]] = []
        for scn in range(1, rng.randrange(1, 12)):
            for seq in range(1, rng.randrange(1, 6), 2):
                pairs += rng.choice(
                    ([(scn, seq)] * rng.randrange(1, 4), [(scn, seq), (scn, seq + 1)] * rng.randrange(1, 3))
                )
        rows = pa.table(
            {"_commit_version": [a for a, _ in pairs], "_seq": [b for _, b in pairs], "n": range(len(pairs))}
        )
        rows_max = rng.randrange(1, 5)
        parts = [[*zip(*(pair.tolist() for pair in pairs_of(part)), strict=True)] for part in parted(rows, rows_max)]
        assert [*itertools.chain(*parts)] == pairs
        for before, after in itertools.pairwise(parts):
            assert max(before) < min(after)
        for part in parts:
            ends = [at for at in range(1, len(part)) if max(part[:at]) < min(part[at:])]
            assert all(at < rows_max for at in ends), "it could have ended there"


def test_rows_of_which_each_has_its_pair_are_parted_where_they_are_many_enough():
    rows = pa.table({"_commit_version": [1, 1, 2, 2, 3], "_seq": [1, 2, 1, 2, 1]})
    assert [part.num_rows for part in parted(rows, 2)] == [2, 2, 1]
    assert parted(rows.slice(0, 0), 2) == []
