"""A small Spark session for commands that only sometimes need one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


STARTING_SPARK: Final = (
    "starting Spark: Java loads its classes, which takes some 10 s, on a slow or busy machine minutes "
    "(`databus warm-up`, once on a machine, halves it)"
)
"""For people who wait for it."""


@contextmanager
def spark_on_demand(
    name: str, existing: "SparkSession | None" = None, on_start: Callable[[str], None] = lambda _: None
) -> "Iterator[Callable[[], SparkSession]]":
    """Give a function that starts a session if it is called; it is ended afterwards, unless it was there before.

    on_start: called with what takes so long, before a session is started.
    """
    own: list[SparkSession] = []
    with TemporaryDirectory(prefix=name.replace(" ", "-")) as folder:

        def session() -> "SparkSession":
            from pyspark.sql import SparkSession

            from databus.spark import tuned_session

            active = existing or SparkSession.getActiveSession()
            if active is not None or own:
                return active or own[0]
            on_start(STARTING_SPARK)
            own.append(tuned_session(name, "local[1]", folder=Path(folder)))
            return own[0]

        try:
            yield session
        finally:
            for session_made in own:
                session_made.stop()
