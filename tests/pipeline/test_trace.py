"""What `databus trace` says of each change of a row, against what log, ledger, journal and target have."""

import itertools
import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from databus.core import ChangeType, InputError, SourceCheckpoint, UnknownSource
from databus.filters import TableChoice
from databus.link import RelayClient
from databus.pipeline import Verdict, load_pipeline, positions_of, trace
from databus.pipeline.comparing._trace import Change, Evidence, verdict_of
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.telling._batch_journal import BatchJournal
from databus.places import Position
from databus.sinks.files._loose_files import LooseName
from tests.commands import databus
from tests.pipeline.test_batch_audit import batch
from tests.relay.support import Database, order, published, scripted

FILE = """\
name: shop
relay: {{url: '{url}'}}
inputs:
  rows: {{type: databus, tables: [shop/main.orders]}}
  stock: {{type: databus, tables: [shop/main.stock]}}
  some: {{type: databus, tables: [shop/main.orders], where: id > 4}}
filters:
  late: {{type: where, from: rows, where: id > 5}}
  later: {{type: where, from: late, where: id > 6}}
  typed: {{type: sql, from: rows, table: main.orders, where: id <> 3}}
outputs:
  copy: {{type: delta, from: rows, mode: mirror, path: copy}}
  few: {{type: delta, from: later, mode: mirror, path: few}}
  stock: {{type: delta, from: stock, mode: mirror, path: stock}}
  lines: {{type: files, from: rows, path: "lines/{{table}}"}}
  some: {{type: delta, from: some, mode: mirror, path: some}}
  typed: {{type: delta, from: typed, mode: mirror, path: typed}}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Seven orders in the log. `copy` has come to the sixth, and its target lacks the fourth."""
    folder = tmp_path_factory.mktemp("trace")
    database = Database()
    with scripted(folder / "relay", {"shop": database}) as relay:
        database.add(*(order(scn, f"it's {scn}") for scn in range(1, 8)))
        published(relay, "shop", 7)
        (folder / "databus.yml").write_text(FILE.format(url=relay.url))
        graph = load_pipeline(folder / "databus.yml")
        for places in positions_of(graph.config):
            ledger = Ledger.load(places.ledger, "shop", places.output)
            ledger.take()
            scn = 7 if places.output == "lines" else 6
            ledger.put("shop", Position(SourceCheckpoint(scn=scn), ((TableChoice(("shop/*",)),),)))
        graph.config.state.mkdir(parents=True)
        journal = BatchJournal(graph.config.state)
        journal.take(batch(4, 6, {"main.orders": 2}))
        for start, end, rows, dropped in ((2, 4, 1, 1), (5, 6, 0, 1)):
            counts = {"main.orders": {"in": rows + dropped, "dropped": {"filters.typed": dropped}}}
            journal.take(batch(start, end, {"main.orders": rows} if rows else {}, output="typed", counts=counts))
        kept = [1, 2, 3, 5, 6]
        columns = {"id": kept, "name": [f"it's {scn}" for scn in kept], "_commit_version": kept, "_seq": [1] * 5}
        write_deltalake(folder / "copy" / "orders", pa.table(columns))
        write_deltalake(folder / "some" / "orders", pa.table(columns))
        write_deltalake(
            folder / "typed" / "orders", pa.table(columns).slice(0, 4).filter(pa.array([True, True, False, True]))
        )
        name = LooseName((1, 1), (7, 1), 0, "jsonl")
        told = [json.dumps({"_commit_version": scn, "_seq": 1}) for scn in (1, 2, 3, 4, 6, 7)]
        (folder / "lines" / "orders").mkdir(parents=True)
        (folder / "lines" / "orders" / str(name)).write_text("\n".join(told))
        yield graph, RelayClient(relay.url)


def fates(world, id_, **more):
    graph, client = world
    (found,) = list(trace(graph, client, "main.orders", {"id": str(id_), **more}, "earliest"))
    return found.change, {each.output: each for each in found.fates}


def test_a_change_is_written_filtered_not_yet_and_not_for_an_output(world):
    change, found = fates(world, 6)
    assert (change.pair, change.after["name"], change.commit_us % 100, change.txid) == ((6, 1), "it's 6", 6, "t6")
    assert found["copy"].verdict is Verdict.WRITTEN
    assert found["copy"].batch == ((4, (1 << 40) - 1), (6, (1 << 40) - 1))
    assert (found["few"].verdict, found["few"].why) == (Verdict.FILTERED, "by filters.later")
    assert found["stock"].verdict is Verdict.NOT_FOR_IT
    assert (found["lines"].verdict, found["lines"].batch) == (Verdict.WRITTEN, None)
    assert fates(world, 5)[1]["lines"].verdict is Verdict.LOST
    assert (found["some"].verdict, fates(world, 4)[1]["some"].why) == (Verdict.WRITTEN, "by inputs.some")
    assert fates(world, 5)[1]["few"].why == "by filters.late"
    last = fates(world, 7)[1]
    assert (last["copy"].verdict, last["few"].verdict) == (Verdict.NOT_YET, Verdict.NOT_YET)


