"""What `databus run` shows: at once what is waited for, each source with its reason, each output with its lag."""

from pathlib import Path

import pytest

from databus.cli._remedy import NamedRelay, remedy
from databus.cli._run_view import RunView, source_line
from databus.cli._screen import Meter
from databus.cli.sources import _settled
from databus.core import SourceSuspended
from databus.testing import FakeClock

OWN = NamedRelay("http://127.0.0.1:7", Path("my.yml"))


def state(**more):
    told = {
        "name": "shop", "status": "running", "state": "RUNNING", "message": "", "SCN": 10, "lagMs": None,
        "snapshots": [], "snapshotRows": 0,
    }  # fmt: skip
    return {**told, **more}


def batch(scn, rows=5):
    position = {"scn": scn}
    return {"event": "batch", "output": "copy", "rows": rows, "lag_ms": 3.0, "physical": "shop", "position": position}


def line_of(view):
    (line,) = view.board().lines
    return line


def test_before_anything_has_come_it_says_what_is_waited_for():
    view = RunView(["copy"])
    assert view.board().doing == "reading the configuration"
    assert line_of(view).state == "waits to start"
    view.take({"event": "doing", "what": "starting Spark"})
    assert view.board().doing == "starting Spark"
    view.take({"event": "started", "outputs": ["copy"]})
    assert line_of(view).state == "waits for the first batch"
    view.take({"event": "ended", "query": "q", "outputs": ["copy"]})
    assert line_of(view).state == "has all that there was"


def test_an_output_is_behind_by_what_the_relay_holds_and_it_does_not():
    view = RunView(["copy"])
    assert line_of(view).behind == "-"
    view.sources([state(SCN=10)], "")
    view.take(batch(7))
    assert (line_of(view).state, line_of(view).behind) == ("running", "3 transactions")
    view.take(batch(10))
    assert line_of(view).behind == "0 transactions"


def test_an_output_that_has_written_and_goes_on_does_not_wait_for_a_first_batch():
    view = RunView(["copy"])
    view.take(batch(7))
    view.take({"event": "paused", "outputs": ["copy"]})
    view.take({"event": "started", "outputs": ["copy"]})
    assert (line_of(view).rows, line_of(view).state) == (5, "running")


def test_an_output_that_fails_or_waits_says_why():
    view = RunView(["copy"])
    view.take({"event": "retry", "outputs": ["copy"], "wait_ms": 4000, "message": "no room"})
    assert line_of(view).state == "tries again in 4 s: no room"
    view.take({"event": "failed", "outputs": ["copy"], "message": "no such column"})
    assert line_of(view).state == "failed: no such column"


def test_a_source_says_why_it_is_not_captured_and_how_it_goes_on():
    line = source_line(state(status="suspended", message="Access denied for user 'x'"))
    assert line.state == "suspended"
    assert "Access denied for user 'x'" in line.detail
    assert "remove the reason, then: databus sources resume shop" in line.detail
    assert source_line(state(status="initializing", message="connecting: compiling")).detail == "connecting: compiling"


@pytest.mark.parametrize(
    ("more", "relay", "typed"),
    [
        ({"remedy": "resume"}, OWN, "remove the reason, then: databus sources resume shop --relay http://127.0.0.1:7"),
        (
            {"remedy": "position set"},
            OWN,
            "stop the pipeline, run: databus position set my.yml shop latest --resnapshot",
        ),
        (
            {"remedy": "position set", "file": "/etc/relay one.yml"},
            NamedRelay("http://db:11115", None, Path("token")),
            "stop the relay, run: databus position set '/etc/relay one.yml' shop latest --resnapshot",
        ),
        ({"remedy": "skip"}, OWN, "stop the pipeline, run: databus skip my.yml shop --resnapshot"),
        ({"remedy": None}, OWN, "do what the reason says, and start the pipeline again"),
        (
            {"status": "paused"},
            NamedRelay("http://db:11115", None, Path("token")),
            "to continue capture: databus sources resume shop --relay http://db:11115 --token-file token",
        ),
        ({"status": "retrying"}, OWN, ""),
    ],
)
def test_what_to_do_fits_the_reason_and_is_what_has_to_be_typed(more, relay, typed):
    assert remedy(state(**{"status": "suspended", **more}), relay).partition(" (its tables")[0] == typed


