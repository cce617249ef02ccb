"""Spark's classes as a file that Java maps (class data sharing), so that each Spark that a test starts need not load
and check them again: half of the processor time of a start.

`python -m tests.spark_classes` makes the file, once for a Java and a pyspark, in the servers' cache folder; it takes a
minute. Java passes over a file that does not fit.
"""

import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from databus.testing.servers import cache_folder

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of every Java that a test starts, also inside the processes of databus: it starts sooner and runs slower."""

KEPT_MAX = 2
END_S_MAX = 300


def java_options() -> str:
    """With the file, where it has been made. Java says on stdout that a file does not fit, and so must not log."""
    path = archive()
    return f"{OPTIONS} -Xlog:disable -XX:SharedArchiveFile={path}" if path is not None and path.is_file() else OPTIONS


def archive() -> Path | None:
    """Where the file for this Java and this pyspark is, or would be."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    found = importlib.util.find_spec("pyspark")
    if java is None or found is None or found.origin is None:
        return None
    parts = [Path(java).resolve(), *sorted(Path(found.origin).parent.joinpath("jars").glob("*.jar"))]
    stamps = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in parts]
    key = hashlib.sha256(repr((OPTIONS, stamps)).encode()).hexdigest()[:16]
    return cache_folder() / f"spark-classes-{key}.jsa"


def make(path: Path) -> None:
    """Run a little of all that the tests do with Spark, and have Java write down which classes that took."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_TOOL_OPTIONS"] = OPTIONS
    unfinished = path.with_suffix(f".{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    options = f"-Xlog:disable -XX:ArchiveClassesAtExit={unfinished}"
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    session = (
        SparkSession.builder.master("local[2]").config(map=settings).config("spark.driver.extraJavaOptions", options)
    )
    spark = session.getOrCreate()
    stream = spark.readStream.format("rate").load().writeStream.trigger(availableNow=True)
    stream.foreachBatch(lambda batch, _: batch.groupBy().count().collect()).start().awaitTermination()
    spark.range(10).selectExpr("id", "cast(id AS string) AS name").toArrow()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait(END_S_MAX)
    unfinished.replace(path)
    others = sorted(path.parent.glob("spark-classes-*.jsa"), key=lambda each: each.stat().st_mtime)
    for each in others[:-KEPT_MAX]:
        each.unlink()


if __name__ == "__main__":
    place = archive()
    if place is None:
        sys.exit("there is no Java or no pyspark")
    if not place.is_file():
        make(place)
