"""The compiled parts of the packages below, loaded before the first byte comes.

Compiled once for each installation and kept on disk by Numba, beside the modules or, where that cannot be written, in
the user's cache folder (`NUMBA_CACHE_DIR`).
"""

import threading
import time
from importlib import import_module
from typing import Final

import pyarrow as pa
import structlog

_MODULES: Final = (
    "databus.sources.mysql.binlog._kernels",
    "databus.sources.mysql.rows._kernels",
    "databus.sources.mysql.rows._text_kernels",
    "databus.sources.mysql.rows._address_kernels",
    "databus.sources.mysql.rows._json_kernels",
    "databus.sources.mysql.snapshot._kernels",
)
_TELL_S: Final = 2.0
_lock = threading.Lock()


def load_kernels(physical: str) -> None:
    """Load them all; the first time on a machine they are compiled, which takes half a minute, and says so."""
    logger = structlog.get_logger("databus.sources.mysql").bind(physical=physical)
    began_s = time.monotonic()
    with _lock:
        for number, name in enumerate(_MODULES, 1):
            telling = threading.Timer(
                _TELL_S,
                logger.info,
                ["compiling the decoder, once on this machine"],
                {"part": f"{number} of {len(_MODULES)}", "since_s": int(time.monotonic() - began_s)},
            )
            telling.daemon = True
            telling.start()
            try:
                import_module(name)
            finally:
                telling.cancel()
        pa.array([0])  # the first one of a process imports pandas where it is installed; not at the first change
