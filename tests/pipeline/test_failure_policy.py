"""What one output's failure does to it, to the others and to the pipeline; what an output says of its query."""

import threading
import time
from queue import SimpleQueue
from textwrap import dedent

import pytest

from databus.core import CorruptData
from databus.pipeline import load_pipeline, run, validate
from databus.pipeline.engine._query import limited, trigger_ms_of
from databus.pipeline.telling import Throttle

WAIT_S = 120.0
BAD = """\
    from typing import ClassVar

    from databus.core import CorruptData
    from databus.pipeline import Delivery, Output, OutputConfig


    class Bad(Output):
        config_model: ClassVar = OutputConfig
        delivery: ClassVar = Delivery.AT_LEAST_ONCE

        def write(self, batch):
            if not (self.context.folder / "mended").exists():
                raise CorruptData("this target is broken")
"""
FILE = """\
name: policy
run: {{retry_ms_min: 10, retry_ms_max: 200}}
inputs: {{events: {{type: mock, rows_per_s: 200}}}}
outputs:
  bad: {{type: "bad.py:Bad", from: events, on_failure: {policy}}}
  good: {{type: count, from: events, trigger_ms: 300}}
"""


class Running:
    """A run in a thread of its own."""

    def __init__(self, folder, spark, policy):
        (folder / "bad.py").write_text(dedent(BAD))
        self.path = folder / "databus.yml"
        self.path.write_text(FILE.format(policy=policy))
        self.events = []
        self.stop = SimpleQueue()
        self.code = None
        self.thread = threading.Thread(target=self._run, args=(spark,), daemon=True)
        self.thread.start()

    def _run(self, spark):
        self.code = run(self.path, session=spark, stop=self.stop, on_event=self.events.append)

    def said(self, event, output):
        names = [each.get("outputs", [each.get("output")]) for each in self.events if each["event"] == event]
        return sum(output in each for each in names)

    def wait_until(self, is_so):
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline, self.events[-5:]
            time.sleep(0.05)

    def end(self):
        self.stop.put("the test")
        self.thread.join(WAIT_S)
        return self.code


@pytest.mark.spark
def test_an_output_that_stops_costs_the_others_nothing(spark, tmp_path):
    running = Running(tmp_path, spark, "stop")
    running.wait_until(lambda: running.said("failed", "bad"))
    before = running.said("batch", "good")
    running.wait_until(lambda: running.said("batch", "good") > before + 2)
    assert running.end() == CorruptData.exit_code
    assert running.said("retry", "bad") == running.said("retry", "good") == 0


@pytest.mark.spark
def test_an_output_that_is_tried_again_goes_on_when_its_target_is_mended(spark, tmp_path, caplog):
    caplog.set_level("INFO", "databus.pipeline")
    running = Running(tmp_path, spark, "retry")
    running.wait_until(lambda: running.said("retry", "bad") > 5 and running.said("batch", "good"))
    waits = [each["wait_ms"] for each in running.events if each["event"] == "retry"]
    assert max(waits) <= 200
    (tmp_path / "mended").touch()
    running.wait_until(lambda: running.said("batch", "bad"))
    assert running.end() == 0
    logged = [each.message for each in caplog.records if "outputs/bad" in each.message]
    names = [each.partition(" query=")[0] for each in logged]
    assert names == ["query started", "query retry", "query runs again"]
    assert "this target is broken" in logged[1]
    assert running.said("failed", "bad") == running.said("retry", "good") == 0


@pytest.mark.spark
def test_an_output_may_end_the_whole_pipeline(spark, tmp_path):
    running = Running(tmp_path, spark, "halt")
    running.thread.join(WAIT_S)
    assert running.code == CorruptData.exit_code
    (why,) = [each["why"] for each in running.events if each["event"] == "stopping"]
    assert why == "bad has failed, and says `on_failure: halt`"


def test_what_an_output_says_of_its_query_wins_and_what_it_does_not_say_stays(tmp_path):
    path = tmp_path / "databus.yml"
    path.write_text(
        "relay: {url: 'http://127.0.0.1:9'}\n"
        "inputs: {shop: {type: databus, max_bytes_per_trigger: 1000}}\n"
        "outputs:\n"
        "  a: {type: delta, from: shop, mode: mirror, path: a, max_rows_per_trigger: 5, trigger_ms: 7}\n"
        "  b: {type: delta, from: shop, mode: mirror, path: b}\n"
    )
    graph = load_pipeline(path)
    a, b = (graph.config.nodes[f"outputs.{name}"].config for name in "ab")
    origin = graph.inputs["inputs.shop"]
    config = limited(origin, [b, a]).config
    assert (config.max_rows_per_trigger, config.max_bytes_per_trigger) == (5, 1000)
    assert limited(origin, [b]) is origin
    throttled = limited(origin, [b, a], Throttle(rows=2, bytes=5_000)).config
    assert (throttled.max_rows_per_trigger, throttled.max_bytes_per_trigger) == (2, 1000), (
        "never more than the file says"
    )
    assert limited(origin, [b], Throttle(rows=2)).config.max_rows_per_trigger == 2
    assert (trigger_ms_of([b, a], 100), trigger_ms_of([b], 100)) == (7, 100)


def test_outputs_of_a_lane_must_say_the_same_and_limits_must_be_known(tmp_path):
    path = tmp_path / "databus.yml"
    path.write_text(
        "inputs: {events: {type: mock}}\n"
        "outputs:\n"
        "  a: {type: count, from: events, lane: one, on_failure: halt}\n"
        "  b: {type: count, from: events, lane: one, on_failure: retry}\n"
        "  c: {type: count, from: events, lane: one, trigger_ms: 5}\n"
        "  d: {type: count, from: events, max_bytes_per_trigger: 5}\n"
    )
    found = [(each.path, each.message) for each in validate(path)]
    assert [path for path, _ in found] == ["outputs.b.on_failure", "outputs.d.max_bytes_per_trigger"]
    assert "outputs of one lane share a query" in found[0][1]
