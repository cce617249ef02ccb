"""Spark's classes in a file that Java maps (class data sharing): a start without it loads and checks each of them.

With it a start of Spark and a first batch take half the time and half the processor time (docs/benchmarks.md). Java
passes over a file that does not fit. `-XX:SharedArchiveFile` is documented at
https://docs.oracle.com/en/java/javase/17/docs/specs/man/java.html.
"""

import hashlib
import importlib.util
from pathlib import Path

from databus.spark._home import cache_folder, java_path


def class_file() -> Path | None:
    """Where the file for this Java and this pyspark is, or would be, in $DATABUS_CACHE or `~/.cache/databus`; None if
    there is no Java, or no home.
    """
    java, pyspark, cache = java_path(), importlib.util.find_spec("pyspark"), cache_folder()
    if java is None or pyspark is None or pyspark.origin is None or cache is None:
        return None
    try:
        parts = [Path(java).resolve(), *sorted(Path(pyspark.origin).parent.joinpath("jars").glob("*.jar"))]
        stamps = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in parts]
    except OSError:
        return None
    key = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
    return cache / f"spark-classes-{key}.jsa"


def class_options() -> str:
    """What Java is to be told of the file: nothing where it has not been made."""
    path = class_file()
    return f'"-XX:SharedArchiveFile={path}"' if path is not None and path.is_file() else ""
