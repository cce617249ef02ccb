"""Relay and pipeline as two processes: what the relay meets at its sources shows wherever the pipeline is looked at."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from databus.core import FatalError, ServiceUnavailable, SourceChanged, SourceCheckpoint
from databus.filters import TableChoice
from databus.link import Access
from databus.pipeline import run, status_of, unwell, worst_backlogs
from databus.pipeline.engine._positions import _behind
from databus.pipeline.running._health import render_pipeline_metrics
from databus.pipeline.telling._status import with_backlog
from databus.places import ASKED, Position
from databus.relay import Relay, State
from databus.testing import FakeClock
from tests.relay.support import AT_US, Database, ScriptedSource, config_of, order, published, until, wait_for_state

PIPELINE = """\
name: far
relay: {{url: '{url}'}}
inputs: {{shop: {{type: databus, tables: ['shop/*']}}}}
outputs: {{copy: {{type: files, from: shop, path: out}}}}
"""
HOUR_MS = 3_600_000.0


@pytest.fixture
def shop() -> Database:
    return Database(groups=[order(scn) for scn in range(1, 5)])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(AT_US * 1_000)


@pytest.fixture
def relay(tmp_path: Path, shop: Database, clock: FakeClock) -> Iterator[Relay]:
    """Of a source that is read here, and of one that is not, and suspended."""
    other = Database(identify_errors=[FatalError("nobody here reads it")])
    databases = {"shop": shop, "other": other}
    config = config_of(tmp_path, databases)
    with Relay(config, open_source=lambda name, _: Quiet(name, databases[name]), clock=clock) as relay:
        yield relay


class Quiet(ScriptedSource):
    def lag(self) -> Any:
        from databus.sources import SourceLag

        return SourceLag(0.0, 0)


def written(folder: Path, relay: Relay) -> Path:
    path = folder / "databus.yml"
    path.write_text(PIPELINE.format(url=relay.url))
    return path


def found_when(path: Path, is_so: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(status_of(path) or {"outputs": {}, "sources": {}})
        return bool(is_so(found))

    until(look, "the status")
    return found


def test_a_source_that_is_not_captured_elsewhere_and_a_relay_that_is_away_show_in_the_status(
    engine: Any, tmp_path: Path, relay: Relay, shop: Database, clock: FakeClock
) -> None:
    path, ends = written(tmp_path, relay), SimpleQueue[Any]()
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(run(path, session=engine, stop=ends)))
    running.start()
    try:
        found = found_when(path, lambda now: now["outputs"].get("copy", {}).get("rows") == 4 and now["sources"])
        assert (list(found["sources"]), unwell(found)) == (["shop"], [])
        (backlog,) = found["outputs"]["copy"]["backlog"]
        assert (backlog["rows"], backlog["lag_s"]) == (0, 0.0)

        shop.fail(SourceChanged("it was reset"))
        wait_for_state(relay, State.SUSPENDED_ON_ERROR)
        clock.advance_ms(HOUR_MS)
        found = found_when(path, lambda now: not now["sources"]["shop"]["is_well"])
        assert unwell(found) == ["source shop: suspended: it was reset"]
        assert found["outputs"]["copy"]["backlog"][0]["lag_s"] == 3_600.0
        metrics = render_pipeline_metrics(found).decode()
        assert 'databus_pipeline_source_captured{source="shop"} 0.0' in metrics
        assert 'databus_output_lag_seconds{output="copy",physical="shop"} 3600.0' in metrics
        assert "databus_pipeline_relay_answers 1.0" in metrics

        relay.stop()
        found = found_when(path, lambda now: now["relay_error"])
        assert unwell(found)[0].startswith("relay: does not answer: ")
        assert "databus_pipeline_relay_answers 0.0" in render_pipeline_metrics(found).decode()
        assert found["outputs"]["copy"]["backlog"][0]["lag_s"] is None
    finally:
        ends.put("the test is over")
        running.join()
    assert codes == [0]


def test_once_without_anything_to_read_elsewhere_starts_no_spark_and_ends_with_the_reason(
    tmp_path: Path, relay: Relay, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "databus.yml"
    path.write_text(PIPELINE.format(url=relay.url).replace("shop/*", "other/*"))
    monkeypatch.setattr("databus.pipeline.running._run.spark_start", lambda *_: pytest.fail("Spark was started"))
    events: list[Any] = []
    assert run(path, once=True, on_event=events.append) == FatalError.exit_code
    assert events[-1]["reasons"] == ["source other: nobody here reads it"]
    found = status_of(path)
    assert found is not None
    assert (found["state"], found["code"], found["failure"]) == ("stopped", 3, "source other: nobody here reads it")


@pytest.mark.parametrize("error", [SourceChanged("it was reset"), ServiceUnavailable("it is away")])
def test_once_over_a_source_elsewhere_that_is_not_captured_writes_what_there_is_and_fails(
    engine: Any, tmp_path: Path, relay: Relay, shop: Database, error: Exception
) -> None:
    published(relay, "shop", 4)
    shop.identify_errors.extend([error] * 10_000)
    shop.fail(error)
    until(lambda: relay.captures["shop"].status.error)
    events: list[Any] = []
    code = run(written(tmp_path, relay), once=True, session=engine, on_event=events.append)
    assert code == type(error).exit_code
    assert events[-1]["reasons"] == [f"source shop: {error}"]
    assert sum(each.get("rows") or 0 for each in events if each["event"] == "batch") == 4


def test_a_good_run_with_once_has_ended_and_says_when(engine: Any, tmp_path: Path, relay: Relay) -> None:
    published(relay, "shop", 4)
    path = written(tmp_path, relay)
    assert run(path, once=True, session=engine) == 0
    found = status_of(path)
    assert found is not None
    assert (found["state"], found["code"], unwell(found)) == ("ended", 0, [])
    assert found["started_us"] < found["ended_us"]


@pytest.mark.parametrize(
    ("tested", "is_said"), [("main.orders", False), ("main.customers", False), ("other/x.y", True)]
)
def test_a_run_begins_whatever_the_tests_of_its_filters_lack(
    engine: Any, tmp_path: Path, relay: Relay, tested: str, is_said: bool
) -> None:
    """Columns that only the relay knows, a table that it does not have, and a mistake that the file shows by itself."""
    published(relay, "shop", 4)
    path = written(tmp_path, relay)
    with path.open("a") as file:
        file.write(f"tests: {{t: {{table: {tested}, to: copy, rows: [], expect: []}}}}\n")
    events: list[Any] = []
    assert run(path, once=True, session=engine, on_event=events.append) == 0
    told = [event["message"] for event in events if event["event"] == "untested"]
    assert [each.partition(": tests.t.to: no row of other/x.y")[0] for each in told] == (
        ["`databus test` cannot run 1 of the file's tests, which the pipeline does without"] if is_said else []
    )


def position(scn: int) -> dict[str, Any]:
    return {"uuid": "", "scn": scn, "seq": None, "txid": f"t{scn}", "ts_us": AT_US + scn, "snapshots": {}, "log": ""}


@pytest.mark.parametrize(("scn", "rows", "lag_s"), [(4, 0, 0.0), (2, 2, 3_600.0 - 3e-6), (3, 1, 3_600.0 - 4e-6)])
def test_an_output_lags_by_the_age_of_the_oldest_change_that_it_has_not_written(
    relay: Relay, clock: FakeClock, scn: int, rows: int, lag_s: float
) -> None:
    """And not by the time between two commits, which stands still while nothing is written."""
    published(relay, "shop", 4)
    clock.advance_ms(HOUR_MS)
    until(lambda: relay.captures["shop"].lag.behind_ms == 0.0)
    told = relay.captures["shop"].log
    assert told is not None
    at = {**told.head().published.to_json(), **position(scn), "uuid": told.head().published.uuid, "log": told.uuid}
    (backlog,) = backlog_at(relay, clock, at)
    assert (backlog["rows"], backlog["lag_s"]) == (rows, pytest.approx(lag_s))


def backlog_at(relay: Relay, clock: FakeClock, at: Any, **behind: Any) -> list[dict[str, Any]]:
    query = {"positions": {"shop": at}, "behind": {"shop": behind}, "tables": []}
    found: list[dict[str, Any]] = with_backlog({"copy": {"queries": {"q": query}}}, relay.url, Access(), clock=clock)[
        "copy"
    ]["backlog"]
    return found


def test_a_table_that_is_behind_the_others_lags_by_its_own_place(relay: Relay, clock: FakeClock) -> None:
    """As one whose typed filter fails, while the output goes on: it was shown to lag by nothing."""
    published(relay, "shop", 4)
    clock.advance_ms(HOUR_MS)
    until(lambda: relay.captures["shop"].lag.behind_ms == 0.0)
    told = relay.captures["shop"].log
    assert told is not None
    head = {**told.head().published.to_json(), "uuid": told.head().published.uuid, "log": told.uuid}
    behind = {"shop/main.orders": head | position(2) | {"uuid": head["uuid"], "log": head["log"]}}
    backlog = backlog_at(relay, clock, head | position(4) | {"uuid": head["uuid"], "log": head["log"]}, **behind)
    assert [(each.get("table"), each["rows"]) for each in backlog] == [(None, 0), ("shop/main.orders", 2)]
    worst = worst_backlogs({"backlog": backlog})["shop"]
    assert (worst["rows"], worst["lag_s"], worst["held"]) == (2, pytest.approx(3_600.0 - 3e-6), True)


def test_tables_are_behind_that_are_chosen_and_wait_for_no_snapshot() -> None:
    def at(scn: int) -> SourceCheckpoint:
        return SourceCheckpoint(scn=scn)

    places = {
        f"shop/main.{name}": at(scn) for name, scn in {"a": 3, "asked": 2, "read": 4, "ahead": 9, "away": 1}.items()
    }
    seeds = {"shop/main.asked": ASKED, "shop/main.read": 17}
    tables = ((TableChoice(("shop/main.a*", "shop/main.read"), ("shop/main.away",)),),)
    found = _behind(Position(at(5), tables, places, seeds))
    assert {name: place["scn"] for name, place in found.items()} == {"shop/main.a": 3, "shop/main.read": 4}
    assert [*found] == ["shop/main.a", "shop/main.read"], "the furthest first"


def test_once_over_a_relay_that_is_away_starts_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "databus.yml"
    path.write_text(PIPELINE.format(url="http://127.0.0.1:9") + "run: {start_ms_max: 1000}\n")
    monkeypatch.setattr("databus.pipeline.running._run.spark_start", lambda *_: pytest.fail("Spark was started"))
    with pytest.raises(ServiceUnavailable, match=r"127\.0\.0\.1:9"):
        run(path, once=True)
    found = status_of(path)
    assert found is not None
    assert (found["state"], found["code"]) == ("stopped", 75)
    assert unwell(found)[0].startswith("relay: does not answer: ")
