"""Session settings: what a micro-batch of 50 ms instead of 200 ms needs, and where Spark's own words go.

Four settings carry most of it, none of them a default (docs/decisions/spark.md): Unix domain sockets
between the JVM and Python, a checkpoint manager that does not start a process for each file, no checksum files beside
the checkpoints, and Hadoop's raw local file system. The last three are for checkpoints on a local disk, so they are
set for local masters only. Start with `tuned_session`.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from databus.core import ConfigError
from databus.forks import Nursery
from databus.spark._classes import class_options
from databus.spark._home import home_of_spark, is_ours, java_path
from databus.spark._jvm import OnProcess, how_java_ended, start_jvm
from databus.spark._private import (
    FOR_LOCAL_DISKS,
    WORKER_MODULES,
    active_context,
    forget_gateway,
    kept_gateway,
    on_broken_updates,
    settle_session,
    spark_home,
)
from databus.spark._shipping import Shipment, python_on_path

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
    on_process: told of the JVM's process once it is started, seconds before this returns; who kills it ends the start.
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
        os.environ["PYSPARK_PYTHON"] = python  # what this process starts is not to take ours for somebody's choice


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
