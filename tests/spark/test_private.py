"""What Spark does not promise is as `databus.spark._private` says: a version of Spark that differs fails here first."""

import importlib.util
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j import protocol
from pyspark import SparkContext

from databus.core import CorruptData
from databus.spark import _private

pytestmark = pytest.mark.spark


def classes(end: str) -> dict[str, bytes]:
    """The classes of Spark's jars whose path ends so."""
    found = {}
    for jar in (_private.spark_home() / "jars").glob("*.jar"):
        if jar.name.startswith(("spark-core_", "spark-sql_", "hadoop-client-api-")):
            with zipfile.ZipFile(jar) as content:
                found |= {name: content.read(name) for name in content.namelist() if name.endswith(f"{end}.class")}
    return found


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("/PythonWorkerFactory", [_private.SLOW_WORKERS]),
        ("/StreamExecution", [_private._STARTING]),
        ("/PythonGatewayServer$", [_private.CONNECTION_VARIABLE]),
        ("/PythonStreamingSourceRunner", [*_private.READER_ENVIRONMENT]),
    ],
)
def test_java_still_says_it_in_these_words(name, texts):
    (content,) = classes(name).values()
    assert [text for text in texts if text.encode() not in content] == []


def test_py4j_and_java_still_call_their_errors_so(spark):
    assert issubclass(getattr(protocol, _private.LOST_JAVA), Exception)
    error = spark.sparkContext._jvm.java.io.IOException("No space left on device")
    assert error.toString() == f"{_private.FAILED_IN_JAVA}No space left on device"


@pytest.mark.parametrize("setting", _private.FOR_LOCAL_DISKS.values())
def test_java_still_has_these_classes(setting):
    assert f"{setting.replace('.', '/')}.class" in classes(f"/{setting.rpartition('.')[2]}")


@pytest.mark.parametrize("module", _private.WORKER_MODULES)
def test_workers_are_still_these_programs(module):
    assert importlib.util.find_spec(module) is not None


def test_the_context_and_its_jvm_are_found(spark):
    assert _private.active_context() is spark.sparkContext
    assert _private.kept_gateway().proc.poll() is None
    assert _private.executors_of(spark.sparkContext) == 0


def test_a_jvm_that_has_ended_is_forgotten(spark, monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", SparkContext._gateway)
    monkeypatch.setattr(SparkContext, "_jvm", SparkContext._jvm)
    _private.forget_gateway()
    assert _private.kept_gateway() is None
    context = SparkContext.__dict__
    assert {"_gateway", "_jvm", "_active_spark_context"} <= context.keys()


def test_the_end_of_the_connection_for_accumulators_is_handled_here(spark):
    server = spark.sparkContext._accumulatorServer
    assert server.handle_error.__module__ == "databus.spark._session"
    assert callable(type(server).handle_error)


def test_a_query_s_checkpoint_says_where_its_batches_end_and_which_are_done(spark, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    stream = rows.writeStream.format("noop").option("checkpointLocation", f"file://{checkpoint}")
    stream.trigger(once=True).start().awaitTermination()
    assert _private.last_done(checkpoint) == 0
    assert _private.offset_of(checkpoint, 0)["offset"] == 5
    assert not _private.is_damaged(checkpoint)
    (checkpoint / "metadata").unlink()
    assert _private.is_damaged(checkpoint)


def test_a_folder_without_batches_says_so(tmp_path: Path):
    assert _private.last_done(tmp_path) is None
    with pytest.raises(CorruptData, match="not the offsets of a micro-batch"):
        _private.offset_of(tmp_path, 0)


@pytest.mark.parametrize(("message", "expected"), [("Initializing sources", True), ("Waiting for next trigger", False)])
def test_a_query_starts_until_its_source_is_read(message, expected):
    assert _private.is_starting(SimpleNamespace(status={"message": message})) is expected
