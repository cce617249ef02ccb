"""What a tuned session promises to those who start streams in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from databus.sources.mock import MockConfig, MockSource
from databus.spark import class_file
from databus.spark._home import home_of_spark
from databus.spark._session import class_options
from tests.spark.conftest import StartRelay

pytestmark = pytest.mark.spark

RUN_S_MAX = 240


def test_first_streams_of_a_session_may_start_at_the_same_moment(start_relay: StartRelay, tmp_path: Path) -> None:
    """Readers share one map that Spark changes without a lock: a stream that starts must find every name in it, and
    must not have it grow.
    """
    config = {"type": "mock", "transactions_total": 50}
    relay = start_relay({"shop": config}, 50)
    command = [sys.executable, "-m", "tests.spark.at_once", relay.url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["after"] == told["before"]
    assert told["rooms"][0] == told["rooms"][1]
    expected = MockSource("shop", MockConfig(**config)).expected_rows("main.events", 50)
    assert set(told["rows"]) == {expected}


def test_no_secret_stands_in_the_list_of_processes(tmp_path: Path) -> None:
    """Where everybody on the machine can read it; Spark has it all the same."""
    command = [sys.executable, "-m", "tests.spark.secret", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["setting"] == "not for everybody"
    assert "spark.ui.enabled=false" in told["arguments"]
    assert "not for everybody" not in told["arguments"]


def test_java_is_told_of_classes_that_were_written_in_any_other_pipeline(spark, tmp_path, monkeypatch):
    """It takes them only for jars that have the same paths, so all pipelines have one home of Spark."""
    jars = home_of_spark(tmp_path, sys.executable) / "jars"
    assert f"{jars}/" in spark._jvm.System.getProperty("java.class.path")
    monkeypatch.setenv("DATABUS_CACHE", str(tmp_path))
    assert class_options() == ""
    class_file().write_bytes(b"")
    assert class_options() == f'"-XX:SharedArchiveFile={class_file()}"'
    assert home_of_spark(tmp_path / "a", sys.executable) == home_of_spark(tmp_path / "b", sys.executable)


def test_without_a_place_to_keep_it_a_pipeline_has_a_home_of_spark_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("DATABUS_CACHE", str(tmp_path / "file"))
    home = home_of_spark(tmp_path / "a", sys.executable)
    assert home == tmp_path / "a" / "home"
    assert {path.name for path in home.iterdir()} >= {"bin", "jars"}
