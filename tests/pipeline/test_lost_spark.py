"""What is said where Spark's Java process has ended under a run."""

import subprocess
import sys
import threading

import pytest

from databus.core import ServiceUnavailable
from databus.pipeline.running._spark_start import SparkStart


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", ["killed by signal 9 (SIGKILL)", "where memory"]),
        ("import os; os.kill(os.getpid(), 6)", ["killed by signal 6 (SIGABRT). Its logs"]),
        ("raise SystemExit(137)", ["killed by signal 9 (SIGKILL)"]),
        ("print('no room for a heap'); raise SystemExit(3)", ["with code 3; it said last: no room for a heap"]),
    ],
)
def test_it_says_how_the_process_ended_and_where_its_logs_are(tmp_path, how, said):
    def make(on_process):
        with (tmp_path / "spark-output.log").open("wb") as output:
            process = subprocess.Popen([sys.executable, "-c", how], stdout=output)
        on_process(process)
        process.wait()
        raise ConnectionRefusedError("what py4j raises then")

    spark = SparkStart(make, tmp_path)
    with pytest.raises(ServiceUnavailable) as raised:
        spark.wait(threading.Event())
    for each in (*said, str(tmp_path / "spark.log"), str(tmp_path / "spark-output.log")):
        assert each in str(raised.value)
    assert str(spark.lost()) == str(raised.value)


def test_a_process_that_runs_is_not_lost(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def make(on_process):
        on_process(process)
        return "a session"

    spark = SparkStart(make, tmp_path)
    assert spark.wait(threading.Event()) == "a session"
    assert spark.lost() is None
    process.communicate(b"\n")
