"""Compilation of kernels, kept on disk: a kernel is compiled again whenever a module of its code has changed.

Of several processes that miss the same kernel at the same time, one compiles it and the others wait for it.

With NUMBA_BOUNDSCHECK=1 every access of a kernel to an array is checked and raises `IndexError`, those of
`binlog._machine` too; such kernels are kept apart from the others. For tests: it takes twice the time.
"""

import fcntl
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from numba import config, njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile

Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGE: Final = "databus.sources.mysql"
_FOLDER: Final = Path(__file__).parent
_IMPORT: Final = re.compile(
    rb"^from " + re.escape(_PACKAGE.encode()) + rb"((?:\.\w+)*) import (?:\(([^)]*)\)|([^\n]*))", re.MULTILINE
)

_watchers: list[Callable[[str], None]] = []


def when_something_is_missing(listener: Callable[[str], None]) -> None:
    """Call `listener`, from now on, for each kernel that is not on the disk: with its module, right before it is
    compiled here or awaited from another process, and with "" once it is there.
    """
    _watchers[:] = [listener]


def _tell(module: str) -> None:
    for listener in _watchers:
        listener(module)


_njit: Any = njit  # whose type is a dispatcher's; a kernel is called like the function that it was


@cache
def _source(path: Path) -> tuple[bytes, tuple[Path, ...]]:
    """The digest of a module, and the modules of this package that it imports at its top."""
    text = path.read_bytes()
    return hashlib.sha256(text).digest(), tuple(_imported(text))


def _imported(text: bytes) -> Iterator[Path]:
    for dotted, many, few in _IMPORT.findall(text):
        place = _FOLDER.joinpath(*dotted.decode().split(".")[1:])
        if place.with_suffix(".py").is_file():
            yield place.with_suffix(".py")
            continue
        for name in re.findall(rb"\w+", many or few):  # `from folder import module as m`; other words name no file
            if (place / f"{name.decode()}.py").is_file():
                yield place / f"{name.decode()}.py"


@cache
def sources_of(path: Path) -> tuple[tuple[str, bytes], ...]:
    """The modules that a module is made of, itself and those that it imports, and their digests, in an order."""
    digests: dict[Path, bytes] = {}
    waiting = [path]
    while waiting:
        module = waiting.pop()
        if module not in digests:
            digests[module], imported = _source(module)
            waiting += imported
    return tuple(sorted((str(module), digest) for module, digest in digests.items()))


class _Cache(FunctionCache):
    """Numba's cache on disk, fresh only while no module that the kernel is made of has changed.

    Numba's own looks at the one file that the kernel is in, and would take an old kernel after a part of it, or a
    number of a layout, has changed in another.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]  # Numba has no types, here and below
        sources = sources_of(Path(function.__code__.co_filename))
        is_checked = config.BOUNDSCHECK  # type: ignore[attr-defined]  # set from the environment when Numba is imported
        name = self._impl.filename_base + (".checked" if is_checked else "")
        stamp = hashlib.sha256(repr(sources).encode()).hexdigest()
        self._cache_file = IndexDataCacheFile(self._cache_path, name, stamp)  # type: ignore[no-untyped-call]  # as above
        self._lock_path = Path(self._cache_path, f"{name}.lock")
        self._module = function.__module__
        self._lock: IO[bytes] | None = None

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The kept kernel; None if the caller is to compile it: until `let_go` no other process does."""
        overload: Any = super().load_overload(signature, context)  # type: ignore[no-untyped-call]  # as above
        if overload is None:
            _tell(self._module)
            with suppress(OSError):  # a folder without locks: each compiles for itself
                self._impl.locator.ensure_cache_path()
                self._lock = self._lock_path.open("ab")
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Another process may have compiled it while this one waited for the lock.
            overload = super().load_overload(signature, context)  # type: ignore[no-untyped-call]  # as above
        return overload

    def let_go(self) -> None:
        """It is on the disk, or could not be compiled."""
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
            self._lock.close()
            self._lock = None
            _tell("")


def read_only(item: Any, dimensions: int = 1) -> Any:
    """The type of an array that a kernel only reads; one that may be written fits too."""
    return types.Array(item, dimensions, "C", readonly=True)


def kernel(signature: Any) -> Callable[[Function], Function]:
    """Compile for this signature at import, or take it from the disk's cache; runs without the interpreter's lock.

    signature: a string, or made of Numba's types.
    """

    def compiled(function: Function) -> Function:
        dispatcher: Any = _njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)
        called: Function = dispatcher
        kept = dispatcher._cache = _Cache(function)  # noqa: SLF001 - as above
        try:
            dispatcher.compile(signature)
        finally:
            kept.let_go()
        dispatcher.disable_compile()
        return called

    return compiled


def part(function: Function) -> Function:
    """A part of kernels, compiled into each that calls it."""
    return _part(function)


def small(function: Function) -> Function:
    """The same, put in the place of each call."""
    return _part(function, forceinline=True)


def _part(function: Function, **options: Any) -> Function:
    """Only kernels call it, so it is compiled without what Python's callers would need, and once for all its callers:
    Numba would compile it for each number that is given as such, too, and all that it calls.
    """
    dispatcher: Any = _njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function)
    template_of = dispatcher.get_call_template
    plain: Any = types.unliteral
    dispatcher.get_call_template = lambda args, kws: template_of(
        [plain(value) for value in args], {name: plain(value) for name, value in kws.items()}
    )
    called: Function = dispatcher
    return called
