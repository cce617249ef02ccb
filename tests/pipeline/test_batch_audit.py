"""What a pipeline notes of its batches, and what `databus audit` makes of it."""

import pytest

from databus.core import SourceCheckpoint
from databus.filters import TableChoice
from databus.flow import Counts, RowCounts, StagedBatch
from databus.link import RelayClient
from databus.pipeline import audit, load_pipeline, positions_of, read_batches
from databus.pipeline.comparing._batch_chain import chains
from databus.pipeline.engine import inputs_hash
from databus.pipeline.engine._batch_event import Totals
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.running._batch_reports import BatchReports
from databus.pipeline.telling import _batch_journal
from databus.pipeline.telling._batch_journal import BatchJournal
from databus.places import Position
from databus.plugins import Written
from tests.client.conftest import wait_for
from tests.relay.support import Database, order, published, sale, scripted

QUERY = "outputs/copy/rows@shop"
FILE = """\
name: shop
relay: {{url: '{url}'}}
inputs: {{rows: {{type: databus, tables: [shop/*]}}}}
outputs: {{copy: {{type: files, from: rows, path: "out/{{physical}}/{{table}}"}}}}
"""
DONE = (1 << 40) - 1


def batch(start, end, rows=None, only=(), output="copy", query=QUERY, **more):
    pairs = {"start": [start, DONE], "end": [end, DONE]}
    told = {"query": query, "output": output, "physical": "shop", "only": list(only), "rows": rows or {}}
    return {"event": "advanced", "at_us": 1, "ms": 1.0, "marks": {}, "epoch": 1, **pairs, **told, **more}


WHOLE = (batch(0, 1, {"main.orders": 1}), batch(1, 3, {"main.orders": 2, "main.stock": 1}))


def test_batches_that_follow_each_other_are_whole_and_a_missing_one_is_a_break():
    whole = [batch(0, 3, {"main.orders": 3}), batch(3, 3), batch(3, 8, {"main.orders": 5})]
    (chain,) = chains("copy", whole)
    assert (chain.breaks, chain.rows.total(), chain.end[0]) == ([], 8, 8)
    (broken,) = chains("copy", [whole[0], whole[2], batch(9, 12)])
    assert [(start[0], end[0]) for start, end, _ in broken.breaks] == [(8, 9)]


def test_what_a_killed_process_repeats_counts_once_and_tables_that_catch_up_break_nothing():
    told = [
        batch(0, 3, {"t": 3}),
        batch(0, 3, {"t": 3}),
        batch(1, 3, {"u": 9}, only=["shop/u"]),
        batch(3, 6, {"t": 1}, query="another"),
    ]
    (chain,) = chains("copy", told)
    assert (chain.breaks, chain.rows["t"], chain.repeated, chain.query) == ([], 4, 1, "another")
    (cut,) = chains("copy", told, {"shop": (3, DONE)})
    assert (cut.start[0], cut.rows["t"]) == (3, 1)


def test_an_output_that_repeats_batches_for_another_of_its_lane_lacks_none_of_them(graph):
    """Its ledger stays where it was, ahead of these batches."""
    again = batch(0, 1, counts={"main.orders": {"in": 1, "already": 1}})
    (found,) = audited(graph, *WHOLE, again)
    assert (found.chain.breaks, found.missing, found.surplus) == ([], 0, 0)
    assert found.to_json()["end"] == (3, DONE)
    further = batch(1, 5, {"main.orders": 1}, counts={"main.orders": {"in": 3, "already": 2}})
    assert chains("copy", [*WHOLE, again, further])[0].breaks == []


def test_the_journal_of_batches_is_bounded_for_each_output(tmp_path, monkeypatch):
    monkeypatch.setattr(_batch_journal, "_BYTES_MAX", 5_000)
    journal = BatchJournal(tmp_path)
    for number in range(200):
        journal.take(batch(number, number + 1, {"t": 1}))
        journal.take(batch(number, number + 1, output="other"))
        journal.take({"event": "batch", "output": "copy"})
    found = list(read_batches(tmp_path, "copy"))
    assert found[-1]["end"] == [200, DONE]
    assert "event" not in found[0]
    assert sum(path.stat().st_size for path in (tmp_path / "batches").iterdir()) <= 4 * 5_000
    (tmp_path / "batches").rename(tmp_path / "gone")
    (tmp_path / "batches").write_text("no folder")
    journal.take(batch(200, 201))  # nothing rests on it


@pytest.fixture
def graph(tmp_path):
    """A pipeline over a relay with three transactions, the last of which are four rows."""
    database = Database()
    with scripted(tmp_path / "relay", {"shop": database}) as relay:
        database.add(order(1), order(2), sale(3))
        published(relay, "shop", 3)
        (tmp_path / "databus.yml").write_text(FILE.format(url=relay.url))
        yield load_pipeline(tmp_path / "databus.yml")


