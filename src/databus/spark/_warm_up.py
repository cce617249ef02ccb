"""Writing the file of Spark's classes: see `databus.spark._classes`."""

import os
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Final

from databus.core import ServiceUnavailable
from databus.disk import make_folder
from databus.spark._session import tuned_session

_KEPT_MAX: Final = 2
_END_S_MAX: Final = 300
"""Java writes the file when it ends: some 15 s of one core."""


def make_class_file(path: Path) -> None:
    """Run a little of all that a pipeline does in Spark, and have Java write down which classes that took: 150 MB.

    For a process that has no session yet, and needs none later. Raises `ServiceUnavailable` if Java does not write it,
    `DiskFull` or `ConfigError` where there is no room or no folder for it.
    """
    make_folder(path.parent)
    unfinished = path.with_suffix(f".{os.getpid()}")
    settings = {"spark.driver.extraJavaOptions": f'-Xlog:disable "-XX:ArchiveClassesAtExit={unfinished}"'}
    with TemporaryDirectory(prefix="databus-warm-up-") as folder:
        processes: list[Popen[bytes]] = []
        session = tuned_session(
            "databus warm-up", "local[2]", folder=Path(folder), settings=settings, on_process=processes.append
        )
        stream = session.readStream.format("rate").load().writeStream.trigger(availableNow=True)
        stream = stream.option("checkpointLocation", f"file://{folder}/checkpoint")
        stream.foreachBatch(lambda batch, _: batch.groupBy().count().collect()).start().awaitTermination()
        session.range(10).selectExpr("id", "cast(id AS string) AS name").toArrow()
        session.stop()
        for process in processes:
            process.communicate(timeout=_END_S_MAX)  # closes its input, by which Java ends
    try:
        unfinished.replace(path)
    except FileNotFoundError as error:
        raise ServiceUnavailable(f"{path}: Java did not write it; starts of Spark take as long as before") from error
    others = sorted(path.parent.glob("spark-classes-*.jsa"), key=lambda each: each.stat().st_mtime)
    for each in others[:-_KEPT_MAX]:
        each.unlink()
