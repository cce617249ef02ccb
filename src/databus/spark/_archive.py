"""An archive of the packages that executors import: those of this environment, as they are installed."""

import re
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from databus.core import ConfigError

NEEDED: Final = ("crc32c", "numpy", "pyarrow", "pydantic")
WANTED: Final = ("obstore",)
"""For object stores; not in the archive where it is not installed."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEFT_OUT: Final = frozenset({"__pycache__", "include", "tests"})
_LEVEL: Final = 1  # a tenth larger than by default, in a third of the time


def make_archive(path: Path, more: Iterable[str] = ()) -> dict[str, str]:
    """Write it, a zip that Spark unpacks for each executor; returns the distributions in it with their versions.

    more: names of further distributions, such as those of users' functions. All come with what they require.
    Raises `ConfigError` for one that is not installed, or of which nobody knows the files.
    """
    found: dict[str, Distribution] = {}
    for name in (*NEEDED, *more):
        _collect(name, found, is_needed=True)
    for name in WANTED:
        _collect(name, found, is_needed=False)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as out:
        for each in found.values():
            for inside, file in _files(each):
                out.write(file, inside)
    return {each.name: each.version for each in found.values()}


def _collect(name: str, found: dict[str, Distribution], *, is_needed: bool) -> None:
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        each = distribution(name)
    except PackageNotFoundError:
        if is_needed:
            raise ConfigError(f"{name} is not installed here; the archive is made of what is") from None
        return
    found[key] = each
    for requirement in each.requires or ():
        wanted = _NAME.match(requirement)
        if wanted is not None and "extra ==" not in requirement:  # one for another system is not installed
            _collect(wanted[0], found, is_needed=False)


def _files(each: Distribution) -> Iterator[tuple[str, Path]]:
    """The distribution's files, by their paths below `site-packages`."""
    if each.files is None or not each.files:
        raise ConfigError(f"{each.name}: nobody knows its files; install it from a wheel, not as an editable one")
    for file in each.files:
        place = Path(str(each.locate_file(file)))
        if ".." in file.parts or file.parts[0].startswith("__editable__") or not place.is_file():
            continue
        if _LEFT_OUT.isdisjoint(file.parts) and file.suffix != ".pth":
            yield file.as_posix(), place
