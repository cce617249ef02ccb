"""What an output does is known from events; it is as well as the worst of its queries."""

import pytest

from databus.pipeline.telling._progress import RunProgress, unwell, worst_backlogs


@pytest.fixture
def progress() -> RunProgress:
    """Of one output with two queries, and one with one."""
    found = RunProgress(["copy", "log"])
    found.expect("outputs/copy/a", ["copy"], [])
    found.expect("outputs/copy/b", ["copy"], [])
    found.expect("outputs/log/a", ["log"], [])
    for query in ("outputs/copy/a", "outputs/copy/b", "outputs/log/a"):
        found.take(said("started", query))
    return found


def said(event: str, query: str = "outputs/copy/a", **more: object) -> dict[str, object]:
    return {"event": event, "query": query, "at_us": 7, **more}


def test_a_failed_query_is_its_outputs_state_although_another_goes_on(progress):
    progress.take(said("failed", "outputs/copy/b", error="SchemaMismatch", message="no such column"))
    progress.take(said("batch", "outputs/copy/a", output="copy", rows=5))
    found = progress.to_json()
    assert (found["copy"]["state"], found["copy"]["message"]) == ("failed", "no such column")
    assert (found["copy"]["rows"], found["log"]["state"]) == (5, "running")
    assert unwell({"outputs": found}) == ["copy: failed: no such column"]


def test_an_output_that_hangs_is_not_well_until_it_answers(progress):
    progress.take({"event": "hanging", "output": "log", "since_us": 5})
    assert progress.to_json()["log"]["state"] == "hanging"
    progress.take({"event": "answered", "output": "log"})
    assert progress.to_json()["log"]["state"] == "running"


def test_a_batch_after_a_retry_makes_it_well_and_the_retry_is_counted(progress):
    progress.take(said("retry", error="DiskFull", message="no room"))
    assert progress.to_json()["copy"]["state"] == "retrying"
    progress.take(said("batch", output="copy", rows=1))
    found = progress.to_json()["copy"]
    assert (found["state"], found["message"], found["retries"]) == ("running", "", 1)


def test_of_many_tables_those_with_most_rows_are_named_and_the_others_counted(progress):
    tables = {f"main.t{number:04}": 1 for number in range(1_500)} | {"main.t1499": 7}
    for _ in range(2):
        progress.take(said("batch", output="copy", physical="shop", rows=1_506, tables=tables))
    found = progress.to_json()["copy"]
    assert (len(found["tables"]), found["tables_more"]) == (1_000, 500)
    assert [found["tables"][0], *found["tables"][-2:]] == ["shop/main.t0000", "shop/main.t0998", "shop/main.t1499"]
    assert progress.to_json()["log"]["tables_more"] == 0


def test_backlogs_add_up_over_queries_and_what_is_not_held_shows():
    one = {"physical": "shop", "rows": 5, "lag_s": 1.5, "held": True, "is_least": False}
    two = {"physical": "shop", "rows": 2, "lag_s": 9.0, "held": True, "is_least": True}
    begun = {"physical": "shop", "rows": 1, "lag_s": None, "held": True, "is_least": False}
    lost = {"physical": "shop", "rows": None, "lag_s": None, "held": False, "is_least": False}
    assert worst_backlogs({"backlog": [one, two]}) == {
        "shop": {"rows": 7, "lag_s": 9.0, "held": True, "is_least": True}
    }
    assert worst_backlogs({"backlog": [begun]})["shop"] == {"rows": 1, "lag_s": None, "held": True, "is_least": False}
    assert worst_backlogs({"backlog": [one, lost, two]})["shop"]["held"] is False
