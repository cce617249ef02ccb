"""Which outputs rest or are slowed down, by `databus pause`, `stop`, `drain` and `throttle`; `resume` takes it back.

    paused.json: {"v": 1, "outputs": {"copy": 1764000000000000}}

A paused output stays paused until `resume`, also if the pipeline is restarted: whoever paused it may still be working
on its target. A stopped or throttled one stays so until the end of the run.
"""

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from databus.core import CorruptData, InputError
from databus.disk import replace_file

FILE: Final = "paused.json"
_VERSION: Final = 1


class Rest(StrEnum):
    """What an output does instead of following its sources."""

    PAUSED = "paused"
    STOPPED = "stopped"
    REBUILDING = "rebuilding"
    """Some of its tables are being rebuilt."""
    DRAINING = "draining"
    """It continues up to the relay's present end, then stops."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limits of a micro-batch, instead of those in the file; None for no limit."""

    rows: int | None = None
    bytes: int | None = None

    def to_json(self) -> dict[str, int]:
        """For events and the status."""
        return {name: limit for name, limit in (("rows", self.rows), ("bytes", self.bytes)) if limit is not None}


class Resting:
    """Used by any thread. folder: the pipeline's state."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._paused_us = _read(self._path)
        self._others: dict[str, Rest] = {}
        self._rebuilding: set[str] = set()
        self._throttles: dict[str, Throttle] = {}

    def of(self, outputs: Collection[str]) -> Rest | None:
        """How outputs that share a query rest; they rest together. None if they do not."""
        with self._lock:
            wanted = {Rest.PAUSED for output in outputs if output in self._paused_us}
            wanted.update(self._others[output] for output in outputs if output in self._others)
            wanted.update(Rest.REBUILDING for output in outputs if output in self._rebuilding)
        return next((rest for rest in Rest if rest in wanted), None)

    def pause(self, outputs: Collection[str]) -> None:
        """Pause from now on, durably. Raises `DiskFull` or `ServiceUnavailable`; then nothing has changed."""
        now_us = time.time_ns() // 1000
        with self._lock:
            self._save(dict.fromkeys(outputs, now_us) | self._paused_us)
            self._forget(outputs)

    def stop(self, outputs: Collection[str]) -> None:
        """Stop until the end of the run."""
        with self._lock:
            self._others |= dict.fromkeys(outputs, Rest.STOPPED)

    def drain(self, outputs: Collection[str]) -> None:
        """See `Rest.DRAINING`."""
        with self._lock:
            self._others |= dict.fromkeys(outputs, Rest.DRAINING)

    def resume(self, outputs: Collection[str]) -> None:
        """Have them follow their sources again. Raises as `pause` does."""
        with self._lock:
            still_paused = {name: since for name, since in self._paused_us.items() if name not in outputs}
            if still_paused != self._paused_us:
                self._save(still_paused)
            self._forget(outputs)
            self._throttles = {name: throttle for name, throttle in self._throttles.items() if name not in outputs}

    def throttle(self, outputs: Collection[str], throttle: Throttle) -> None:
        """Limit their micro-batches until they are resumed, or the run ends."""
        with self._lock:
            self._throttles |= dict.fromkeys(outputs, throttle)

    def throttle_of(self, outputs: Collection[str]) -> Throttle | None:
        """The limits of outputs that share a query; they are throttled together."""
        with self._lock:
            return next((self._throttles[output] for output in outputs if output in self._throttles), None)

    @contextmanager
    def rebuilding(self, outputs: Collection[str]) -> Iterator[None]:
        """They rest meanwhile, even if they are resumed. Raises `InputError` if a rebuild is under way."""
        with self._lock:
            if self._rebuilding.intersection(outputs):
                raise InputError(
                    f"{', '.join(sorted(outputs))}: tables are being rebuilt already; try again when that is done"
                )
            self._rebuilding.update(outputs)
        try:
            yield
        finally:
            with self._lock:
                self._rebuilding.difference_update(outputs)

    def call(self, old: str, new: str) -> None:
        """Keep an output paused under its new name. Raises as `pause` does."""
        with self._lock:
            if old in self._paused_us:
                self._save({new if name == old else name: since for name, since in self._paused_us.items()})

    def _forget(self, outputs: Collection[str]) -> None:
        self._others = {name: rest for name, rest in self._others.items() if name not in outputs}

    def _save(self, paused_us: Mapping[str, int]) -> None:
        text = json.dumps({"v": _VERSION, "outputs": paused_us})
        replace_file(self._path, [text.encode()], durable=True)
        self._paused_us = dict(paused_us)


def _read(path: Path) -> dict[str, int]:
    try:
        value: Any = json.loads(path.read_bytes())
        if value["v"] != _VERSION:
            raise ValueError(f"version {value['v']}")  # noqa: TRY301 - the handler below names the file
        return {str(name): int(since) for name, since in value["outputs"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(
            f"{path}: does not say which outputs are paused ({error!r}). Remove it; then pause again what was paused"
        ) from error
