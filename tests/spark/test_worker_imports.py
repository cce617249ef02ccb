"""What Spark's Python processes on this machine import: bytecode, and not pyspark's sources out of a zip."""

import os
import sys

import pyspark
import pytest

pytestmark = pytest.mark.spark


@pytest.mark.skipif("SPARK_HOME" in os.environ, reason="somebody's own Spark is used as it is")
def test_a_worker_has_pyspark_from_where_this_process_has_it(spark):
    def where(_: int) -> str:
        import pyspark as there

        return str(there.__file__)

    assert spark.sparkContext.parallelize([1], 1).map(where).collect() == [pyspark.__file__]


@pytest.mark.skipif(sys.platform != "linux" or "SPARK_HOME" in os.environ, reason="nothing is forked there")
def test_a_worker_has_imported_what_tasks_need_before_its_first_task(spark, monkeypatch):
    # Workers are kept for other tasks of the same environment; in another one it is a new worker that answers.
    monkeypatch.setitem(spark.sparkContext.environment, "DATABUS_TEST", "a new worker")

    def imported(_: int) -> list[str]:
        return [name for name in ("databus.flow", "pyarrow.parquet", "numpy.random") if name in sys.modules]

    # Not NumPy's dice: their state would be the same in all that are forked.
    assert spark.sparkContext.parallelize([1], 1).map(imported).collect() == [["databus.flow", "pyarrow.parquet"]]
