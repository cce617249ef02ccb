"""Kill -9 at every crash point of the log: what was acknowledged is there, in whole transactions, and nothing else."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest

from databus.core import BUS_SEQ_MIN, CRASH_POINTS
from tests.log.appender import CONFIG, transaction
from tests.log.make import open_log, pairs_of, read

POINTS = [point for point in CRASH_POINTS if point.startswith("log.")]
KILLS_A_LOG = 4


@pytest.fixture(scope="module")
def appender():
    with subprocess.Popen(
        [sys.executable, "-m", "tests.log.appender"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def run(**ask):
            process.stdin.write(json.dumps(ask) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


def logged_pairs(scn):
    return [
        (scn, row["_seq"])
        for each in transaction(scn)
        if not each.snapshot
        for rows in each.rows
        for row in rows.batch.to_pylist()
    ]


def check(folder, acks):
    """Open what the kill left, and hold it against what was acknowledged."""
    acked = [json.loads(line) for line in acks.read_text().splitlines()] if acks.exists() else []
    last = acked[-1] if acked else {"published": [0, 0], "durable": 0}
    with open_log(folder, CONFIG) as log:
        head, resume = log.head(), log.resume()
        assert list(head.published.pair) >= last["published"]
        assert resume.scn >= last["durable"]
        assert not head.is_inside_transaction
        got = [row[1:3] for row in pairs_of(read(log.earliest()))]
        assert got == sorted(set(got))
        logged = [pair for pair in got if pair[1] < BUS_SEQ_MIN]
        wanted = [pair for scn in range(head.oldest.scn, resume.scn + 1) if scn for pair in logged_pairs(scn)]
        assert logged == [pair for pair in wanted if pair > head.oldest.pair]
        chunks = Counter(scn for scn, seq in got if seq >= BUS_SEQ_MIN)
        assert set(chunks.values()) <= {2}  # a chunk whole or not at all


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_loses_nothing_that_was_acknowledged(appender, tmp_path, point, seed):
    chance = random.Random(seed)
    acks = tmp_path / "acks"
    kills = 0
    for turn in range(KILLS_A_LOG):
        count = chance.randint(1, 9) if turn else 1  # each place is there once at least
        status = appender(folder=str(tmp_path / "log"), point=point, count=count, acks=str(acks))
        assert status in (0, signal.SIGKILL), "the appender failed; see its traceback"
        kills += os.WIFSIGNALED(status)
        check(tmp_path / "log", acks)
    assert kills
