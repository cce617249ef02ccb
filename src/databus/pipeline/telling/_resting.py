"""Which outputs rest, or write slowly: `databus pause`, `stop`, `drain` and `throttle` say so, `resume` takes it back.

    paused.json: {"v": 1, "outputs": {"copy": 1764000000000000}}

A paused output stays so until `resume`, also when the pipeline is started again: who paused it may still be at work in
its target. A stopped one rests until the end of the run; a throttled one writes slowly until then.
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
    """What is wanted of an output instead of following its sources."""

    PAUSED = "paused"
    STOPPED = "stopped"
    REBUILDING = "rebuilding"
    """Tables of it are being made anew."""
    DRAINING = "draining"
    """It goes on up to the relay's present end, and is stopped then."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """How much a micro-batch may have at most, whatever the file says; None for what is not limited."""

    rows: int | None = None
    bytes: int | None = None

    def to_json(self) -> dict[str, int]:
        """For events and the status."""
        return {name: most for name, most in (("rows", self.rows), ("bytes", self.bytes)) if most is not None}


class Resting:
    """Asked and told by any thread. folder: the pipeline's state."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._paused_us = _read(self._path)
        self._others: dict[str, Rest] = {}
        self._rebuilding: set[str] = set()
        self._throttles: dict[str, Throttle] = {}

    def of(self, outputs: Collection[str]) -> Rest | None:
        """What is wanted of outputs that share a query; they rest together."""
        with self._lock:
            found = {Rest.PAUSED for each in outputs if each in self._paused_us}
            found.update(self._others[each] for each in outputs if each in self._others)
            found.update(Rest.REBUILDING for each in outputs if each in self._rebuilding)
        return next((each for each in Rest if each in found), None)

    def pause(self, outputs: Collection[str]) -> None:
        """From now on, durably. Raises `DiskFull` or `ServiceUnavailable`, and changes nothing then."""
        now_us = time.time_ns() // 1000
        with self._lock:
            self._save(dict.fromkeys(outputs, now_us) | self._paused_us)
            self._forget(outputs)

    def stop(self, outputs: Collection[str]) -> None:
        """Until the end of the run."""
        with self._lock:
            self._others |= dict.fromkeys(outputs, Rest.STOPPED)

    def drain(self, outputs: Collection[str]) -> None:
        """See `Rest.DRAINING`."""
        with self._lock:
            self._others |= dict.fromkeys(outputs, Rest.DRAINING)

    def resume(self, outputs: Collection[str]) -> None:
        """They follow again. Raises as `pause` does."""
        with self._lock:
            left = {name: since for name, since in self._paused_us.items() if name not in outputs}
            if left != self._paused_us:
                self._save(left)
            self._forget(outputs)
            self._throttles = {name: each for name, each in self._throttles.items() if name not in outputs}

    def throttle(self, outputs: Collection[str], throttle: Throttle) -> None:
        """Have them write slowly until they are resumed, or the run ends."""
        with self._lock:
            self._throttles |= dict.fromkeys(outputs, throttle)

    def throttle_of(self, outputs: Collection[str]) -> Throttle | None:
        """How slowly outputs are to write that share a query; they are throttled together."""
        with self._lock:
            return next((self._throttles[each] for each in outputs if each in self._throttles), None)

    @contextmanager
    def rebuilding(self, outputs: Collection[str]) -> Iterator[None]:
        """They rest meanwhile, whoever resumes them. Raises `InputError` where they do so already."""
        with self._lock:
            if self._rebuilding.intersection(outputs):
                raise InputError(
                    f"{', '.join(sorted(outputs))}: tables are being made anew already; ask again after that"
                )
            self._rebuilding.update(outputs)
        try:
            yield
        finally:
            with self._lock:
                self._rebuilding.difference_update(outputs)

    def call(self, old: str, new: str) -> None:
        """Have an output that is paused be so under another name. Raises as `pause` does."""
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
            raise ValueError(f"version {value['v']}")  # noqa: TRY301 - told like all that is wrong with it
        return {str(name): int(since) for name, since in value["outputs"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(
            f"{path}: does not say which outputs are paused ({error!r}). Remove it; then pause again what was paused"
        ) from error
