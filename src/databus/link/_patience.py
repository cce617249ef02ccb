"""Asking a relay again that does not answer."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from databus.core import TransientError

_BACK_OFF_MS: Final = (20, 1_000)
T = TypeVar("T")


def patiently(ask: Callable[[], T], retry_ms: int) -> T:
    """Ask again, with back-off, for up to `retry_ms` while it answers `TransientError`."""
    deadline = time.monotonic() + retry_ms / 1e3
    pause_ms = _BACK_OFF_MS[0]
    while True:
        try:
            return ask()
        except TransientError:
            if time.monotonic() + pause_ms / 1e3 >= deadline:
                raise
        time.sleep(pause_ms / 1e3)  # nothing tells when a relay is back
        pause_ms = min(pause_ms * 2, _BACK_OFF_MS[1])