def test_a_row_that_somebody_has_deleted_from_the_target_is_lost(world):
    assert fates(world, 4)[1]["copy"].verdict is Verdict.LOST
    file = world[0].config.path
    said = databus("trace", file, "orders", "id=4", "--since", "earliest")
    assert said.returncode == 1, said.stderr
    assert "copy: lost: it has come to 6" in said.stdout
    assert databus("trace", file, "orders", "id=3", "--since", "earliest").returncode == 0
    nothing = databus("trace", file, "orders", "id=99", "--scn", "2")
    assert (nothing.returncode, "no change of this row" in nothing.stdout) == (0, True)
    assert databus("trace", file, "orders", "id").returncode == 2


def test_what_cannot_be_traced_says_why(world):
    graph, client = world
    for table, key, why in (
        ("main.nothing", {"id": "1"}, "no one table"),
        ("main.orders", {"name": "x"}, "the key of main.orders is id"),
        ("main.orders", {"id": "1 OR 1 = 1"}, "is not of type int64"),
        ("main.orders", {"no": "1"}, "has no column no"),
    ):
        with pytest.raises((InputError, UnknownSource), match=why):
            list(trace(graph, client, table, key, "earliest"))
    assert len(list(trace(graph, client, "orders", {"id": "3", "name": "it's 3"}, "earliest"))) == 1


def test_where_typed_filters_are_not_tried_all_else_that_is_known_is_said(world):
    """Their dropped and written rows are counted in the journal, not named; the target may have the change itself."""

    def typed(id_):
        found = fates(world, id_)[1]["typed"]
        return found.verdict, found.why

    assert typed(5) == (Verdict.WRITTEN, "the journal no longer has its batch"), "its target has it"
    assert typed(6) == (Verdict.FILTERED, "by filters.typed: of the 1 rows of its batch none passed")
    assert typed(7)[0] is Verdict.NOT_YET
    why = "filters.typed was not tried, for which Spark is needed (`--spark`)"
    assert typed(4) == (Verdict.UNKNOWN, f"{why}; filters dropped 1 of the 2 rows of its batch")
    assert fates(world, 4)[1]["typed"].batch is not None
    file = world[0].config.path
    said = databus("trace", file, "orders", "id=4", "--since", "earliest").stdout
    assert f"databus trace {file} orders id=4 --since earliest --spark" in said
    assert "--spark" not in databus("trace", file, "orders", "id=5", "--since", "earliest").stdout


def truth(pair, kind, done, later, there):
    """What a mirror that is as it should be has of a row, said in another way than the code does."""
    history = [(pair, kind), *later]
    last = [each for each in history if each[0] <= done][-1:]
    if pair > done:
        return Verdict.NOT_YET
    (end, last_kind) = last[0]
    right = [] if last_kind is ChangeType.DELETE else [end]
    if [each for each in there if each <= done] != right:
        return Verdict.LOST
    return Verdict.WRITTEN if end == pair else Verdict.SUPERSEDED


def test_verdicts_are_those_of_every_small_history():
    """Each way in which two changes, a ledger and a target can be: what is said is what a mirror has to be."""
    kinds = (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE, ChangeType.DELETE)
    count = 0
    for kind, other, done in itertools.product(kinds, (None, *kinds), (1, 2, 3)):
        later = [] if other is None or done < 3 else [((3, 1), other)]
        for there in ([], [(2, 1)], [(3, 1)], [(1, 1)]):
            if any(pair > (done, 9) for pair in there):
                continue  # a target that is ahead of its ledger, between two writes
            change = Change((2, 1), kind, 0, "", None, None)
            found = verdict_of("copy", change, Evidence((done, 9), later, there)).verdict
            if there == [(3, 1)] and not later:
                continue  # a later change that the scan did not see
            assert found is truth((2, 1), kind, (done, 9), later, there), (kind, later, done, there)
            count += 1
    assert count > 50
    change = Change((2, 1), ChangeType.INSERT, 0, "", None, None)
    letters = {(2, 1): "too long"}
    assert verdict_of("hook", change, Evidence((3, 9), letters=letters)).verdict is Verdict.DEAD_LETTER
    assert verdict_of("log", change, Evidence((3, 9), (), [], keeps_all=True)).verdict is Verdict.LOST
    assert verdict_of("log", change, Evidence((3, 9), (), [(2, 1)], keeps_all=True)).verdict is Verdict.WRITTEN
