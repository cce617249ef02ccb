"""What executors on other machines need: it travels with the job. Start with `Shipment`.

An executor has a folder of its own, in which Spark puts what it is sent, and in which its Python processes run: paths
in the settings here are relative to that one.
"""

import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from databus.core import ConfigError
from databus.link import FILES_VARIABLE, Access, is_copy, last_renewal, travelling_name, write_renewal

SHIPPED: Final = (
    "core",
    "disk",
    "filters",
    "flow",
    "forks",
    "formats",
    "link",
    "places",
    "schema",
    "sinks",
    "spark",
    "wire",
)
"""The packages of databus that executors import; nothing in them needs what serves, configures or shows."""

_OURS: Final = "databus.zip"
_THEIRS: Final = "databus-packages"
_PYTHON: Final = "spark.pyspark.python"
_PYTHON_PATH: Final = "spark.executorEnv.PYTHONPATH"
_ARCHIVES: Final = "spark.archives"
_SETTLED_S: Final = 1.0  # who writes a key may still be writing


@dataclass(frozen=True)
class Shipment:
    """Files that executors get."""

    archive: Path | None = None
    """Of packages, made by `databus archive`."""
    access: Access = field(default_factory=Access)
    """The files by which the relay is asked."""

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Spark's settings by which executors find what they are sent; with those that are given, where both are."""
        path = [_OURS, *([] if self.archive is None else [_THEIRS]), *_part(given, _PYTHON_PATH)]
        settings = {_PYTHON_PATH: ":".join(path), f"spark.executorEnv.{FILES_VARIABLE}": "."}
        if self.archive is not None:
            settings[_ARCHIVES] = ",".join([*_part(given, _ARCHIVES), f"{self.archive}#{_THEIRS}"])
        return settings

    def python(self, given: Mapping[str, str]) -> str:
        """The executors' Python: what the settings or the environment say; else, with an archive, one of this
        process's own version, for which its packages are made, wherever it is; without one, this process's own.
        """
        named = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = sys.executable if self.archive is None else named
        return given.get(_PYTHON) or os.environ.get("PYSPARK_PYTHON") or own

    def send(self, session: SparkSession, folder: Path) -> None:
        """Send our packages and the files. What is sent stays in `folder`: an executor fetches it when it starts."""
        ours = folder / _OURS
        pack_databus(ours)
        session.sparkContext.addPyFile(str(ours))
        for copy in filter(is_copy, list(folder.iterdir())):  # of a run before this one: keys that were renewed since
            copy.unlink()
        for copy in self._copied(folder, 0):
            session.sparkContext.addFile(str(copy))

    def send_renewed(self, session: SparkSession, folder: Path) -> bool:
        """Send the files again if one has changed since, for jobs that begin from now on. Nothing is sent while they
        cannot be used together, since a certificate may be replaced before its key, nor what was changed just now and
        may be half a file. Returns whether they were sent. Raises `ConfigError` while they cannot be used together.
        """
        renewal = last_renewal(folder)
        if all(_are_alike(path, folder / travelling_name(path, renewal)) for path in self._files):
            return False
        try:
            if not all(map(_is_settled, self._files)):
                return False
            copies = self._copied(folder, renewal + 1)
        except OSError:  # one is being replaced
            return False
        self._check(folder, renewal + 1)
        for path in (*copies, write_renewal(folder, renewal + 1, copies)):
            session.sparkContext.addFile(str(path))
        return True

    def _check(self, folder: Path, renewal: int) -> None:
        """Raises `ConfigError`, with the names that the user gave."""
        try:
            self._access_of(folder, renewal).check()
        except ConfigError as error:
            message = str(error)
            for path in self._files:
                message = message.replace(str(folder / travelling_name(path, renewal)), str(path))
            raise ConfigError(message) from error

    @property
    def _files(self) -> list[Path]:
        return [Path(option) for option in self.access.options().values()]

    def _access_of(self, folder: Path, renewal: int) -> Access:
        named = self.access.options().items()
        return Access.of(**{name: folder / travelling_name(Path(path), renewal) for name, path in named})

    def _copied(self, folder: Path, renewal: int) -> list[Path]:
        copies = [folder / travelling_name(path, renewal) for path in self._files]
        for path, copy in zip(self._files, copies, strict=True):
            copy.touch(mode=0o600)
            shutil.copyfile(path, copy)
        return copies


