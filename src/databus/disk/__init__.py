"""Files that survive a crash at any moment, and folders that one process owns. Start with `replace_file`."""

from databus.disk._files import (
    BUFFERS_A_CALL_MAX,
    disk_full,
    is_no_room,
    is_readable_by_all,
    make_folder,
    replace_file,
    replacing,
    sync_folder,
    write_all,
    write_failure,
)
from databus.disk._lock import FolderLock

__all__ = [
    "BUFFERS_A_CALL_MAX",
    "FolderLock",
    "disk_full",
    "is_no_room",
    "is_readable_by_all",
    "make_folder",
    "replace_file",
    "replacing",
    "sync_folder",
    "write_all",
    "write_failure",
]
