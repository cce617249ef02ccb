"""Fixtures that several folders of tests share."""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog

from databus.forks import Nursery
from databus.testing import RelayProcess
from databus.testing.servers import Kafka, ServerMissing
from tests.schedule import (
    Parts,
    Scheduling,
    arranged,
    groups_of,
    is_of_an_old_server,
    left_to_tiers,
    recorded,
    too_long_for_their_file,
    twins_left_out,
    write_groups,
)
from tests.seeds import seed_of
from tests.spark_classes import java_options

os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options())
_GROUPS_FILE = pytest.StashKey[Path]()


@cache
def _relays(*more: str) -> Nursery:
    """What relays of the tests are forked from; made for the first. A start imports for a second of processor time."""
    modules = ["databus.relay", "databus.operate", "databus.sources.sqlite", "databus.sources.mysql", *more]
    return Nursery(modules, wait_s_max=120)


def _relays_with_kernels() -> Nursery:
    """With those of the mysql source where this process has loaded them: only then they are compiled for certain."""
    from databus.sources.mysql import _kernels as parts

    names = (*parts._FOLLOWING, *parts._READING, *parts._DECODING)
    kernels = [f"databus.sources.mysql.{name}" for name in names]
    return _relays(*(kernels if all(name in sys.modules for name in kernels) else ()))


if sys.platform == "linux":
    RelayProcess.nursery = _relays_with_kernels


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that a test runs in its own process says where logs go; the tests behind it look where they went."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root = logging.getLogger()
        for each in [*root.handlers]:
            if isinstance(each.formatter, structlog.stdlib.ProcessorFormatter):
                root.removeHandler(each)
        logging.getLogger("databus").setLevel(logging.NOTSET)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the makers of databus want of a run."""
    parser.addoption("--record-durations", action="store_true", help="write how long each file took for later runs")


def pytest_configure(config: pytest.Config) -> None:
    """Only where there is a terminal; the workers of a run tell the first process what they leave."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Parts(is_recording=config.getoption("record_durations")), "parts")
        folder = tempfile.TemporaryDirectory(prefix="databus-tests-")
        config.add_cleanup(folder.cleanup)
        config.stash[_GROUPS_FILE] = Path(folder.name) / "groups.json"


def pytest_deselected(items: list[pytest.Item]) -> None:
    """What a worker leaves to other tiers; the first process shows it."""
    if items and hasattr(items[0].config, "workeroutput"):
        items[0].config.workeroutput["left"] = left_to_tiers(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Servers before the tiers are told apart; the order when it is known which tests of a file run at all."""
    seconds = recorded()
    for item in [*filter(is_of_an_old_server, items), *twins_left_out(items)]:
        item.add_marker("nightly")
    for item in too_long_for_their_file(items, seconds):
        item.add_marker("nightly")
    yield
    items[:] = arranged(items, seconds)
    if hasattr(config, "workerinput"):
        write_groups(groups_of(items), config.rootpath, Path(config.workerinput["groups_file"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed goes to the first process as UTF-8, which half a surrogate is not: that ended a whole run."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    """With `--dist loadfile`, ours."""
    return Scheduling(config, log, config.stash[_GROUPS_FILE]) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Each worker says in a file which tests share what costs seconds."""
    node.workerinput["groups_file"] = str(node.config.stash[_GROUPS_FILE])


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
    }
    session = tuned_session("databus tests", "local[2]", folder=folder, settings=settings)
    yield session
    session.stop()


@pytest.fixture
def engine() -> object:
    """What runs pipelines without Spark; see `LocalEngine`."""
    from tests.local_engine import LocalEngine

    return LocalEngine()


@pytest.fixture
def relay_in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines of this process have their relay in it too, where no test is about its being a process."""
    from tests.pipeline.projects import RelayInThread

    monkeypatch.setattr("databus.pipeline.running._run.OwnRelay", RelayInThread)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The one Kafka of this test run, for tests that leave it as it was; each takes topics of names of its own."""
    yield from _started(Kafka(tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="session")
def other_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Another cluster, which tests may freeze, kill and start again; at their ends it runs."""
    yield from _started(Kafka(tmp_path_factory.mktemp("other_kafka"), cluster_id="BBBBBBBBBBBBBBBBBBBBBQ"))


def _started(server: Kafka) -> Iterator[Kafka]:
    try:
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.close()
