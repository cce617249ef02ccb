"""A filtered stream is the same in whatever pieces it is read, from a log of any number of segments."""

import os
import random
from pathlib import Path

from databus.core import DatabusError
from databus.filters import FrameFilter, StreamFilter
from databus.log import Allowance, MeasureLimits, Measuring
from databus.relay import _filters
from tests.filters.histories import PHYSICAL, SOURCE, History, groups_of
from tests.filters.test_laws import wanted_of
from tests.log.make import open_log
from tests.seeds import seed_of

ROUNDS = 20


def test_pieces_of_any_size_are_the_stream(tmp_path: Path, monkeypatch):
    ended = 0
    for number in range(ROUNDS):
        seed = seed_of(f"pieces {number}")
        rng = random.Random(seed)
        monkeypatch.setattr(_filters, "_PIECE_BYTES", rng.choice((1, 3_000, 20_000)))
        history = History(rng).run(rng.randint(5, 25))
        wanted = wanted_of(rng, history)
        with open_log(tmp_path / str(number)) as log:
            for group in history.groups:
                log.append(group)
            log.sync()
            frames = FrameFilter(
                StreamFilter.parse(wanted.where, wanted.columns, None, wanted.partition), PHYSICAL, log.schemas
            )
            cursor = log.beginning()
            (whole, error), pieces = _whole(log.beginning(), frames), []
            raised = None
            while raised is None and (piece := _read(cursor, frames, rng)):
                raised = piece if isinstance(piece, DatabusError) else pieces.append(piece)
            assert str(raised) == str(error), seed
            ended += raised is not None
            assert b"".join(pieces) == whole, seed
            commits = [commit.header.last for _, commit in groups_of(whole)]
            assert cursor.position.pair >= max(commits, default=(0, 0)), seed
            assert log.schemas.definition_now(SOURCE) is not None
            _measured(log, frames, whole, is_cut=error is not None)
    assert ended


def _read(cursor, frames, rng):
    try:
        return _filters.read_filtered(cursor, frames, rng.choice((1, 2_000, 50_000)))
    except DatabusError as error:
        return error


def _whole(cursor, frames):
    content = b"".join(os.pread(span.fd, span.length, span.offset) for span in cursor.read(1 << 30))
    found = frames.filtered(content)
    return found.content, found.error


def _measured(log, frames, whole, *, is_cut):
    """Rows are counted at least: what is left out as unchanged is not looked for."""
    measuring = Measuring(log.beginning(), MeasureLimits(), left=frames.measured)
    try:
        while not measuring.step(Allowance()):
            pass
    except DatabusError:
        assert is_cut
        return
    rows = sum(frame.header.rows for some, _ in groups_of(whole) for frame in some)
    measure = measuring.result()
    assert measure.rows >= rows
    assert measure.groups == len(list(groups_of(whole)))
