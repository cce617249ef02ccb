"""What a query does after it ended: at once, after a while, or not again. Without Spark."""

import threading
from types import SimpleNamespace
from typing import Any

from databus.core import DatabusError, SchemaChanged
from databus.pipeline._contract import Shape
from databus.pipeline._plan import QueryPlan
from databus.pipeline._query import QueryThread


class Scripted(QueryThread):
    """A query whose rounds end as `rounds` says: an error, or a number of batches and then an error."""

    def __init__(self, rounds: list[tuple[int, DatabusError | None]], retries_max: int = 3) -> None:
        self.events: list[Any] = []
        run = SimpleNamespace(retry_ms_min=1, retry_ms_max=2, retries_max=retries_max, start_ms_max=0)
        config = SimpleNamespace(sections=SimpleNamespace(run=run), embeds_relay=False)
        settings = SimpleNamespace(
            config=config, is_stopping=threading.Event(), report=self.events.append, once=False, began=0.0
        )
        plan = QueryPlan("q", Shape.TYPED, "inputs.shop", ())
        super().__init__(settings, plan, [], lambda _: None)  # type: ignore[arg-type]
        self._rounds = iter(rounds)

    def _round(self) -> DatabusError | None:
        batches, error = next(self._rounds)
        self._ended(batches)
        return error

    @property
    def said(self) -> list[str]:
        return [event["event"] for event in self.events]


def test_a_change_of_the_schema_restarts_a_query_at_once_however_many_there_were() -> None:
    query = Scripted([*[(1, SchemaChanged("a change"))] * 1_500, (1, None)])
    query.run()
    assert query.error is None
    assert query.said == ["restart"] * 1_500


def test_a_query_that_restarts_do_not_bring_further_waits_and_fails_by_name() -> None:
    query = Scripted([(0, SchemaChanged("the same change"))] * 20)
    query.run()
    assert query.said == ["restart", "retry", "retry", "retry", "failed"]
    assert "the same change" in str(query.error)


def test_a_batch_in_between_makes_the_next_change_a_new_one() -> None:
    change = SchemaChanged("a change")
    query = Scripted([(0, change), (1, change), (0, change), (1, None)])
    query.run()
    assert query.said == ["restart", "restart", "retry"]
