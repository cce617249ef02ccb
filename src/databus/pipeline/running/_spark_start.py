"""Spark's start, in a thread beside the rest of a run's start; it can be given up before it is done."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

from databus.core import Clock, ConfigError, DatabusError, ServiceUnavailable, SystemClock
from databus.pipeline.checks import unguarded
from databus.pipeline.engine import Engine, SparkEngine
from databus.pipeline.graph import PipelineConfig
from databus.pipeline.telling import Reminders, in_background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Renewals:
    """Sends renewed certificates and tokens to executors. logger: logs that, and errors."""

    def __init__(self, logger: Any, clock: Clock | None = None) -> None:
        self.send: Callable[[], bool] = lambda: False
        """Sends files if they have changed, and returns whether it did; raises `ConfigError` while they do not go
        together. Set if there are executors on other machines.
        """
        self.last_s: float | None = None
        """When files were last sent, by the monotonic clock."""
        self._logger = logger
        self._clock = clock or SystemClock()
        self._reminders = Reminders(self._clock)

    def look(self) -> None:
        """Send files that have changed. An error is logged at once, and then once a minute."""
        try:
            is_sent = self.send()
        except ConfigError as error:
            if self._reminders.is_due("", str(error)):
                self._logger.warning(
                    "the files by which the relay is asked have changed and cannot be used together; executors keep "
                    "those that they were sent before",
                    message=str(error),
                )
            return
        self._reminders.end("")
        if is_sent:
            self.last_s = self._clock.monotonic_s()
            self._logger.info("executors were sent the renewed files by which the relay is asked")


_ASK_S: Final = 0.1

OnProcess = Callable[["Popen[bytes]"], None]
"""Called with Spark's process once it is started, seconds before there is a session."""


class SparkStart:
    """Begins at once, in a thread of its own. make: makes the session, and passes on the process that it starts.
    log_folder: where its logs are.
    """

    def __init__(self, make: "Callable[[OnProcess], SparkSession]", log_folder: Path) -> None:
        self._log_folder = log_folder
        self._made: Future[SparkSession] = Future()
        self._processes: list[Popen[bytes]] = []
        self._is_given_up = threading.Event()
        in_background("start-spark", lambda: self._make(make))

    def wait(self, is_stopping: threading.Event) -> "SparkSession | None":
        """The session; None once `is_stopping` is set. Raises the error that kept Spark from starting."""
        while not is_stopping.is_set():
            if wait([self._made], _ASK_S).done:
                if not isinstance(self._made.exception(), DatabusError | None) and (lost := self.lost()) is not None:
                    raise lost from self._made.exception()
                return self._made.result()
        return None

    def lost(self) -> ServiceUnavailable | None:
        """An error if the process that was started has ended; None while it runs, or if none was started."""
        from databus.spark import how_spark_ended

        ended = [process for process in self._processes if process.poll() is not None]
        return ServiceUnavailable(how_spark_ended(ended[0].returncode, self._log_folder)) if ended else None

    def end(self) -> "SparkSession | None":
        """The session, if it was made; else kills what was started so far, without waiting."""
        if self._made.done():
            return None if self._made.exception() else self._made.result()
        self._is_given_up.set()
        for process in self._processes:
            process.kill()
        return None

    @property
    def is_given_up(self) -> bool:
        """Whether it was ended before there was a session."""
        return self._is_given_up.is_set()

    def _make(self, make: "Callable[[OnProcess], SparkSession]") -> None:
        try:
            self._made.set_result(make(self._know))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._made.set_exception(error)

    def _know(self, process: "Popen[bytes]") -> None:
        self._processes.append(process)
        if self.is_given_up:
            process.kill()


def spark_start(config: PipelineConfig, master: str, renewals: Renewals, logger: Any) -> SparkStart:
    """Begin to start Spark with the options of a pipeline's file."""
    spark = config.sections.spark
    archive = None if spark.archive is None else config.folder / spark.archive

    def make(on_process: OnProcess) -> "SparkSession":
        from databus.spark import Shipment, is_local, tuned_session

        shipment, folder = Shipment(archive, config.access), config.state / "spark"
        if (warning := unguarded(master, config)) is not None:
            logger.warning(warning)
        session = tuned_session(
            f"databus {config.name}",
            master,
            folder=folder,
            settings=spark.settings,
            on_process=on_process,
            shipment=shipment,
        )
        if not is_local(master):
            renewals.send = partial(shipment.send_renewed, session, folder)
        return session

    return SparkStart(make, config.state / "spark")


def engine_on(session: "SparkSession | Engine") -> Engine:
    """The engine on a session that the caller made. It is prepared for queries that start at the same moment."""
    from databus.spark import settle_session

    if isinstance(session, Engine):
        return session
    settle_session(session)
    return SparkEngine(session)


def end_spark(spark: "SparkSession") -> None:
    """Stop Spark."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # a signal to the whole process group may have ended the JVM first
        spark.stop()
