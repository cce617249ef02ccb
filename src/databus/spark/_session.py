"""Session settings: what a micro-batch of 50 ms instead of 200 ms needs, and where Spark's own words go.

Four settings carry most of it, none of them a default (docs/decisions/spark.md): Unix domain sockets
between the JVM and Python, a checkpoint manager that does not start a process for each file, no checksum files beside
the checkpoints, and Hadoop's raw local file system. The last three are for checkpoints on a local disk, so they are
set for local masters only. Start with `tuned_session`.
"""

import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from databus.core import ConfigError, ServiceUnavailable
from databus.disk import make_folder
from databus.forks import Nursery
from databus.spark._home import cache_folder, home_of_spark, is_ours, java_path
from databus.spark._jvm import OnProcess, how_java_ended, start_jvm
from databus.spark._private import (
    FOR_LOCAL_DISKS,
    WORKER_MODULES,
    active_context,
    executors_of,
    forget_gateway,
    kept_gateway,
    on_broken_updates,
    settle_session,
    spark_home,
)
from databus.spark._shipping import Shipment, python_on_path

# Spark's classes in a file that Java maps (class data sharing): a start without it loads and checks each of them.
#
# With it a start of Spark and a first batch take half the time and half the processor time (docs/benchmarks.md). Java
# passes over a file that does not fit. `-XX:SharedArchiveFile` is documented at
# https://docs.oracle.com/en/java/javase/17/docs/specs/man/java.html.


def class_file() -> Path | None:
    """Where the file for this Java and this pyspark is, or would be, in $DATABUS_CACHE or `~/.cache/databus`; None if
    there is no Java, or no home.
    """
    java, pyspark, cache = java_path(), importlib.util.find_spec("pyspark"), cache_folder()
    if java is None or pyspark is None or pyspark.origin is None or cache is None:
        return None
    try:
        parts = [Path(java).resolve(), *sorted(Path(pyspark.origin).parent.joinpath("jars").glob("*.jar"))]
        stamps = [(str(part), part.stat().st_size, part.stat().st_mtime_ns) for part in parts]
    except OSError:
        return None
    key = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
    return cache / f"spark-classes-{key}.jsa"


def class_options() -> str:
    """What Java is to be told of the file: nothing where it has not been made."""
    path = class_file()
    return f'"-XX:SharedArchiveFile={path}"' if path is not None and path.is_file() else ""


_EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.python.worker.reuse": "true",
}

_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    **FOR_LOCAL_DISKS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}

_CLUSTER: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "16",  # of Spark's own 200, a small batch waits for most
}

_LOG4J: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSSX}}{{UTC}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""

LOG_FILE: Final = "spark.log"
"""Spark's own log, in the session's folder."""

OUTPUT_FILE: Final = "spark-output.log"
"""What the JVM and its Python workers print, in the session's folder."""
_PRELOADED: Final = (
    "databus.spark._source",
    "databus.flow",
    "pyarrow.parquet",
    *WORKER_MODULES,
    "pyspark_databus",
)


def is_local(master: str) -> bool:
    """Whether Spark runs inside this process's own JVM.

    >>> is_local("local[2]"), is_local("spark://127.0.0.1:7077")
    (True, False)
    """
    return master == "local" or master.startswith("local[")


def tuned_settings(master: str) -> dict[str, str]:
    """The settings for a master; `tuned_session` adds those that need a folder."""
    if not is_local(master):
        return {**_EVERYWHERE, **_CLUSTER}
    return {**_EVERYWHERE, **_LOCAL}


def _log_settings(folder: Path, level: str) -> str:
    config = folder / "log4j2.properties"
    config.write_text(_LOG4J.format(level=level.lower(), path=folder / LOG_FILE), encoding="utf-8")
    return f'"-Dlog4j2.configurationFile={config.as_uri()}"'


def tuned_session(
    app: str,
    master: str = "local[*]",
    *,
    folder: Path,
    log_level: str = "WARN",
    settings: Mapping[str, str] | None = None,
    on_process: OnProcess = lambda _: None,
    shipment: Shipment | None = None,
) -> SparkSession:
    """The one classic session of this process, with the tuned settings; `settings` are added and win.

    folder: where the session keeps its log (`spark.log`), what its processes print and its warehouse; made if missing.
    Python workers run this process's own Python, unless `spark.pyspark.python` or, in the environment,
    `PYSPARK_PYTHON` says otherwise. shipment: what executors need that are not of this process.
    on_process: gets the JVM's process once it is started, seconds before this returns; who kills it ends the start.
    If this process has a session already, that one is returned, and only settings that can change at run time do.
    Raises `ConfigError` where there is no Java, `ServiceUnavailable` if it ends at once.
    """
    if java_path() is None:
        home = os.environ.get("JAVA_HOME")
        where = (
            f"JAVA_HOME is {home}, which has no bin/java; correct or unset it"
            if home
            else (
                "there is none on the PATH, and JAVA_HOME is not set; install one (on Debian: apt-get install "
                "openjdk-17-jre-headless)"
            )
        )
        raise ConfigError(f"Spark needs Java 17 or newer: {where}")
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    given = settings or {}
    shipment = Shipment() if shipment is None or is_local(master) else shipment
    chosen = {**tuned_settings(master), "spark.sql.warehouse.dir": str(folder / "warehouse"), **given}
    if not is_local(master):
        chosen |= shipment.settings(given)
    java_options = (_log_settings(folder, log_level), class_options(), chosen.get("spark.driver.extraJavaOptions", ""))
    chosen["spark.driver.extraJavaOptions"] = " ".join(filter(None, java_options))
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app).setAll(list(chosen.items()))
    if active_context() is None:
        _start(conf, folder, shipment.python(given), on_process)
    session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    if not is_local(master):
        shipment.send(session, folder)
    settle_session(session)
    return session


