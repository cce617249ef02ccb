"""What a pipeline notes of its batches, and what `databus audit` makes of it."""

import pytest

from databus.core import SourceCheckpoint
from databus.filters import TableChoice
from databus.link import RelayClient
from databus.pipeline import audit, load_pipeline, positions_of, read_batches
from databus.pipeline.comparing._batch_audit import chains
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.telling import _batch_journal
from databus.pipeline.telling._batch_journal import BatchJournal
from databus.places import Position
from tests.relay.support import Database, order, published, sale, scripted

QUERY = "outputs/copy/rows@shop"
FILE = """\
name: shop
relay: {{url: '{url}'}}
inputs: {{rows: {{type: databus, tables: [shop/*]}}}}
outputs: {{copy: {{type: files, from: rows, path: "out/{{physical}}/{{table}}"}}}}
"""
DONE = (1 << 40) - 1


def batch(start, end, rows=None, only=(), output="copy", query=QUERY):
    pairs = {"start": [start, DONE], "end": [end, DONE]}
    told = {"query": query, "output": output, "physical": "shop", "only": list(only), "rows": rows or {}}
    return {"event": "advanced", "at_us": 1, "ms": 1.0, "marks": {}, "epoch": 1, **pairs, **told}


def test_batches_that_follow_each_other_are_whole_and_a_missing_one_is_a_break():
    whole = [batch(0, 3, {"main.orders": 3}), batch(3, 3), batch(3, 8, {"main.orders": 5})]
    (chain,) = chains("copy", whole)
    assert (chain.breaks, chain.rows.total(), chain.end[0]) == ([], 8, 8)
    (broken,) = chains("copy", [whole[0], whole[2], batch(9, 12)])
    assert [(start[0], end[0]) for start, end in broken.breaks] == [(8, 9)]


def test_what_a_killed_process_repeats_counts_once_and_tables_that_catch_up_break_nothing():
    told = [
        batch(0, 3, {"t": 3}),
        batch(0, 3, {"t": 3}),
        batch(1, 2, {"t": 9}, only=["shop/t"]),
        batch(3, 6, {"t": 1}),
        batch(0, 5, query="another", rows={"u": 2}),
    ]
    first, second = chains("copy", told)
    assert (first.breaks, first.rows.total(), first.repeated) == ([], 4, 1)
    assert (second.query, second.rows.total()) == ("another", 2)
    (cut,) = chains("copy", told[:-1], {"shop": (3, DONE)})
    assert (cut.start[0], cut.rows.total()) == (3, 1)
    assert not chains("copy", [batch(0, 3, {"t": 1}), batch(2, 5, {"t": 1})])[0].is_exact


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


def audited(graph, *told):
    journal = BatchJournal(graph.config.state)
    graph.config.state.mkdir(parents=True)
    (places,) = positions_of(graph.config)
    ledger = Ledger.load(places.ledger, "shop", "copy")
    ledger.take()
    ledger.put("shop", Position(SourceCheckpoint(scn=3), ((TableChoice(("shop/*",)),),)))
    for line in told:
        journal.take(line)
    return list(audit(graph, RelayClient(graph.config.relay.url)))


def test_the_rows_of_batches_are_those_of_the_log(graph):
    rows = [batch(0, 1, {"main.orders": 1}), batch(1, 3, {"main.orders": 2, "main.stock": 1})]
    (chain,) = audited(graph, *rows)
    assert (chain.log_rows, chain.missing, chain.is_whole) == (4, 0, True)


def test_rows_that_no_batch_has_are_missing_and_a_ledger_that_is_ahead_is_a_break(graph):
    (chain,) = audited(graph, batch(0, 1, {"main.orders": 1}), batch(1, 2, {}))
    assert (chain.log_rows, chain.missing) == (2, 1)
    assert [(start[0], end[0]) for start, end in chain.breaks] == [(2, 3)], "the ledger says 3"
    assert not chain.is_whole


def test_a_relay_that_does_not_answer_leaves_rows_unknown(graph):
    rows = [batch(0, 3, {"main.orders": 3, "main.stock": 1})]
    (chain,) = audited(graph, *rows)
    assert chain.log_rows == 4
    (chain,) = audit(graph, None)
    assert (chain.log_rows, chain.why_unknown, chain.is_whole) == (None, "its relay does not run", True)
