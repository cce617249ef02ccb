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

_NEEDED: Final = (
    "databus.sources.mysql.binlog._packet_kernels",
    "databus.sources.mysql.binlog._kernels",
    "databus.sources.mysql.rows._kernels",
    "databus.sources.mysql.rows._bus_kernels",
    "databus.sources.mysql.rows._small_kernels",
    "databus.sources.mysql.snapshot._kernels",
)
_NEEDED_BY_SOME: Final = (
    "databus.sources.mysql.rows._text_kernels",
    "databus.sources.mysql.rows._address_kernels",
    "databus.sources.mysql.rows._json_kernels",
)
"""By columns of some types only; loaded in the background, so that the first such column does not wait for them."""

_TELL_S: Final = 2.0
_lock = threading.Lock()
_background: threading.Thread | None = None


def load_kernels(physical: str) -> None:
    """Load what every table needs; the first time on a machine it is compiled, which takes some ten seconds."""
    global _background  # noqa: PLW0603 - one for the process
    logger = structlog.get_logger("databus.sources.mysql").bind(physical=physical)
    began_s = time.monotonic()
    with _lock:
        for number, name in enumerate(_NEEDED, 1):
            part = {"part": f"{number} of {len(_NEEDED)}", "since_s": int(time.monotonic() - began_s)}
            telling = threading.Timer(_TELL_S, logger.info, ["compiling the decoder, once on this machine"], part)
            telling.daemon = True
            telling.start()
            try:
                import_module(name)
            finally:
                telling.cancel()
        pa.array([0])  # the first one of a process imports pandas where it is installed; not at the first change
        if _background is None:
            _background = threading.Thread(target=_load_others, name="mysql-kernels", daemon=True)
            _background.start()


def _load_others() -> None:
    for name in _NEEDED_BY_SOME:
        import_module(name)
