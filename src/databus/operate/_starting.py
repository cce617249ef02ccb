"""The start of a process: mostly imports."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def starting() -> Iterator[None]:
    """Make here what stays for as long as the process lives, modules above all.

    Python looks for no garbage meanwhile, which is a sixth of the processor time of a relay's start; when it looks
    later, it passes over all that was there by the end.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def has_terminal() -> bool:
    """Whether a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
