"""Runs of whole groups as they come from a relay, for the shape `frames`: bytes are cut at groups, not decoded.

Only headers are looked at here. Whoever decodes the frames checks every header and body, whatever lies in between.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from databus.core import StreamCut
from databus.wire import COMMIT, HEADER_BYTES_MIN, Header, header_length, unpack_header, whole_commit

RUN_BYTES: Final = 4 << 20
_LOOKAHEAD_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Whole groups, one after the other, and the header of the last one's commit frame."""

    frames: memoryview
    commit: Header


class RunCutter:
    """Cuts a stream of bytes into runs. Pure: write into `space()`, then tell `received` how much came.

    A run ends with the group that takes it past `RUN_BYTES`; what is left at the end comes from `finish`. A run's
    memory is its own: what is kept is bounded by what the caller keeps.
    """

    def __init__(self, where: str, run_bytes: int = RUN_BYTES) -> None:
        self._where = where
        self._run_bytes = run_bytes
        self._arena = np.empty(run_bytes + _LOOKAHEAD_BYTES, np.uint8).data
        self._frame = 0  # start of the first frame that is not complete
        self._end = 0  # of what has been received
        self._run_end = 0  # of the last complete group
        self._commit: Header | None = None
        self._offset = 0  # of the arena's start in the stream

    def _place(self) -> str:
        return f"{self._where}, byte {self._offset + self._frame}"

    def space(self) -> memoryview:
        """Where to receive the next bytes; never empty."""
        if self._end == len(self._arena):
            self._grow(2 * len(self._arena))
        return self._arena[self._end :]

    def _grow(self, size: int) -> None:
        arena = np.empty(size, np.uint8).data
        arena[: self._end] = self._arena[: self._end]
        self._arena = arena

    def received(self, count: int) -> list[FrameRun]:
        """Take note of `count` bytes written to `space()`; returns the runs that are complete now.

        Raises `CorruptData` for bytes that no relay wrote.
        """
        self._end += count
        runs: list[FrameRun] = []
        while (header := self._next_header()) is not None:
            body = self._frame + header.header_bytes
            self._frame += header.frame_bytes
            if header.kind == COMMIT:
                self._run_end, self._commit = self._frame, whole_commit(header, self._arena[body : self._frame])
                if self._run_end >= self._run_bytes:
                    runs.append(self._take())
        return runs

    def _next_header(self) -> Header | None:
        view = self._arena[self._frame : self._end]
        if len(view) < HEADER_BYTES_MIN or len(view) < header_length(view, self._place()):
            return None
        header = unpack_header(view, self._place())
        return header if len(view) >= header.frame_bytes else None

    def _take(self) -> FrameRun:
        assert self._commit is not None  # noqa: S101 - a run ends with a commit frame
        run = FrameRun(self._arena[: self._run_end].toreadonly(), self._commit)
        rest = self._arena[self._run_end : self._end]
        self._arena = np.empty(max(self._run_bytes, len(rest)) + _LOOKAHEAD_BYTES, np.uint8).data
        self._arena[: len(rest)] = rest
        self._offset += self._run_end
        self._frame -= self._run_end
        self._end = len(rest)
        self._run_end, self._commit = 0, None
        return run

    @property
    def whole(self) -> Header | None:
        """The commit frame's header of the last complete group that waits here; None if none does."""
        return self._commit

    def finish(self) -> FrameRun | None:
        """The last run, when the stream has ended. Raises `StreamCut` if it ended inside a group."""
        if self._frame != self._end or self._run_end != self._end:
            raise StreamCut(f"{self._place()}: the stream ended inside a group; it is asked for again")
        return self._take() if self._commit is not None else None
