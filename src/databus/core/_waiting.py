"""Waiting in the main thread so that signals are seen, and what would swallow one."""

import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Final

SIGNAL_S_MAX: Final = 0.5
"""How long the main thread may wait without a look.

Python runs the handler of a signal between two steps of the main thread. One that comes just before a wait begins, or
that the system gives to another thread, does not end it: without a bound Ctrl-C would be lost until something else
happens.
"""


def wait_seeing_signals(
    condition: threading.Condition, is_over: Callable[[], bool], seconds_max: float | None = None
) -> bool:
    """`Condition.wait_for`, for the main thread: a signal is handled within `SIGNAL_S_MAX`."""
    deadline = None if seconds_max is None else time.monotonic() + seconds_max
    while True:
        left_s = SIGNAL_S_MAX if deadline is None else deadline - time.monotonic()
        if condition.wait_for(is_over, min(max(left_s, 0.0), SIGNAL_S_MAX)):
            return True
        if left_s <= 0:
            return False


def join_seeing_signals(thread: threading.Thread, seconds_max: float | None = None) -> None:
    """`Thread.join`, for the main thread; see `wait_seeing_signals`."""
    deadline = math.inf if seconds_max is None else time.monotonic() + seconds_max
    while thread.is_alive() and (left_s := deadline - time.monotonic()) > 0:
        thread.join(min(left_s, SIGNAL_S_MAX))


def import_pandas() -> None:
    """Import pandas, if there is one, where Ctrl-C is heard.

    Arrow does at the first use of many functions, takes any exception then for its absence (InitPandasStaticData in its
    helpers.cc), and so loses a `KeyboardInterrupt` that comes within this second.
    """
    if "pandas" not in sys.modules:
        with suppress(Exception):  # one that cannot be imported is none, as for Arrow
            import_module("pandas")
