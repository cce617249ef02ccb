"""Damaged logs by the thousand, in a process of its own, since a kernel's mistake may end it.

    [NUMBA_BOUNDSCHECK=1] python -m tests.mysql.binlog.campaign FOLDER EVENTS_MAX SEED FIRST COUNT

FOLDER has the logs that are damaged, and gets the bytes that were read last. EVENTS_MAX: of the pieces that are
damaged, in place of whole files; 0 for those.
"""

import os
import pickle
import random
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mysql.binlog.conftest import Log
from tests.mysql.binlog.damage import damaged, of_other_kinds, outcome, pieces, small
from tests.mysql.rows.guarded import Walls

_LOGS = "logs.pickle"
_LAST = "read-last"
_RUN_EVENTS_MAX = (64, 4)
_LONG = 1_000
"""So many damages: whole files are damaged, and the events of each are called other kinds; else pieces of them, which
are read in a fifth of the time, and each kind of event in one piece.
"""
_PIECE_EVENTS_MAX = 30


def run_campaign(logs: list[Log], folder: Path, seed: int, count: int, *, is_checked: bool) -> None:
    """Read so many damaged copies of each log; fails saying how to read the one that went wrong again.

    is_checked: with kernels that check every access to an array.
    """
    (folder / _LOGS).write_bytes(pickle.dumps(logs))
    (folder / _LAST).write_bytes(b"0 0\n")
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": str(int(is_checked)), "PYTHONFAULTHANDLER": "1"}
    events_max = 0 if count >= _LONG else _PIECE_EVENTS_MAX
    words = [sys.executable, "-m", __name__, str(folder), str(events_max)]
    done = subprocess.run(
        [*words, str(seed), "0", str(count)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        place, _, raw = (folder / _LAST).read_bytes().partition(b"\n")
        which, number = map(int, place.split())
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
        again = f"NUMBA_BOUNDSCHECK={int(is_checked)} {' '.join(words)} {seed} {number} 1"
        log = logs[which]
        pytest.fail(
            f"{how} at number {number} of DATABUS_SEED={seed}, {log.kind}, {log.scheme}; again: {again}\n"
            f"{done.stdout}{done.stderr}\nThe damaged log, as hexadecimal of zlib: {zlib.compress(raw).hex()}"
        )


def _campaigns(folder: Path, events_max: int, seed: int, first: int, count: int) -> None:
    logs = pickle.loads((folder / _LOGS).read_bytes())  # noqa: S301 - our own: `run_campaign` has just written it
    known: set[int] = set()
    with (folder / _LAST).open("wb", buffering=0) as last:  # it is written a thousand times
        for which, log in enumerate(logs):

            def note(number: int, raw: bytes, which: int = which) -> None:
                last.seek(0)
                last.truncate(last.write(b"%d %d\n%s" % (which, number, raw)))

            files = small(log)
            if events_max:
                files = [piece for raw in files for piece in pieces(raw, events_max)]
            _campaign(log, files, note, known if events_max else None, seed, range(first, first + count))


def _campaign(
    log: Log,
    files: list[bytes],
    note: Callable[[int, bytes], None],
    known: set[int] | None,
    seed: int,
    numbers: range,
) -> None:
    """note: told what is read, before it is. known: kinds of events that need not be called others any more."""
    walls, sizes = Walls(), len(_RUN_EVENTS_MAX)

    def read(number: int, raw: bytes, guard: int = 0) -> tuple[str, ...]:
        note(number, raw)
        walls.is_behind = number % 2 == 0
        return outcome(log, raw, guard, walls, _RUN_EVENTS_MAX[number % sizes])

    whole = [[read(size, raw) for size in range(sizes)] for raw in files]
    assert any(word.endswith(" images") for words in whole for word in words[0])
    assert not any(word.startswith(("CorruptData", "unfinished")) for words in whole for word in words[0])
    for raw in files:
        for number, each in enumerate(of_other_kinds(raw, set() if known is None else known)):
            read(number, each)
    refused = 0
    for number in numbers:
        dice = random.Random(f"{seed} {number}")
        which = dice.randrange(len(files))
        broken = damaged(files[which], dice)
        found = read(number, broken)
        assert read(number, broken, guard=0xFF) == found, "what follows the bytes matters"
        refused += found != whole[which][number % sizes]
    assert len(numbers) < 100 or refused > len(numbers) // 3


if __name__ == "__main__":
    _campaigns(Path(sys.argv[1]), *map(int, sys.argv[2:]))
