"""Room on the disk, as far as it can be known before a write: looked at now and then, not for each group."""

import os
from pathlib import Path
from typing import Final

from databus.core import DiskFull

_LOOKED_AT_EVERY_BYTES: Final = 1 << 20


class Room:
    """The room on the disk of `folder`, of which `free_bytes_min` must stay free."""

    def __init__(self, folder: Path, free_bytes_min: int) -> None:
        self._folder = folder
        self._free_bytes_min = free_bytes_min
        self._bytes_left = 0  # until the disk is looked at again

    def check(self, size: int) -> None:
        """So many bytes are about to be written. Raises `DiskFull` where they would leave too little."""
        if self._bytes_left <= 0:
            stat = os.statvfs(self._folder)
            free_bytes = stat.f_bavail * stat.f_frsize
            if free_bytes - size < self._free_bytes_min:
                raise DiskFull(
                    f"{self._folder}: {free_bytes} bytes are free on this disk, and {size} more would leave less than "
                    f"free_bytes_min={self._free_bytes_min}; nothing was written. Capture goes on when there is "
                    f"room: free some, or lower retention_bytes_max"
                )
            self._bytes_left = _LOOKED_AT_EVERY_BYTES
        self._bytes_left -= size

    def left(self) -> int:
        """How many bytes may still be written, as the disk is now."""
        stat = os.statvfs(self._folder)
        return stat.f_bavail * stat.f_frsize - self._free_bytes_min

    def forget(self) -> None:
        """A write failed: look at the disk before the next."""
        self._bytes_left = 0
