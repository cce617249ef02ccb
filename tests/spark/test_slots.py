"""How many ranges a batch is cut into where nobody says so."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkConf

from databus.spark import _session, slots_of


def session(master: str, parallelism: int, executors: int = 1, **settings: str) -> Any:
    """A session as `slots_of` asks it: a cluster of a hundred cores is not at hand."""
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set("spark." + name.replace("_", "."), value)
    known = SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 1 + executors))
    java = SimpleNamespace(sc=lambda: known)
    context = SimpleNamespace(master=master, defaultParallelism=parallelism, getConf=lambda: conf, _jsc=java)
    return SimpleNamespace(sparkContext=context)


@pytest.mark.parametrize(
    ("parallelism", "settings", "slots"),
    [
        (16, {}, 16),
        (16, {"task_cpus": "4"}, 4),
        (2, {"cores_max": "40"}, 40),
        (2, {"executor_instances": "10", "executor_cores": "4"}, 40),
        (2, {"executor_instances": "10"}, 10),
        (2, {"dynamicAllocation_enabled": "true", "dynamicAllocation_maxExecutors": "8", "executor_cores": "2"}, 16),
        (48, {"executor_instances": "10", "executor_cores": "4"}, 48),
    ],
)
def test_a_cluster_runs_as_many_as_it_has_or_is_promised(
    parallelism: int, settings: dict[str, str], slots: int
) -> None:
    assert slots_of(session("spark://cluster:7077", parallelism, **settings)) == slots


def test_executors_without_a_most_are_taken_to_come() -> None:
    assert slots_of(session("yarn", 2, dynamicAllocation_enabled="true")) > 1_000


def test_a_cluster_without_executors_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "_WAIT_S", 0.0)
    assert slots_of(session("spark://cluster:7077", 2, executors=0)) == 2


@pytest.mark.parametrize(("cores", "slots"), [(1, 1), (2, 1), (3, 1), (16, 8)])
def test_a_local_master_keeps_cores_for_the_relay_and_the_driver(cores: int, slots: int) -> None:
    assert slots_of(session(f"local[{cores}]", cores)) == slots


def test_a_real_session_answers(spark: Any) -> None:
    assert slots_of(spark) == max(spark.sparkContext.defaultParallelism // 2, 1)
