"""The compiled parts of the packages below, loaded before the first byte comes.

Compiled once for each installation and kept on disk by Numba, beside the modules or, where that cannot be written, in
the user's cache folder (`NUMBA_CACHE_DIR`). Where something is missing there, other processes compile a share of it at
the same time and leave it on the disk. `python -m databus.sources.mysql._kernels` does all of that ahead.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, Self

import pyarrow as pa
import structlog

from databus.sources.mysql._compile import when_something_is_missing

_SHARES: Final = (
    (
        "binlog._packet_kernels",
        "binlog._scan_kernels",
        "snapshot._result_kernels",
        "rows._text_kernels",
        "rows._address_kernels",
        "rows._bus_kernels",
        "rows._small_kernels",
    ),
    ("rows._image_kernels",),
    ("rows._json_kernels",),
)
"""Modules with kernels; shares of about the same time."""

_PACKAGE: Final = "databus.sources.mysql"
_lock = threading.Lock()


def load_kernels(physical: str, say: Callable[[str], None] = lambda _: None) -> None:
    """Load them all; the first time on a machine they are compiled. say: told what is being done, and "" at the end."""
    with _lock, _Loading(physical, say) as loading:
        when_something_is_missing(loading.compile_shares)
        try:
            for number, name in enumerate(_SHARES[0], 1):
                loading.at(number, name)
                import_module(f"{_PACKAGE}.{name}")
            loading.wait()
            for name in (each for share in _SHARES[1:] for each in share):
                import_module(f"{_PACKAGE}.{name}")
        finally:
            when_something_is_missing(None)
        pa.array([0])  # the first one of a process imports pandas where it is installed; not at the first change


class _Loading:
    """One loading: the processes that compile shares of it, and what is said meanwhile."""

    def __init__(self, physical: str, say: Callable[[str], None]) -> None:
        self._say = say
        self._logger = structlog.get_logger("databus.sources.mysql").bind(physical=physical)
        self._began_s = time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._part = ""
        self._is_compiling = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        if self._is_compiling:
            self._say("")

    def at(self, number: int, name: str) -> None:
        """This module is next."""
        self._part = f"{number} of {len(_SHARES[0]) + len(_SHARES) - 1}"
        if self._is_compiling:
            self._tell(name)

    def compile_shares(self) -> None:
        """Have all shares but the first compiled elsewhere, as far as there are processors for them."""
        self._is_compiling = True
        self._tell("")
        more = len(os.sched_getaffinity(0)) - 1
        for share in _SHARES[1:] if more >= len(_SHARES) - 1 else (sum(_SHARES[1:], ()),) if more else ():
            command = [sys.executable, "-m", f"{_PACKAGE}._kernels", *share]
            nothing = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)  # noqa: S603 - our own
            self._processes.append(process)

    def wait(self) -> None:
        """Until the others are done; what one of them failed at is compiled here."""
        for number, process in enumerate(self._processes, len(_SHARES[0]) + 1):
            self.at(number, "")
            process.wait()

    def _tell(self, name: str) -> None:
        since_s = int(time.monotonic() - self._began_s)
        self._say(f"compiling the decoder, once on this machine, part {self._part}, since {since_s} s")
        self._logger.info(
            "compiling the decoder, once on this machine", part=self._part, module=name or None, since_s=since_s
        )


def main(names: Sequence[str]) -> None:
    """Compile these modules, or all, and leave them on the disk."""
    if not names:
        load_kernels("ahead")
    for name in names:
        import_module(f"{_PACKAGE}.{name}")


if __name__ == "__main__":
    main(sys.argv[1:])
