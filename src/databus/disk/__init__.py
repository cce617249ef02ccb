"""Files that survive a crash at any moment, here or in an object store, and folders that one process owns.

Start with `replace_file`, then `Location`.
"""

from databus.disk._files import (
    BUFFERS_A_CALL_MAX,
    disk_full,
    free_ratio,
    is_no_room,
    is_readable_by_all,
    make_folder,
    move_folder,
    replace_file,
    replacing,
    sync_folder,
    write_all,
    write_failure,
)
from databus.disk._location import (
    LocalLocation,
    Location,
    Storage,
    WriteConflict,
    finished_name,
    locate,
    located,
)
from databus.disk._lock import FolderLock
from databus.disk._object_store import SCHEMES, StoreLocation, is_uri

__all__ = [
    "BUFFERS_A_CALL_MAX",
    "SCHEMES",
    "FolderLock",
    "LocalLocation",
    "Location",
    "Storage",
    "StoreLocation",
    "WriteConflict",
    "disk_full",
    "finished_name",
    "free_ratio",
    "is_no_room",
    "is_readable_by_all",
    "is_uri",
    "locate",
    "located",
    "make_folder",
    "move_folder",
    "replace_file",
    "replacing",
    "sync_folder",
    "write_all",
    "write_failure",
]
