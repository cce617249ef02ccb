"""Fixtures that several folders of tests share."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.seeds import seed_of

LONGEST_FIRST = (
    "acceptance/test_acceptance.py",
    "mysql/test_accidents_relay.py",
    "benchmarks/test_tiny.py",
    "mysql/snapshot/test_many_tables.py",
    "mysql/snapshot/test_reader.py",
    "mysql/test_repair.py",
    "mysql/binlog/test_mutations.py",
    "mysql/test_check.py",
    "mysql/test_conformance.py",
    "mysql/test_accidents.py",
    "mysql/test_accidents_tables.py",
    "mysql/test_accidents_hosts.py",
    "mysql/snapshot/test_watermarks.py",
    "mysql/test_charset_sweep.py",
    "testing/test_servers.py",
    "relay/test_crowd.py",
    "relay/test_capture.py",
    "laws/test_kills.py",
)
"""Files that take longest. A file is one process's: a long one at the end would keep that one busy, and the others
idle.
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others in their order; each in one piece, whatever fixtures it shares."""
    folder = Path(__file__).parent
    ranks = {folder / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    firsts: dict[Path, int] = {}
    for index, item in enumerate(items):
        firsts.setdefault(item.path, index)
    items.sort(key=lambda item: (ranks.get(item.path, len(ranks)), firsts[item.path]))


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
