"""Fixtures that several folders of tests share."""

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.seeds import seed_of


@pytest.fixture
def seed(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> int:
    """Where the test's dice begin; see `seed_of`. A failure shows it."""
    chosen = seed_of(request.node.nodeid)
    record_property("seed", chosen)
    sys.stdout.write(f"DATABUS_SEED={chosen}\n")
    return chosen


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
