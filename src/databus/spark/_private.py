"""Corners of Spark that its documentation does not promise, each with the reason why it is touched; all that there are.

`tests/spark/test_private.py` fails where another version of Spark has changed one.
"""

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from databus.core import CorruptData

FOR_LOCAL_DISKS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
"""Classes of Java that write checkpoints without starting a process for each file; see docs/decisions/spark.md."""

WORKER_MODULES: Final = (
    "pyspark.worker",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
)
"""What Spark's Python processes run as programs: imported once, and forked."""

SLOW_WORKERS: Final = "Python worker failed to connect back"
"""How Spark says that a Python process did not come up within its ten seconds, which no setting moves."""

LOST_JAVA: Final = "Py4JNetworkError"
"""The class of what is raised where the JVM does not answer; by its name, for without Spark there is no py4j."""

FAILED_IN_JAVA: Final = "java.io.IOException: "
"""What stands in Spark's messages before the reason why Java could not write."""

CONNECTION_VARIABLE: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Names the file in which a JVM that `spark-submit pyspark-shell` starts writes where it can be reached."""

_CONNECTION_BYTES_MAX: Final = 4096
_SOURCE: Final = "databus"
_STARTING: Final = "Initializing"
READER_ENVIRONMENT: Final[Mapping[str, str]] = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What Spark puts into the environment of a stream's reader; see `settle_session`."""


def spark_home() -> Path:
    """The folder that has `bin/spark-submit` and `jars`, as pyspark itself finds it."""
    return Path(_find_spark_home())


def active_context() -> SparkContext | None:
    """The context of this process. `SparkContext.getOrCreate` would make one; `getActiveSession` knows a thread's."""
    context: SparkContext | None = SparkContext._active_spark_context  # noqa: SLF001
    return context


def kept_gateway() -> Any:
    """The connection to the JVM that an earlier session of this process left, which the next one has to use."""
    return SparkContext._gateway  # noqa: SLF001


def forget_gateway() -> None:
    """Let another JVM be started: the one before has ended."""
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def connected_gateway(address_file: Path) -> Any:
    """A connection to a JVM that has written where it can be reached (`CONNECTION_VARIABLE`): the port, and a secret
    after its length, both big-endian. pyspark connects to one that it finds in the environment.
    """
    content = address_file.read_bytes()[:_CONNECTION_BYTES_MAX]
    port, length = struct.unpack_from(">ii", content)
    known = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": content[8 : 8 + length].decode()}
    os.environ.update(known)
    try:
        return launch_gateway()
    finally:
        for name in known:
            del os.environ[name]


def on_broken_updates(context: SparkContext, do: Callable[..., None]) -> None:
    """Have this done where the connection for accumulators breaks, instead of a traceback on the screen: whoever waits
    for the JVM says in one line that it has ended.
    """
    context._accumulatorServer.handle_error = do  # noqa: SLF001


def executors_of(context: SparkContext) -> int:
    """How many have registered by now, besides the driver. Python does not hear of them."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001


def settle_session(session: SparkSession) -> None:
    """Let streams of `databus` start at the same moment in this session; `tuned_session` has done so.

    For a session made otherwise, before its first stream, and once more after a `spark.dataSource.register` of the
    source. Each stream that starts puts the same four names into one Scala `HashMap`, the environment that all readers
    of a data source share, without a lock. Two that do so at once leave a map whose size is not that of its entries,
    and from then on no task that reads the source can be serialized ("Illegal size 5 of collection, expected 6").
    Here the names are put in beforehand, so that streams only replace values, which needs no lock. They are put in
    twice: Scala makes room for one more before it looks whether the name is there, so a value that is only replaced may
    have the map grow, once. The values are of no account: Spark sets each one before it starts a worker with them.
    """
    manager: Any = session._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001
    if not manager.dataSourceExists(_SOURCE):
        return
    environment = manager.lookupDataSource(_SOURCE).dataSourceCls().envVars()
    for name, value in (*READER_ENVIRONMENT.items(), *READER_ENVIRONMENT.items()):
        environment.put(name, value)


def is_starting(query: StreamingQuery) -> bool:
    """Whether a query's source is not being read yet; nothing else says when it is."""
    return str(query.status["message"]).startswith(_STARTING)


def is_damaged(checkpoint: Path) -> bool:
    """Whether Spark would not start with a query's checkpoint, as where the folder was removed while the query
    was writing there: Spark makes it again, without its metadata.
    """
    return (checkpoint / "offsets").is_dir() and not (checkpoint / "metadata").exists()


def offset_of(checkpoint: Path, batch_id: int) -> Any:
    """The end of a batch, in the source's own JSON, which Spark wrote down before it ran the batch: the third line,
    behind a version and Spark's settings. Raises `CorruptData`.
    """
    path = checkpoint / "offsets" / str(batch_id)
    try:
        return json.loads(path.read_text(encoding="utf-8").splitlines()[2])
    except (OSError, ValueError, IndexError) as error:
        raise CorruptData(f"{path}: not the offsets of a micro-batch: {error}") from error


def last_done(checkpoint: Path) -> int | None:
    """The last batch that Spark knows to be done; None if there is none."""
    commits = checkpoint / "commits"
    done = [int(path.name) for path in commits.iterdir() if path.name.isdigit()] if commits.is_dir() else []
    return max(done, default=None)
