"""Fixtures that several folders of tests share."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import structlog
from xdist.scheduler import LoadFileScheduling

from databus.forks import Nursery
from databus.testing import RelayProcess
from databus.testing.servers import Kafka, ServerMissing
from tests.seeds import seed_of
from tests.spark_classes import java_options

os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options())


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

SHARES_SPARK = (
    "streams/test_stream_runs.py",
    "http/test_http_runs.py",
    "kafka/test_kafka_runs.py",
    "kafka/test_removed_topics.py",
    "kafka/test_last_images.py",
    "kafka/test_renamed_runs.py",
    "kafka/test_typed_branches.py",
    "pipeline/test_other_log.py",
    "laws/test_whole_way.py",
    "pipeline/test_change_filters_run.py",
    "pipeline/test_compare_mysql.py",
    "pipeline/test_direct.py",
    "pipeline/test_failure_policy.py",
    "pipeline/test_filter_tests.py",
    "pipeline/test_filtered_ddl.py",
    "pipeline/test_json_lines.py",
    "pipeline/test_ledger_runs.py",
    "pipeline/test_merge.py",
    "pipeline/test_physicals.py",
    "pipeline/test_pipeline.py",
    "pipeline/test_plugins.py",
    "pipeline/test_table_filters_run.py",
    "pipeline/test_tasks.py",
    "pipeline/test_tls.py",
    "pipeline/test_treatment.py",
    "pipeline/test_typed_steps.py",
    "pipeline/test_unnest_run.py",
    "pipeline/test_validate_and_run.py",
    "search/test_parts_runs.py",
    "search/test_search_runs.py",
    "spark/",
    "stores/test_runs.py",
    "search/test_search_unnest.py",
)
"""Files, and a folder, whose tests use the fixture `spark`. All are one worker's: a run starts that session once."""

LONGEST_FIRST = (
    "pipeline/test_pipeline.py",  # with all that share a SparkSession
    "kafka/test_transaction_runs.py",  # with all of kafka and kafka_source
    "benchmarks/test_tiny.py",
    "documents/test_commands.py",
    "search/test_search_accidents.py",  # with all of search
    "acceptance/test_acceptance.py",
    "mysql/test_accidents_relay.py",
    "mysql/snapshot/test_many_tables.py",
    "cli/test_demo.py",
    "mysql/snapshot/test_reader.py",
    "laws/test_kills.py",
    "mysql/test_repair.py",
    "mysql/binlog/test_mutations.py",
    "mysql/test_check.py",
    "pipeline/test_crash.py",
    "mysql/test_conformance.py",
    "mysql/test_accidents.py",
    "cli/test_run_screen.py",
    "mysql/test_accidents_tables.py",
    "mysql/test_accidents_hosts.py",
    "pipeline/test_cluster.py",
    "mysql/snapshot/test_watermarks.py",
    "mysql/test_charset_sweep.py",
    "cli/test_stop.py",
    "testing/test_servers.py",
    "relay/test_crowd.py",
    "relay/test_capture.py",
)
"""Files that take longest. A file is one process's: a long one at the end would keep that one busy, and the others
idle. What one worker runs as a whole stands here by its first file. Those that start Spark, which keeps all cores busy,
stand among those that wait for servers.
"""


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others in their order; each in one piece, whatever fixtures it shares."""
    folder = Path(__file__).parent
    ranks = {folder / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    firsts: dict[Path, int] = {}
    for index, item in enumerate(items):
        firsts.setdefault(item.path, index)
    items.sort(key=lambda item: (ranks.get(item.path, len(ranks)), firsts[item.path]))


def scope_of(nodeid: str) -> str:
    """What one worker runs as a whole: a file, or all files that share a SparkSession, or a server."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    if file.startswith(SHARES_SPARK):
        return "spark"
    return next((name for name in ("search", "kafka") if file.startswith((f"{name}/", f"{name}_source/"))), file)


class _Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """With `--dist loadfile`, ours."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


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
def relay_in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines of this process have their relay in it too, where no test is about its being a process."""
    from tests.pipeline.projects import RelayInThread

    monkeypatch.setattr("databus.pipeline._run.OwnRelay", RelayInThread)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The one Kafka of this test run, for tests that leave it as it was; each takes topics of names of its own."""
    server = Kafka(tmp_path_factory.mktemp("kafka"))
    try:
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.close()
