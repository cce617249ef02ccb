"""SIGTERM, by which service managers and containers ask a program to end."""

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ends_on_sigterm(end: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM call `end` while the block runs in the main thread, unless the program handles it itself."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def handle(_number: int, _frame: Any) -> None:
        # In a thread, and not by `threading`: the main thread may hold any lock where it was interrupted.
        _thread.start_new_thread(end, ())

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
