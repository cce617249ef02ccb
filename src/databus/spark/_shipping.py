"""What executors on other machines need: it travels with the job. Start with `Shipment`.

An executor has a folder of its own, in which Spark puts what it is sent, and in which its Python processes run: paths
in the settings here are relative to that one.
"""

import os
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from databus.link import FILES_VARIABLE, travelling_name

SHIPPED: Final = ("core", "disk", "forks", "formats", "link", "schema", "spark", "tasks", "wire")
"""The packages of databus that executors import; nothing in them needs what serves, configures or shows."""

_OURS: Final = "databus.zip"
_THEIRS: Final = "databus-packages"
_PYTHON: Final = "spark.pyspark.python"
_PYTHON_PATH: Final = "spark.executorEnv.PYTHONPATH"
_ARCHIVES: Final = "spark.archives"


@dataclass(frozen=True)
class Shipment:
    """archive: of packages, made by `databus archive`. files: by which the relay is asked."""

    archive: Path | None = None
    files: Sequence[Path] = ()

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Spark's settings by which executors find what they are sent; with those that are given, where both are."""
        path = [_OURS, *([] if self.archive is None else [_THEIRS]), *_part(given, _PYTHON_PATH)]
        found = {_PYTHON_PATH: ":".join(path), f"spark.executorEnv.{FILES_VARIABLE}": "."}
        if self.archive is not None:
            found[_ARCHIVES] = ",".join([*_part(given, _ARCHIVES), f"{self.archive}#{_THEIRS}"])
        return found

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
        for path in self.files:
            copy = folder / travelling_name(path)
            copy.touch(mode=0o600)
            shutil.copyfile(path, copy)
            session.sparkContext.addFile(str(copy))


def pack_databus(archive: Path) -> None:
    """Write the packages of databus that executors import as a zip."""
    root = Path(__file__).resolve().parents[2]
    folders = [root / "databus" / name for name in SHIPPED] + [root / "pyspark_databus"]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in (
            root / "databus" / "__init__.py",
            *(path for each in folders for path in sorted(each.rglob("*.py"))),
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