def _are_alike(path: Path, copy: Path) -> bool:
    try:
        return path.read_bytes() == copy.read_bytes()
    except OSError:
        return True  # it is being replaced: there is nothing to send yet


def _is_settled(path: Path) -> bool:
    age_s = time.time() - path.stat().st_mtime
    return not 0 <= age_s < _SETTLED_S


def pack_databus(archive: Path) -> None:
    """Write the packages of databus that executors import as a zip."""
    root = Path(__file__).resolve().parents[2]
    folders = [root / "databus" / name for name in SHIPPED] + [root / "pyspark_databus"]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in (
            root / "databus" / "__init__.py",
            *(path for folder in folders for path in sorted(folder.rglob("*.py"))),
        ):
            out.write(path, path.relative_to(root))


def python_on_path(python: str, folder: Path) -> str | None:
    """A folder to put first on the driver's PATH, where a Python of that name is this process's own: Spark starts what
    plans a stream by the executors' name for Python, here too. None where the name is a path, or our own.
    """
    if "/" in python:
        return None
    script = folder / "bin" / python
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script.parent)


def _part(given: Mapping[str, str], name: str) -> list[str]:
    return [given[name]] if given.get(name) else []


# An archive of the packages that executors import: those of this environment, as they are installed.


NEEDED: Final = ("crc32c", "numpy", "pyarrow", "pydantic")
WANTED: Final = ("obstore",)
"""For object stores; not in the archive where it is not installed."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEFT_OUT: Final = frozenset({"__pycache__", "include", "tests"})
_LEVEL: Final = 1  # a tenth larger than by default, in a third of the time


def make_archive(path: Path, more: Iterable[str] = ()) -> dict[str, str]:
    """Write it, a zip that Spark unpacks for each executor; returns the distributions in it with their versions.

    more: names of further distributions, such as those of users' functions. All come with what they require.
    Raises `ConfigError` for one that is not installed, or of which the files are unknown.
    """
    needed: dict[str, Distribution] = {}
    for name in (*NEEDED, *more):
        _collect(name, needed, is_needed=True)
    for name in WANTED:
        _collect(name, needed, is_needed=False)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as out:
        for package in needed.values():
            for inside, file in _files(package):
                out.write(file, inside)
    return {package.name: package.version for package in needed.values()}


def _collect(name: str, packages: dict[str, Distribution], *, is_needed: bool) -> None:
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in packages:
        return
    try:
        package = distribution(name)
    except PackageNotFoundError:
        if is_needed:
            raise ConfigError(f"{name} is not installed here; the archive is made of what is") from None
        return
    packages[key] = package
    for requirement in package.requires or ():
        wanted = _NAME.match(requirement)
        if wanted is not None and "extra ==" not in requirement:  # one for another system is not installed
            _collect(wanted[0], packages, is_needed=False)


def _files(package: Distribution) -> Iterator[tuple[str, Path]]:
    """The distribution's files, by their paths below `site-packages`."""
    if package.files is None or not package.files:
        raise ConfigError(f"{package.name}: its files are unknown; install it from a wheel, not as an editable one")
    for file in package.files:
        place = Path(str(package.locate_file(file)))
        if ".." in file.parts or file.parts[0].startswith("__editable__") or not place.is_file():
            continue
        if _LEFT_OUT.isdisjoint(file.parts) and file.suffix != ".pth":
            yield file.as_posix(), place
