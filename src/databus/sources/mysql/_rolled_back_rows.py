"""Rows that a transaction rolled back after parts of it went out: capture reads it again without them.

A server's log says at the end of a transaction that it was rolled back, or in its middle that it was to a savepoint.
If rows before that are in the relay's log already, the rows to omit are noted in a file, and capture starts
again: the log is cut back to right before the transaction, and the second time they are omitted from the beginning.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NoReturn, Self

import numpy as np

from databus.core import CorruptData, LimitExceeded, ServiceUnavailable, UnsupportedFeature, make_scn
from databus.disk import make_folder, replace_file
from databus.log import Resume
from databus.sources._config import SourceConfig
from databus.sources.mysql.binlog import Abandoned, LogRun, TakenBack, TransactionOrigin

RANGES_MAX: Final = 1 << 20
EVERYTHING: Final = 1 << 62
_NAME: Final = "taken-back.json"


class LeftOut:
    """The numbers of the rows events that one transaction rolled back, as `ranges` that do not touch.

    selection: what is captured.
    """

    def __init__(self, origin: TransactionOrigin, selection: str, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self.origin = origin
        self._selection = selection
        self.ranges = list(ranges)

    def add(self, first: int, end: int) -> None:
        """Add the events from number `first` to `end` - 1; they may overlap ranges that are there."""
        while self.ranges and self.ranges[-1][1] >= first:
            low, high = self.ranges.pop()
            first, end = min(first, low), max(end, high)
        self.ranges.append((first, end))
        if len(self.ranges) > RANGES_MAX:
            raise LimitExceeded(
                f"{self.origin.file} at {self.origin.start}: this transaction goes back to savepoints in more than "
                f"{RANGES_MAX} places; raise `group_bytes_max` so that less of it goes out before it is known"
            )

    def join(self, other: "LeftOut") -> None:
        """Add the ranges of another note about the same transaction."""
        ranges = sorted([*self.ranges, *other.ranges])
        self.ranges = []
        for first, end in ranges:
            self.add(first, max(end, self.ranges[-1][1] if self.ranges and self.ranges[-1][1] >= first else end))

    def leave_out(self, run: LogRun) -> LogRun:
        """The run without them."""
        for transaction in {0, len(run) - 1}:  # larger ones stand at the ends of runs
            if run.origin(transaction) != self.origin:
                continue
            ranges = np.array(self.ranges, np.int64).reshape(-1, 2)
            at = np.searchsorted(ranges[:, 0], run.event_number, side="right") - 1
            is_in = (at >= 0) & (run.event_number < ranges[at, 1]) & (run.event_transaction == transaction)
            return run.only(~is_in)
        return run

    def save(self, folder: Path | None) -> None:
        """Keep it, durably. Raises `UnsupportedFeature` where there is no folder to keep it in."""
        if folder is None:
            raise UnsupportedFeature(
                f"{self.origin.file} at {self.origin.start}: a transaction was rolled back after parts of it went out, "
                f"and without a folder this cannot be remembered; raise `group_bytes_max` above its size"
            )
        value = {"origin": asdict(self.origin), "selection": self._selection, "ranges": self.ranges}
        make_folder(folder)
        replace_file(folder / _NAME, [json.dumps(value).encode()], durable=True)

    @classmethod
    def load(cls, folder: Path | None, scn: int, timeline: int, selection: str) -> Self | None:
        """The note for a transaction after `scn`; deletes a note for an earlier one, or with another selection."""
        if folder is None or not (folder / _NAME).exists():
            return None
        try:
            value = json.loads((folder / _NAME).read_text())
            left_out = cls(
                TransactionOrigin(**value["origin"]), value["selection"], [(low, high) for low, high in value["ranges"]]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(
                f"{folder / _NAME}: {error!r}; delete it: capture finds out by itself what it held"
            ) from error
        if make_scn(timeline, left_out.origin.ordinal) <= scn or left_out._selection != selection:
            (folder / _NAME).unlink()
            return None
        return left_out


class TakingBack:
    """What a session knows of rows that were rolled back. known: noted when an earlier session came here.

    What it raises makes capture cut the log back and start again.
    """

    def __init__(self, physical: str, folder: Path | None, selection: str, known: LeftOut | None = None) -> None:
        self._physical = physical
        self._folder = folder
        self._selection = selection
        self._known = known
        self._left_out: LeftOut | None = None  # of the transaction at hand
        self.is_too_late = False  # rows that were rolled back went out: only look at the rest of the transaction

    def run(self, run: LogRun) -> LogRun | None:
        """What of a run is to be captured. Raises `ServiceUnavailable` at the end of a transaction that comes again."""
        if not self.is_too_late:
            return run if self._known is None else self._known.leave_out(run)
        if run.is_complete or len(run) > 1:
            self._come_again("takes back rows of which a part was captured")
        return None

    def take_back(self, taken_back: TakenBack, *, is_in_time: bool) -> None:
        """Rows were rolled back. is_in_time: none of them went out."""
        if self._left_out is None or self._left_out.origin != taken_back.origin:
            self._left_out = LeftOut(taken_back.origin, self._selection)
        self._left_out.add(taken_back.first, taken_back.end)
        self.is_too_late |= not is_in_time

    def abandon(self, abandoned: Abandoned) -> None:
        """A transaction of which a part went out never ends. Raises `ServiceUnavailable`."""
        self._left_out = LeftOut(abandoned.origin, self._selection)
        self._left_out.add(0, EVERYTHING)
        self._come_again("never ends, since the server that wrote it crashed")

    def _come_again(self, what: str) -> NoReturn:
        assert self._left_out is not None  # noqa: S101 - it was set before anything was too late
        if self._known is not None and self._known.origin == self._left_out.origin:
            self._left_out.join(self._known)
        self._left_out.save(self._folder)
        origin = self._left_out.origin
        raise ServiceUnavailable(
            f"{self._physical}: the transaction at {origin.file}:{origin.start} {what}; what was captured of it is "
            f"taken back, and it is read again without those rows"
        )


def taking_back(physical: str, config: SourceConfig, resume: Resume) -> TakingBack:
    """The `TakingBack` of a session that begins at `resume`."""
    selection = selection_of(config)
    known = LeftOut.load(resume.folder, resume.scn, resume.timeline, selection)
    return TakingBack(physical, resume.folder, selection, known)


def selection_of(config: SourceConfig) -> str:
    """What is captured, as text: of a prepared transaction only such events are counted."""
    return json.dumps([config.tables, config.exclude])
