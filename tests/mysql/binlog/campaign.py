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
from tests.mysql.binlog.damage import damaged, outcome, small
from tests.mysql.rows.guarded import Walls

_LOG = "log.pickle"
_LAST = "read-last"


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
    log = pickle.loads((folder / _LOG).read_bytes())  # noqa: S301 - written above
    files, walls = small(log), Walls()
    whole = [outcome(log, raw, 0, walls) for raw in files]
    assert any(word.endswith(" images") for words in whole for word in words)
    refused = 0
    for i in range(first, first + count):
        dice = random.Random(f"{seed} {i}")
        which = dice.randrange(len(files))
        raw = damaged(files[which], dice)
        (folder / _LAST).write_bytes(b"%d\n%s" % (i, raw))
        walls.is_behind = i % 2 == 0
        found = outcome(log, raw, 0, walls)
        assert outcome(log, raw, 0xFF, walls) == found, "what follows the bytes matters"
        refused += found != whole[which]
    assert count < 100 or refused > count // 3


if __name__ == "__main__":
    _campaign(Path(sys.argv[1]), *map(int, sys.argv[2:]))
