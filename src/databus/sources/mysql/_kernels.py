"""The compiled parts of the packages below: what a session begins with is loaded before the first byte comes.

Compiled once for each installation and kept on disk by Numba, beside the modules or, where that cannot be written, in
the user's cache folder (`NUMBA_CACHE_DIR`). Where one is missing there, another process compiles what comes next, and
leaves it on the disk. Capture begins as soon as the log can be followed and tables can be read, if it begins with that;
who needs a kernel that is still being compiled then waits for it.
`python -m databus.sources.mysql._kernels` compiles all of them ahead.
"""

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import pyarrow as pa

from databus.operate import logger_of

_FOLLOWING: Final = ("binlog._packet_kernels", "binlog._scan_kernels", "rows._bus_kernels")
_READING: Final = ("snapshot._result_kernels", "rows._text_kernels")
_DECODING: Final = ("rows._image_kernels", "rows._json_kernels", "rows._small_kernels", "rows._address_kernels")
"""Modules with kernels: for following a log, for reading tables, for the rows of a log."""

_PACKAGE: Final = "databus.sources.mysql"
_lock = threading.Lock()


def load_kernels(physical: str, say: Callable[[str], None] = lambda _: None) -> None:
    """Load them all; the first time on a machine they are compiled. say: gets what is being done, and "" at the end."""
    _load((*_FOLLOWING, *_READING, *_DECODING), (*_DECODING, *_READING), physical, say)


def load_first_kernels(physical: str, say: Callable[[str], None] = lambda _: None, *, reads: bool) -> None:
    """Load those that a session begins with. say: as above, also of others that it has to wait for later.

    reads: it begins with reading tables.
    """
    if reads:
        _load((*_FOLLOWING, *_READING), (*_READING, *_DECODING), physical, say)
    else:
        _load(_FOLLOWING, (*_DECODING, *_READING), physical, say)


def _load(names: Iterable[str], next_modules: Sequence[str], physical: str, say: Callable[[str], None]) -> None:
    """Load modules one after the other. next_modules: those that another process compiles meanwhile, in this order."""
    from databus.sources.mysql._compile import when_something_is_missing  # which imports Numba, for half a second

    with _lock, _progress.reporting_to(physical, say, next_modules):
        when_something_is_missing(_progress.missing)
        for name in names:
            import_module(f"{_PACKAGE}.{name}")
        pa.array([0])  # the first one of a process imports pandas where it is installed; not at the first change


class _CompileProgress:
    """Reports what this process compiles, and has the processes that compile meanwhile."""

    def __init__(self) -> None:
        self._says: dict[str, Callable[[str], None]] = {}  # by physical source: all of them wait
        self._began_s: float | None = None
        self._is_loading = False
        self._part = 0
        self._next_modules: Sequence[str] = ()
        self._others: list[subprocess.Popen[bytes]] | None = None

    @contextmanager
    def reporting_to(self, physical: str, say: Callable[[str], None], next_modules: Sequence[str]) -> Iterator[None]:
        """While kernels are loaded one after the other. `say` is kept: kernels may have to be compiled later too."""
        self._says[physical] = say
        self._next_modules = next_modules
        self._is_loading = True
        try:
            yield
        finally:
            if self._began_s is not None:
                self._say("")
            self._is_loading, self._began_s = False, None

    def missing(self, module: str) -> None:
        """A kernel of this module is compiled or awaited next; "": it is there."""
        if not module:
            self._began_s = self._began_s if self._is_loading else None
            self._say("")
            return
        if self._others is None:
            self._others = [*_begin_others(self._next_modules)]
        self._began_s = self._began_s or time.monotonic()
        since_s = int(time.monotonic() - self._began_s)
        name = module.removeprefix(f"{_PACKAGE}.")
        known = (*_FOLLOWING, *_READING, *_DECODING)
        is_next = name in known and self._part != known.index(name) + 1
        if is_next:  # others are imported by one of these
            self._part = known.index(name) + 1
        part = f"{self._part} of {len(known)}"
        self._say(f"compiling the decoder, once on this machine, part {part}, since {since_s} s")
        if is_next:
            logger_of("databus.sources.mysql").info(
                "compiling the decoder, once on this machine", part=part, module=name, since_s=since_s
            )

    def end(self) -> None:
        """Stop the other processes; what they have compiled so far stays."""
        for process in self._others or ():
            process.kill()

    def _say(self, doing: str) -> None:
        for say in self._says.values():
            say(doing)


def _begin_others(next_modules: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Processes that compile meanwhile, as far as there are processors; two meet in the middle."""
    for names in (next_modules, next_modules[::-1])[: len(os.sched_getaffinity(0)) - 1]:
        command = [sys.executable, "-m", f"{_PACKAGE}._kernels", *names]
        devnull = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=devnull, stdout=devnull, stderr=devnull)  # noqa: S603 - our own
        threading.Thread(target=process.wait, name="compiling", daemon=True).start()
        yield process


_progress: Final = _CompileProgress()
atexit.register(_progress.end)


def main(names: Sequence[str]) -> None:
    """Compile these modules, or all, and leave them on the disk."""
    if not names:
        load_kernels("ahead")
    for name in names:
        import_module(f"{_PACKAGE}.{name}")


if __name__ == "__main__":
    main(sys.argv[1:])
