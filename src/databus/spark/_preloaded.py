"""The Python of a local Spark: forked from a process that has imported what streams and tasks need.

A pipeline of ten outputs starts some thirty Python processes, each of which would import pyspark, PyArrow and databus
for half a second of processor time, and no batch begins before that.
"""

import os
import sys
from contextlib import suppress
from functools import cache
from typing import Final

from databus.forks import Nursery
from databus.spark._private import WORKER_MODULES

_MODULES: Final = (
    "databus.spark._source",
    "databus.tasks",
    "pyarrow.parquet",
    *WORKER_MODULES,
    "pyspark_databus",
)


def preloaded_python() -> str:
    """By its path; this process's own Python where processes cannot be forked."""
    if sys.platform == "linux":
        with suppress(OSError):  # no room for temporary files, or a folder with too long a name for a socket
            program = _nursery().python()
            return sys.executable if program is None else str(program)
    return sys.executable


@cache  # one for all sessions of this process, whose JVM stays the same as well
def _nursery() -> Nursery:
    # Texts have the hashes that pyspark wants in all its workers.
    return Nursery(_MODULES, {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")})
