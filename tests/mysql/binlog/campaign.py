"""Damaged logs by the thousand, in a process of its own, since a kernel's mistake may end it.

    [NUMBA_BOUNDSCHECK=1] python -m tests.mysql.binlog.campaign FOLDER SEED FIRST COUNT

FOLDER has the log that is damaged, and gets the bytes that were read last.
"""

import os
import pickle
import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.mysql.binlog.conftest import Log
from tests.mysql.binlog.damage import damaged, of_other_kinds, outcome, small
from tests.mysql.rows.guarded import Walls

_LOG = "log.pickle"
_LAST = "read-last"
_RUN_EVENTS_MAX = (64, 4)
_LONG = 1_000
"""So many damages, or one: the events of each file are called other kinds; else each kind of event in one file."""


def run_campaign(log: Log, folder: Path, seed: int, count: int, *, is_checked: bool) -> None:
    """Read so many damaged logs; fails saying how to read the one that went wrong again.

    is_checked: with kernels that check every access to an array.
    """
    (folder / _LOG).write_bytes(pickle.dumps(log))
    (folder / _LAST).write_bytes(b"0\n")
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": str(int(is_checked)), "PYTHONFAULTHANDLER": "1"}
    words = [sys.executable, "-m", __name__, str(folder)]
    done = subprocess.run(
        [*words, str(seed), "0", str(count)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        number, _, raw = (folder / _LAST).read_bytes().partition(b"\n")
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
        again = f"NUMBA_BOUNDSCHECK={int(is_checked)} {' '.join(words)} {seed} {number.decode()} 1"
        pytest.fail(
            f"{how} at number {number.decode()} of DATABUS_SEED={seed}, {log.kind}, {log.scheme}; again: {again}\n"
            f"{done.stdout}{done.stderr}\nThe damaged log, as hexadecimal of zlib: {zlib.compress(raw).hex()}"
        )


def _campaign(folder: Path, seed: int, first: int, count: int) -> None:
    log = pickle.loads((folder / _LOG).read_bytes())  # noqa: S301 - our own: `run_campaign` has just written it
    files, walls, sizes = small(log), Walls(), len(_RUN_EVENTS_MAX)

    def read(number: int, raw: bytes, guard: int = 0) -> tuple[str, ...]:
        (folder / _LAST).write_bytes(b"%d\n%s" % (number, raw))
        walls.is_behind = number % 2 == 0
        return outcome(log, raw, guard, walls, _RUN_EVENTS_MAX[number % sizes])

    whole = [[read(size, raw) for size in range(sizes)] for raw in files]
    assert any(word.endswith(" images") for words in whole for word in words[0])
    known: set[int] = set()
    for raw in files:
        for number, each in enumerate(of_other_kinds(raw, known if 1 < count < _LONG else set())):
            read(number, each)
    refused = 0
    for number in range(first, first + count):
        dice = random.Random(f"{seed} {number}")
        which = dice.randrange(len(files))
        broken = damaged(files[which], dice)
        found = read(number, broken)
        assert read(number, broken, guard=0xFF) == found, "what follows the bytes matters"
        refused += found != whole[which][number % sizes]
    assert count < 100 or refused > count // 3


if __name__ == "__main__":
    _campaign(Path(sys.argv[1]), *map(int, sys.argv[2:]))
