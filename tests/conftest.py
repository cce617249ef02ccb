"""Fixtures that several folders of tests share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The one SparkSession of this test run, tuned as a pipeline's is."""
    from databus.spark import tuned_session

    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts sooner, runs slower
    }
    session = tuned_session("databus tests", "local[2]", folder=folder, settings=settings)
    yield session
    session.stop()
