"""A small Spark session for commands that only sometimes need one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_on_demand(name: str, existing: "SparkSession | None" = None) -> "Iterator[Callable[[], SparkSession]]":
    """Give a function that starts a session if it is called; it is ended afterwards, unless it was there before."""
    own: list[SparkSession] = []
    with TemporaryDirectory(prefix=name.replace(" ", "-")) as folder:

        def session() -> "SparkSession":
            from pyspark.sql import SparkSession

            from databus.spark import tuned_session

            active = existing or SparkSession.getActiveSession()
            if active is not None or own:
                return active or own[0]
            own.append(tuned_session(name, "local[1]", folder=Path(folder)))
            return own[0]

        try:
            yield session
        finally:
            for session_made in own:
                session_made.stop()