def choice_in(graph):
    return {"tables": [[[["shop/*"], []]]], "inputs": inputs_hash(graph, ["inputs.rows"])}


def audited(graph, *told):
    journal = BatchJournal(graph.config.state)
    graph.config.state.mkdir(parents=True)
    (places,) = positions_of(graph.config)
    ledger = Ledger.load(places.ledger, "shop", "copy")
    ledger.take()
    ledger.put("shop", Position(SourceCheckpoint(scn=3), ((TableChoice(("shop/*",)),),)))
    for line in told:
        journal.take({**line, "choice": choice_in(graph)})
    return list(audit(graph, RelayClient(graph.config.relay.url)))


def audited_again(graph, line):
    journal_of(graph).take(line)
    return list(audit(graph, RelayClient(graph.config.relay.url)))


def journal_of(graph):
    graph.config.state.mkdir(parents=True, exist_ok=True)
    return BatchJournal(graph.config.state)


def test_the_rows_of_batches_are_those_of_the_log(graph):
    (found,) = audited(graph, *WHOLE)
    assert (found.log_rows, found.missing, found.is_whole) == (4, 0, True)


def test_rows_that_no_batch_has_are_missing_and_a_ledger_that_is_ahead_is_a_break(graph):
    (found,) = audited(graph, batch(0, 1, {"main.orders": 1}), batch(1, 2, {}))
    assert (found.log_rows, found.missing) == (2, 1)
    assert [(start[0], end[0]) for start, end, _ in found.chain.breaks] == [(2, 3)], "the ledger says 3"
    assert not found.is_whole


def test_rows_that_filters_dropped_are_refused_or_are_there_already_are_no_missing_ones(graph):
    counts = {"in": 2, "dropped": {"filters.f": 1}, "letters": 1}
    (found,) = audited(graph, WHOLE[0], batch(1, 3, {"main.stock": 1}, counts={"main.orders": counts}))
    assert (found.log_rows, found.came, found.is_whole) == (4, 4, True)
    (found,) = audited_again(graph, batch(3, 3, {"main.orders": 3}, counts={"main.orders": {"in": 2}}))
    assert (found.chain.unbalanced, found.is_whole) == ([((3, DONE), (3, DONE), "main.orders", -1)], False)


def test_a_row_that_came_and_is_in_no_count_is_a_break(graph):
    place = SourceCheckpoint(scn=1)
    totals, counts = Totals(), Counts({"main.orders": RowCounts(came=3)})
    written = Written({"main.orders": 1}, already={"main.orders": 1})
    totals.take(StagedBatch("shop", place, place, (), counts=counts), written, 1, 0)
    (found,) = audited(graph, {**batch(0, 1, {}), **totals.to_json()})
    assert [(lost.table, lost.rows) for lost in found.chain.unbalanced] == [("main.orders", 1)]
    assert not found.is_whole


def test_a_range_of_a_table_of_its_own_has_its_rows_and_one_that_is_taken_out_is_a_break(graph):
    behind = {"behind": {"shop/main.stock": [0, DONE]}}
    own = batch(0, 3, {"main.stock": 1}, only=["shop/main.stock"])
    lines = [batch(0, 3, {"main.orders": 3}, **behind), own, batch(3, 3)]
    (found,) = audited(graph, *lines)
    assert (found.log_rows, found.is_whole) == (4, True)
    (broken,) = chains("copy", [lines[0], lines[2]])
    assert broken.breaks == [((0, DONE), (3, DONE), "main.stock")]


def test_while_it_runs_a_pipeline_finds_breaks_and_rows_that_are_in_no_batch(graph):
    told, choice = [], choice_in(graph)
    journal_of(graph).take({**WHOLE[0], "choice": choice})
    with BatchReports(lambda: graph, lambda: graph.config.relay.url, told.append, every_s=0.01) as reports:
        reports.take({**batch(1, 2, {}), "choice": choice})
        wait_for(lambda: told, "the first break")
        reports.take({**batch(3, 4, {}), "choice": choice})
    messages = [each["message"] for each in told]
    assert messages[0] == "1 rows that the log has are in no batch"
    ends = f"from {(2, DONE)} to {(3, DONE)} (SCN, _seq)"
    assert messages[1:] == [f"no batch has the changes of the tables of shop {ends}"]
    assert {(each["event"], each["output"]) for each in told} == {("journal_break", "copy")}


def test_a_relay_that_does_not_answer_leaves_rows_unknown(graph):
    (found,) = audited(graph, *WHOLE)
    assert found.log_rows == 4
    (found,) = audit(graph, None)
    assert (found.log_rows, found.why_unknown, found.is_whole) == (None, "its relay does not run", True)
