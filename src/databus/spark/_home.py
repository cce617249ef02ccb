"""What of Spark is on this machine: its home, the Java that it takes, and the folder for what is made once."""

import hashlib
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from databus.spark._private import spark_home

_NEEDED: Final = ("bin", "conf", "jars")
"""What Spark needs of its home folder, and may find there; not `python`, where the zip of pyspark's sources is."""


def cache_folder() -> Path | None:
    """$DATABUS_CACHE, else `~/.cache/databus`; None where no home is known."""
    named = os.environ.get("DATABUS_CACHE")
    with suppress(RuntimeError):
        return Path(named).resolve() if named else Path.home() / ".cache" / "databus"
    return None


def is_ours(python: str) -> bool:
    """Whether Spark and the Python that it is to start are those of this process, and not the user's choice."""
    return "SPARK_HOME" not in os.environ and python == sys.executable


def home_of_spark(folder: Path, python: str) -> Path:
    """A home of a local Spark, whose Python processes import pyspark from where this process has it.

    Spark puts a zip of pyspark's sources first on their path, and each process compiles what it imports of it: 0.9 s of
    processor time in each of the dozens that a pipeline starts. That zip is not in this home. It is the same for all
    pipelines, since Java takes a file of classes (`databus.spark._session`) only for jars that have the same paths.
    folder: where it is made if there is no place to keep one. python: what its Python processes are.
    """
    there = spark_home()
    if not is_ours(python):
        return there
    cache, key = cache_folder(), hashlib.sha256(str(there).encode()).hexdigest()[:16]
    for home in (*([] if cache is None else [cache / f"spark-home-{key}"]), folder / "home"):
        with suppress(OSError):  # not ours to write, or a disk without links
            _link(home, there)
            return home
    return there


def _link(home: Path, there: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    for path in (there / name for name in _NEEDED if (there / name).exists()):
        link = home / path.name
        with suppress(FileExistsError):  # from before, or by another process just now
            link.symlink_to(path)


def java_path() -> str | None:
    """That of JAVA_HOME if it is set, even if it names none, since Spark looks nowhere else then; else the one on the
    PATH. None if there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.exists() else None
    return shutil.which("java")