def test_a_source_that_is_not_captured_says_since_when_as_one_that_is():
    assert source_line(state(lagMs=0.0)).detail == "captured up to now"
    assert "captured up to 3,600.0 s ago" in source_line(state(status="suspended", lagMs=3_600_000.0)).detail


def test_the_view_knows_where_its_own_relay_answers():
    view = RunView(["copy"], NamedRelay("", Path("my.yml")))
    view.take({"event": "relay", "url": "http://127.0.0.1:7"})
    view.sources([state(status="suspended", message="no", remedy="resume")], "")
    assert "databus sources resume shop --relay http://127.0.0.1:7" in view.board().sources[0].detail


def test_latencies_are_those_of_the_last_minute():
    clock = FakeClock()
    meter = Meter(clock=clock)
    for _ in range(100):
        meter.add(1, 90_000.0)
    clock.advance_ms(61_000)
    meter.add(1, 5.0)
    assert (meter.percentiles(), meter.rows) == ("5.0 / 5.0 ms", 101)
    clock.advance_ms(61_000)
    assert meter.percentiles() == "-"


def test_a_snapshot_says_how_far_it_is():
    line = source_line(state(snapshots=["shop.orders"], snapshotRows=12345))
    assert "reading shop.orders: 12,345 rows so far" in line.detail


def test_a_relay_that_does_not_answer_is_shown_beside_what_was_last_known():
    view = RunView(["copy"])
    view.sources([state()], "")
    view.sources([], "the relay at http://127.0.0.1:1 does not answer: Connection refused")
    shown = view.board().sources
    assert [each.name for each in shown] == ["shop", "relay"]
    assert "Connection refused" in shown[1].detail


def test_stopping_is_said_at_once_and_then_what_is_waited_for():
    view = RunView(["copy"])
    said = view.take({"event": "stopping", "why": "SIGINT", "waits_for": "starting Spark"})
    assert said == "stopping: SIGINT; starting Spark has to end first"
    view.take({"event": "doing", "what": "waiting for the batch that copy is writing"})
    assert "waiting for the batch that copy is writing" in view.board().doing
    assert "a second Ctrl-C does not wait" in view.board().doing
    assert "copy" in view.take({"event": "stopped", "failed": [], "abandoned": ["copy"], "cut_off": [], "reasons": []})


def test_an_entry_that_no_table_fits_stands_beside_its_source():
    line = source_line(state(missingTables=["no table fits main.ordrs yet; did you mean main.orders?"]))
    assert "no table fits main.ordrs yet; did you mean main.orders?" in line.detail


def test_the_rows_of_each_output_are_counted_for_the_end_of_a_run():
    view = RunView(["audit", "copy"])
    view.take(batch(7, rows=1_200))
    view.take(batch(8))
    assert view.written() == "rows in this run: audit 0, copy 1,205"


def test_a_resume_that_cannot_help_says_what_does():
    class Relay:
        def states(self):
            more = {
                "status": "suspended",
                "message": "it was purged",
                "remedy": "position set",
                "file": "/etc/relay.yml",
            }
            return [state(**more)]

    with pytest.raises(SourceSuspended) as raised:
        _settled(Relay(), ["shop"], "running", {"suspended"}, 1.0)
    assert "databus position set /etc/relay.yml shop latest --resnapshot" in str(raised.value)


def test_what_is_for_the_journal_of_batches_is_no_line_for_people():
    view = RunView(["copy"])
    assert view.take({"event": "advanced", "query": "outputs/copy/shop@shop", "output": "copy", "ms": 12.0}) == ""
