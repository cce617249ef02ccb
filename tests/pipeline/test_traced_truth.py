"""Traces against the truth: what is said of each change is what SELECT and the targets say."""

import json
import os
import random
import signal

import pytest
from deltalake import DeltaTable

from databus.link import RelayClient
from databus.pipeline import Verdict, load_pipeline, trace
from databus.sinks import read_delta
from tests.pipeline.projects import Project
from tests.pipeline.test_crash import RUN_S_MAX, start

DEAR = "total_cents > 20000"
SECTIONS = f"""
filters:
  dear: {{type: where, from: shop, tables: [main.orders], where: {DEAR}}}
  cheap: {{type: sql, from: shop, table: main.orders, where: total_cents <= 20000}}
outputs:
  copy: {{type: delta, from: dear, mode: mirror, path: lake/copy}}
  history: {{type: delta, from: shop, mode: history, path: lake/history}}
  lines: {{type: files, from: shop, path: "lines/{{table}}", format: json}}
  rest: {{type: delta, from: cheap, mode: mirror, path: lake/rest}}
"""


def work(project, dice, count):
    """The shop's day, with orders that get other keys and totals."""
    for _ in range(count):
        project.work(3)
        (known,) = zip(*project.select("SELECT id FROM orders"), strict=True)
        mine, new = dice.choice(known), max(known) + 1
        project.execute(
            dice.choice(
                (
                    f"UPDATE orders SET total_cents = {dice.randrange(40_000)} WHERE id = {mine}",
                    f"DELETE FROM orders WHERE id = {mine}",
                    f"UPDATE orders SET id = {new} WHERE id = {mine}",
                )
            )
        )


def in_lines(project):
    files = (project.folder / "lines/orders").glob("*.jsonl")
    told = (json.loads(line) for file in files for line in file.open())
    return {(each["_commit_version"], each["_seq"]) for each in told}


class Truth:
    """What the database and the targets have."""

    def __init__(self, project):
        self.orders = dict(project.select("SELECT id, total_cents FROM orders"))
        self.copies = {}
        for output in ("copy", "rest"):
            found = read_delta(project.folder / "lake" / output / "orders", ["id", "_commit_version", "_seq"])
            self.copies[output] = {row["id"]: (row["_commit_version"], row["_seq"]) for row in found.to_pylist()}
        history = read_delta(project.folder / "lake/history/orders", ["_commit_version", "_seq"]).to_pylist()
        self.history = {(row["_commit_version"], row["_seq"]) for row in history}
        self.lines = in_lines(project)

    def check(self, id_, found):
        """Raise where verdicts of a key's changes are not so."""
        for output, wants in (("copy", lambda total: total > 20_000), ("rest", lambda total: total <= 20_000)):
            fates = [(each.change.pair, {fate.output: fate for fate in each.fates}[output]) for each in found]
            told = [(pair, fate.verdict) for pair, fate in fates if fate.verdict is not Verdict.FILTERED]
            is_there = id_ in self.orders and wants(self.orders[id_])
            assert is_there == (id_ in self.copies[output]), (id_, output)
            assert {verdict for _, verdict in told[:-1]} <= {Verdict.SUPERSEDED}, (id_, output, fates)
            # A row that a snapshot found outside the filter has left by the snapshot's end: nothing was written of it.
            left = [] if is_there else [[Verdict.SUPERSEDED]]
            assert [verdict for _, verdict in told[-1:]] in ([], [Verdict.WRITTEN], *left), (id_, output, fates)
            if is_there:
                assert told[-1][0] == self.copies[output][id_], (id_, output, fates)
        for each in found:
            fates = {fate.output: fate.verdict for fate in each.fates}
            assert (fates["history"], fates["lines"]) == (Verdict.WRITTEN, Verdict.WRITTEN), (id_, each)
            assert each.change.pair in self.history & self.lines


def traced(project, client, id_, spark):
    graph = load_pipeline(project.path)
    return list(trace(graph, client, "main.orders", {"id": str(id_)}, "earliest", lambda: spark))


@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_verdicts_are_those_of_the_database_and_of_the_targets(spark, tmp_path, seed):
    dice, count = random.Random(seed), int(os.environ.get("TRACES", "12"))
    project = Project(tmp_path, SECTIONS, seed=seed)
    _proved(project, dice, count, spark)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("relay_in_thread")
def test_a_thousand_verdicts_over_kills_are_those_of_the_database_and_of_the_targets(spark, tmp_path, seed):
    dice = random.Random(seed)
    project = Project(tmp_path, SECTIONS, seed=seed)
    for point in ("delta.mirror.after_commit:2", "pipeline.batch.after:3", "files.after_rename:2"):
        work(project, dice, 10)
        assert start(project, DATABUS_CRASH_AT=point).wait(RUN_S_MAX) in (-signal.SIGKILL, 0)
    _proved(project, dice, 250, spark)


def _proved(project, dice, count, spark):
    """Each trace has four outputs."""
    work(project, dice, 8)
    ids = [row[0] for row in project.select("SELECT id FROM orders")]
    with project.running(spark) as running:
        work(project, dice, 8)
        client = RelayClient(running.event(event="relay")["url"])
        ids += [row[0] for row in project.select("SELECT id FROM orders")]
        ((first, last),) = project.select("SELECT min(id), max(id) FROM orders")
        for id_, total in ((first, 100), (last, 30_000)):  # each output is given one of them, and is waited for by that
            project.execute(f"UPDATE orders SET total_cents = {total} WHERE id = {id_}")

        def is_done():
            fates = [
                fate
                for id_ in (first, last)
                for each in traced(project, client, id_, spark)[-1:]
                for fate in each.fates
            ]
            return len(fates) == 8 and all(fate.verdict is not Verdict.NOT_YET for fate in fates)

        running.wait_for(is_done, "the last changes")
        truth = Truth(project)
        for id_ in dice.sample(sorted({*ids}), min(count, len({*ids}))):
            truth.check(id_, traced(project, client, id_, spark))
        gone = sorted(truth.copies["copy"])[0]
        DeltaTable(project.folder / "lake/copy/orders").delete(f"id = {gone}")
        fates = {fate.output: fate.verdict for fate in traced(project, client, gone, spark)[-1].fates}
        assert fates["copy"] is Verdict.LOST, fates
