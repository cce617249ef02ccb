"""A machine too busy for Spark's Python processes: a sentence, fewer starts at once, tried again later."""

import threading
from types import SimpleNamespace

from databus.core import ServiceUnavailable
from databus.pipeline.engine._plan import QueryPlan, Shape
from databus.pipeline.engine._query import QueryThread, Starts
from databus.testing import FakeClock

FAILURE = RuntimeError(
    "[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 "
    "times: org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache.spark.api.python..."
)


def thread_of(starting):
    run = SimpleNamespace(retry_ms_min=200, retry_ms_max=30_000, retries_max=0, start_ms_max=0)
    config = SimpleNamespace(sections=SimpleNamespace(run=run), embeds_relay=True)
    settings = SimpleNamespace(
        config=config,
        starting=starting,
        report=events.append,
        once=False,
        is_stopping=threading.Event(),
        began_s=0.0,
        clock=FakeClock(),
        renewed_s=lambda: None,
    )
    return QueryThread(settings, QueryPlan("outputs/copy", Shape.TABLES, ("inputs.shop",), ()), [], lambda _: None)


events: list[dict[str, object]] = []


def test_it_is_a_sentence_and_is_tried_again_after_seconds():
    events.clear()
    starting = Starts(4)
    thread = thread_of(starting)
    error = thread._named(FAILURE, None)
    assert isinstance(error, ServiceUnavailable)
    assert str(error).startswith("Spark's Python processes did not start within its ten seconds: the machine is busy")
    assert "2 of this pipeline's queries start at a time" in str(error)
    assert thread._waits_for(error), "however often: retries_max is for unknown errors"
    (told,) = events
    assert told["event"] == "retry"
    assert told["wait_ms"] >= 2_500


def test_fewer_start_at_a_time_and_never_none():
    starting = Starts(2)
    entered, leave = threading.Semaphore(0), threading.Event()

    def start():
        with starting:
            entered.release()
            leave.wait(20)

    assert (starting.fewer(), starting.fewer()) == (1, 1)
    threads = [threading.Thread(target=start, daemon=True) for _ in range(2)]
    for each in threads:
        each.start()
    assert entered.acquire(timeout=20)
    assert not entered.acquire(blocking=False)
    leave.set()
    assert entered.acquire(timeout=20)
    for each in threads:
        each.join(20)
