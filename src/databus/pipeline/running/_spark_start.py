"""Spark's start, beside whatever else a run does meanwhile; who waits for it may stop waiting, and then it ends."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

from databus.core import DatabusError, ServiceUnavailable
from databus.pipeline.checks import unguarded
from databus.pipeline.graph import PipelineConfig
from databus.pipeline.running._renewals import Renewals
from databus.pipeline.telling import in_background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ASK_S: Final = 0.1

OnProcess = Callable[["Popen[bytes]"], None]
"""Told of Spark's process once it is started, seconds before there is a session."""


class SparkStart:
    """Begins at once, in a thread of its own. make: makes the session, and tells of the process that it starts.
    log_folder: where its logs are.
    """

    def __init__(self, make: "Callable[[OnProcess], SparkSession]", log_folder: Path) -> None:
        self._log_folder = log_folder
        self._made: Future[SparkSession] = Future()
        self._processes: list[Popen[bytes]] = []
        self._is_given_up = threading.Event()
        in_background("start-spark", lambda: self._make(make))

    def wait(self, is_stopping: threading.Event) -> "SparkSession | None":
        """The session; None once `is_stopping` is set. Raises what kept Spark from starting."""
        while not is_stopping.is_set():
            if wait([self._made], _ASK_S).done:
                if not isinstance(self._made.exception(), DatabusError | None) and (lost := self.lost()) is not None:
                    raise lost from self._made.exception()
                return self._made.result()
        return None

    def lost(self) -> ServiceUnavailable | None:
        """What to say where the process that was started has ended; None while it runs, or where none was started."""
        from databus.spark import how_spark_ended

        ended = [each for each in self._processes if each.poll() is not None]
        return ServiceUnavailable(how_spark_ended(ended[0].returncode, self._log_folder)) if ended else None

    def end(self) -> "SparkSession | None":
        """The session, if it was made; else what was started so far is killed, and not waited for."""
        if self._made.done():
            return None if self._made.exception() else self._made.result()
        self._is_given_up.set()
        for each in self._processes:
            each.kill()
        return None

    @property
    def is_given_up(self) -> bool:
        """Whether it was ended before it was done."""
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
    """Begin to start Spark as a pipeline's file says."""
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


def settled(session: "SparkSession") -> "SparkSession":
    """A session that somebody else made, in which queries may start at the same moment."""
    from databus.spark import settle_session

    settle_session(session)
    return session


def end_spark(spark: "SparkSession") -> None:
    """Stop Spark."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # a signal to the whole group may have ended the JVM before us
        spark.stop()
