"""What a query does after it ended: at once, after a while, or not again. Without Spark, by a clock that stands still
until somebody waits.
"""

import threading
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from pyspark.errors import AnalysisException

from databus.core import AccessDenied, DatabusError, InputError, SchemaChanged, ServiceUnavailable, UnknownColumn
from databus.pipeline.engine._plan import QueryPlan
from databus.pipeline.engine._query import QueryThread
from databus.pipeline.engine._typed_steps import analysis_error
from databus.plugins._contract import Shape
from databus.testing import FakeClock


class Scripted(QueryThread):
    """A query whose rounds end as `rounds` says: an error, or a number of batches and then an error."""

    def __init__(
        self,
        rounds: Iterable[tuple[int, DatabusError | None]],
        start_ms_max: int | None = None,
        retry_ms: tuple[int, int] = (1, 2),
        clock: FakeClock | None = None,
        *,
        once: bool = False,
    ) -> None:
        self.events: list[Any] = []
        self.renewed_s: float | None = None
        self.clock = clock or FakeClock()
        waits = {"retry_ms_min": retry_ms[0], "retry_ms_max": retry_ms[1], "start_ms_max": start_ms_max or 0}
        run = SimpleNamespace(**waits, retries_max=3)
        config = SimpleNamespace(sections=SimpleNamespace(run=run), embeds_relay=start_ms_max is not None)
        settings = SimpleNamespace(
            config=config,
            is_stopping=threading.Event(),
            report=self.events.append,
            once=once,
            began_s=0.0,
            clock=self.clock,
            renewed_s=lambda: self.renewed_s,
        )
        plan = QueryPlan("q", Shape.TYPED, ("inputs.shop",), ())
        super().__init__(settings, plan, [], lambda _: None)  # type: ignore[arg-type]
        self._rounds = iter(rounds)

    def _round(self) -> DatabusError | None:
        batches, error = next(self._rounds)
        self._ended(batches)
        return error

    @property
    def said(self) -> list[str]:
        return [event["event"] for event in self.events]

    @property
    def waits_ms(self) -> list[int]:
        return [event["wait_ms"] for event in self.events if event["event"] == "retry"]


AWAY = ServiceUnavailable("the relay is away")


def test_waits_double_up_to_a_bound_and_the_time_passes_between_tries() -> None:
    query = Scripted([(0, AWAY)] * 8 + [(0, None)], retry_ms=(100, 1_000))
    query.run()
    assert query.error is None
    for wait_ms, whole in zip(query.waits_ms, [100, 200, 400, 800, 1_000, 1_000, 1_000, 1_000], strict=True):
        assert whole / 2 <= wait_ms <= whole
    assert abs(query.clock.monotonic_s() * 1e3 - sum(query.waits_ms)) < len(query.waits_ms)


def test_a_batch_that_was_done_has_the_next_wait_be_short_again() -> None:
    query = Scripted([(0, AWAY)] * 6 + [(1, AWAY), (0, None)], retry_ms=(100, 1_000))
    query.run()
    *_, long, short = query.waits_ms
    assert long >= 500
    assert short <= 100


def test_a_run_to_the_present_end_gives_up_what_might_pass() -> None:
    query = Scripted([(0, AWAY)] * 9, once=True)
    query.run()
    assert query.error is AWAY
    assert query.said == ["retry", "retry", "retry", "failed"]


def test_a_query_that_is_stopped_while_it_waits_is_not_tried_again() -> None:
    class Clock(FakeClock):
        def wait(self, event: threading.Event, s_max: float) -> bool:
            event.set()  # as by another thread
            return super().wait(event, s_max)

    query = Scripted([(0, AWAY)] * 9, retry_ms=(3_600_000, 3_600_000), clock=Clock())
    query.run()
    assert query.error is None
    assert query.said == ["retry"]
    assert query.clock.monotonic_s() == 0


def test_a_change_of_a_schema_that_no_try_gets_past_fails_by_name_unless_a_batch_lies_between() -> None:
    query = Scripted([(0, SchemaChanged("the same change"))] * 20)
    query.run()
    assert query.said == ["retry", "retry", "retry", "failed"]
    assert "the same change" in str(query.error)
    query = Scripted([*[(1, SchemaChanged("a change"))] * 50, (1, None)])
    query.run()
    assert query.said == ["retry"] * 50


def test_a_column_that_the_own_relay_may_not_have_seen_yet_is_waited_for_and_named() -> None:
    query = Scripted([*[(0, UnknownColumn('t has no column "city"'))] * 9, (1, None)], start_ms_max=60_000)
    query.run()
    assert query.error is None
    assert query.said == ["retry"] * 9
    assert 't has no column "city"; the pipeline\'s own relay may not have read' in query.events[0]["message"]


def test_a_column_that_does_not_come_in_time_or_from_another_relay_fails_by_name() -> None:
    for start_ms_max in (1, None):
        query = Scripted([(0, UnknownColumn("no such column"))] * 50, start_ms_max=start_ms_max)
        query.run()
        assert query.said[-1] == "failed"
        assert len(query.said) < 10
        assert query.error is not None
        assert str(query.error) == "no such column"


def test_a_column_that_spark_does_not_find_is_one_that_may_come_and_other_mistakes_are_not() -> None:
    missing = AnalysisException("no such column", errorClass="UNRESOLVED_COLUMN.WITH_SUGGESTION")
    assert isinstance(analysis_error("filters.near", missing), UnknownColumn)
    other = AnalysisException("a number and a text", errorClass="DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES")
    assert type(analysis_error("filters.near", other)) is InputError


def test_a_refusal_is_final_unless_executors_were_sent_renewed_files_since_the_query_began() -> None:
    """A task that is tried again shows what it was given when its job began."""
    refused = AccessDenied("the token is not this relay's")
    query = Scripted([(0, refused)] * 9)
    query.renewed_s = -1
    query.run()
    assert query.said == ["failed"]

    def rounds() -> Iterator[tuple[int, DatabusError | None]]:
        query.renewed_s = 0.0001
        yield 1, refused
        yield 1, refused

    query = Scripted(rounds())
    query.run()
    assert query.said == ["retry", "failed"]
    assert query.error is refused
