"""What a pipeline did stays in a bounded file beside its state, and `databus history` shows it."""

import json
import time

from databus.pipeline import read_journal
from databus.pipeline.telling import _journal
from databus.pipeline.telling._journal import FILE, Journal
from tests.commands import databus

NOW_US = time.time_ns() // 1000
ALTER = {"table": "main.orders", "kind": "schema", "pair": [7, 1], "ddl": "ALTER TABLE orders ADD note TEXT"}


def batch(number, output="copy", **more):
    tables = {"tables": {"main.orders": 2}, "rows": 2, "physical": "shop", "changes": []}
    return {"event": "batch", "output": output, "at_us": NOW_US + number, **tables, **more}


def failed(message):
    told = {"query": "q", "outputs": ["copy"], "error": "DiskFull", "message": message}
    return {"event": "failed", "at_us": NOW_US, **told}


def test_history_shows_runs_rows_changes_of_tables_and_errors(tmp_path):
    (tmp_path / "databus.yml").write_text("name: shop\n")
    state = tmp_path / ".databus" / "pipelines" / "shop"
    state.mkdir(parents=True)
    killed, journal = Journal(state), Journal(state)
    killed.take({"event": "running", "at_us": NOW_US - 60_000_000})
    for number in range(5):
        journal.take(batch(number, changes=[ALTER] if number == 3 else []))
        journal.take(batch(number, "hook", tables={}, rows=1, changes=[ALTER] if number == 4 else []))
    journal.take(failed("no room\x1b[2J"))
    journal.take(failed("no room\x1b[2J"))
    journal.take({"event": "stopped", "at_us": NOW_US, "code": 75})
    said = databus("history", "databus.yml", cwd=tmp_path).stdout
    assert [line.split()[-1] for line in said.splitlines()[2:5]] == ["code", "killed", "75"]
    lines = [line.split() for line in said.splitlines()]
    assert ["copy", "5", "shop/main.orders", "10"] in [line[1:] for line in lines]
    assert ["hook", "5", "-", "5"] in [line[1:] for line in lines]
    assert said.count("ALTER TABLE orders ADD note TEXT") == 1
    assert said.count("no room [2J") == 1
    told = databus("history", "--json", cwd=tmp_path).stdout
    assert [json.loads(line) for line in told.splitlines()] == list(read_journal(state))


def test_the_journal_is_bounded_and_goes_on_behind_a_line_that_was_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(_journal, "_BYTES_MAX", 4_000)
    with (tmp_path / FILE).open("w") as file:
        file.write('{"at_us": 1, "eve')
    journal = Journal(tmp_path)
    for number in range(200):
        journal.take(failed(f"message {number}"))
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 8_000
    messages = [event["message"] for event in read_journal(tmp_path)]
    assert messages == [f"message {number}" for number in range(200)][-len(messages) :]
    assert len(messages) > 20


def test_batches_cost_a_line_a_minute_and_a_full_disk_stops_nobody(tmp_path):
    journal = Journal(tmp_path)
    for number in range(1_000):
        journal.take(batch(number * 100_000))
    assert [event["event"] for event in read_journal(tmp_path)] == ["began", "rows"]
    lost = Journal(tmp_path / "gone")
    lost.take(failed("x"))
    assert list(read_journal(tmp_path / "gone")) == []
