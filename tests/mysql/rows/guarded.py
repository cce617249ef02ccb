"""Bytes at the very end of readable memory: whoever reads one further is killed by the system."""

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None, use_errno=True)
_NOTHING = 0


def guarded(data: bytes) -> NDArray[np.uint8]:
    """A copy of `data` that ends where a page begins which nobody may read."""
    pages = (len(data) + mmap.PAGESIZE - 1) // mmap.PAGESIZE + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    whole = np.frombuffer(memory, dtype=np.uint8)
    wall = (pages - 1) * mmap.PAGESIZE
    start = whole.ctypes.data
    if _LIBC.mprotect(ctypes.c_void_p(start + wall), ctypes.c_size_t(mmap.PAGESIZE), _NOTHING):
        raise OSError(ctypes.get_errno(), "mprotect")
    found = whole[wall - len(data) : wall]
    found[:] = np.frombuffer(data, dtype=np.uint8)
    return found
