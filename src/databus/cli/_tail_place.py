"""The file of `databus tail --resume`: how far all has been printed."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from databus.core import Checkpoint, DatabusError, SourceCheckpoint

if TYPE_CHECKING:
    from databus.client import Window

_SAVED_EVERY_S: Final = 1.0


class Place:
    """Keeps it. Whoever is killed prints the changes of up to a second again."""

    def __init__(self, path: Path, taken: Callable[[], Checkpoint], ended: Mapping[str, SourceCheckpoint]) -> None:
        """taken: up to where windows were taken to be printed, but for the last one. ended: where physical sources
        stand of which nothing more is printed, though more may be read.
        """
        from databus.client import FileCheckpoints

        self._store = FileCheckpoints(path)
        self._taken = taken
        self._ended = ended
        self._lines_given = self._lines_printed = 0
        self._last: Window | None = None
        self._saved: Checkpoint | None = None

    def open(self) -> Mapping[str, SourceCheckpoint]:
        """Take the file, and say what it holds. Raises what `FileCheckpoints.open` does."""
        self._saved = self._store.open()
        return {} if self._saved is None else self._saved.sources

    def passing(self, windows: "Iterator[Window]", *, is_json: bool) -> "Iterator[Window]":
        """The windows on their way to be printed; of each it is counted how many lines it has."""
        for window in windows:
            images = len(window) if is_json else len(window.rows())
            self._lines_given += images + window.has_control + (is_json and window.restarts)
            self._last = window
            yield window

    def printed(self) -> None:
        """One more line is out."""
        self._lines_printed += 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Save how far it has come, each second and at the end."""
        ended = threading.Event()

        def save_often() -> None:
            while not ended.wait(_SAVED_EVERY_S):
                self._save(is_end=False)

        saving = threading.Thread(target=save_often, name="place", daemon=True)
        saving.start()
        try:
            yield
        finally:
            ended.set()
            saving.join()
            self._save(is_end=True)

    def close(self) -> None:
        """Let go of the file. Callable twice."""
        self._store.close()

    def _save(self, *, is_end: bool) -> None:
        place = self._place()
        if place == self._saved:
            return
        try:
            self._store.save(place)
            self._saved = place
        except DatabusError:
            if is_end:  # before, it is tried again in a second
                raise

    def _place(self) -> Checkpoint:
        """What was asked for behind a window was printed. The last one too, where all its lines are."""
        positions = dict(self._taken().sources)
        last = self._last
        if last is not None and self._lines_printed == self._lines_given:
            known = positions.get(last.physical)
            if known is None or known.pair < last.position.pair:
                positions[last.physical] = last.position
        return Checkpoint({**positions, **self._ended})