def how_spark_ended(code: int, folder: Path) -> str:
    """What to say where the JVM of a session has ended under it. folder: the session's."""
    return how_java_ended(code, (folder / LOG_FILE, folder / OUTPUT_FILE))


def _log_broken_updates(*_: object) -> None:
    from databus.operate import logger_of  # a driver's alone: what each query starts does without

    logger_of("databus.spark").debug("the connection for Spark's accumulators has ended", exc_info=True)


def _start(conf: SparkConf, folder: Path, python: str, on_process: OnProcess) -> None:
    """Start the JVM with what it prints in a file, and a context in it. python: what its Python processes are."""
    is_here = is_local(conf.get("spark.master") or "")
    home = home_of_spark(folder, python) if is_here else spark_home()
    gateway = kept_gateway()
    # The JVM and its workers take it from here alone.
    os.environ["PYSPARK_PYTHON"] = preloaded_python() if is_here and is_ours(python) else python
    try:
        if gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            first = None if is_here else python_on_path(python, folder)
            gateway = start_jvm(conf, home, folder / OUTPUT_FILE, on_process, first)
        on_broken_updates(SparkContext(conf=conf, gateway=gateway), _log_broken_updates)
    except BaseException:
        if gateway is not None and gateway.proc is not None and gateway.proc.poll() is not None:
            forget_gateway()  # it was ended meanwhile; another may start
        raise
    finally:
        os.environ["PYSPARK_PYTHON"] = python  # what this process starts is not to take ours for the user's choice


def preloaded_python() -> str:
    """The Python of a local Spark, by its path; this process's own where processes cannot be forked.

    A pipeline of ten outputs starts some thirty Python processes, each of which would import pyspark, PyArrow and
    databus for half a second of processor time, and no batch begins before that. So they are forked from a process that
    has imported what streams and tasks need.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # no room for temporary files, or a folder with too long a name for a socket
            program = _nursery().python()
            return sys.executable if program is None else str(program)
    return sys.executable


@cache  # one for all sessions of this process, whose JVM stays the same as well
def _nursery() -> Nursery:
    # Texts have the hashes that pyspark wants in all its workers.
    return Nursery(_PRELOADED, {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")})


# How many tasks a session's master runs at once, as far as that can be known before any has run.


_WAIT_S: Final = 10.0
_ASK_S: Final = 0.1  # Spark does not tell Python when an executor has come
_ENDLESS: Final = 2**31 - 1  # what Spark itself takes where no limit is set


def slots_of(session: SparkSession) -> int:
    """The tasks that may read at once, one at least.

    A local master's cores also run the relay and the driver, so half of them are counted. On a cluster it is what the
    settings promise, or what executors have registered by now, whichever is more; of executors that come and go, the
    most. Waits up to ten seconds for a first executor where the settings say nothing.
    """
    context: Any = session.sparkContext
    cores = int(context.defaultParallelism)
    if is_local(context.master):
        return max(cores // 2, 1)
    conf = context.getConf()
    cores_a_task = max(int(conf.get("spark.task.cpus", "1")), 1)
    promised = _promised_cores(conf)
    if promised is None:
        _wait_for_an_executor(context)
        cores = int(context.defaultParallelism)
    return max(max(promised or 0, cores) // cores_a_task, 1)


def _promised_cores(conf: Any) -> int | None:
    """Of all executors together, None if the settings leave it open."""
    if conf.get("spark.cores.max") is not None:
        return int(conf.get("spark.cores.max"))
    is_dynamic = conf.get("spark.dynamicAllocation.enabled", "false").strip().lower() == "true"
    most = "spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances"
    executors = int(conf.get(most, str(_ENDLESS) if is_dynamic else "0"))
    if executors == 0:
        return None
    return min(executors * int(conf.get("spark.executor.cores", "1")), _ENDLESS)


def _wait_for_an_executor(context: Any) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not executors_of(context):
        if time.monotonic() > deadline:
            return
        time.sleep(_ASK_S)


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
    others = sorted(path.parent.glob("spark-classes-*.jsa"), key=lambda other: other.stat().st_mtime)
    for other in others[:-_KEPT_MAX]:
        other.unlink()
