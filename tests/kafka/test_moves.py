"""Random edits of a pipeline's file and random ends of its runs: each row of the log is in its topic, and once."""

import random

import pytest

from databus.pipeline._handle import Bringing
from tests.kafka.moving import TABLES, Killed, Process, ids_in, log_of, of_tables
from tests.kafka.support import new_prefix

ROWS = 24
ODD_OR_EVEN = (range(0, ROWS + 1, 2), range(1, ROWS + 1, 2))


def name_of(query):
    return f"outputs/topics/{query}"


class Edits:
    """A pipeline's file. queries: by name, what each brings, and the ids of its rows; None for all of them."""

    def __init__(self, dice, *, with_branches):
        self.dice = dice
        self.with_branches = with_branches
        self.queries = self.edit()

    def edit(self):
        if self.dice.random() < 0.3:
            return {name_of(self.dice.choice(["both", "all"])): (of_tables(*TABLES), None)}
        self.queries = {}
        for table in TABLES:
            self._add(table)
        return self.queries

    def _add(self, table):
        alone = Bringing(f"shop/main.{table}")
        if self.with_branches and self.dice.random() < 0.5:
            for names, ids in zip(("pq", "rs"), ODD_OR_EVEN, strict=True):
                self.queries[name_of(f"{self.dice.choice(names)}-{table}")] = alone, ids
        elif self.dice.random() < 0.5:
            self.queries[name_of(f"own-{table}")] = alone, None
        else:
            free = [each for each in map(name_of, ("a", "b", "both")) if each not in self.queries]
            self.queries[self.dice.choice(free)] = of_tables(table), None


class Campaign:
    """read_anew: tables of which a snapshot would have been asked for."""

    def __init__(self, kafka, folder, dice, monkeypatch, *, with_branches):
        self.new_process = lambda bringing: Process(kafka, folder, self.prefix, bringing)
        self.kafka = kafka
        self.prefix = new_prefix()
        self.dice = dice
        self.monkeypatch = monkeypatch
        self.tables = dice.choices(TABLES, k=ROWS)
        self.log = log_of(*self.tables)
        self.edits = Edits(dice, with_branches=with_branches)
        self.read_anew = set()

    def play(self, turns):
        for _ in range(turns):
            self._run({**self.edits.queries})
            if self.dice.random() < 0.8:
                self.edits.edit()
        last = name_of("last")
        process = self.new_process({last: of_tables(*TABLES)})
        self._note_incomplete(process, last)
        process.write(last, self.log, ROWS)

    def _run(self, queries):
        process = self.new_process({name: bringing for name, (bringing, _) in queries.items()})
        names = [*queries]
        if self.dice.random() < 0.7:
            for name in self.dice.sample(names, len(names)):
                self._note_incomplete(process, name)
        with self.monkeypatch.context() as patched:
            for name in self.dice.choices(names, k=self.dice.randint(1, 2 * len(names))):
                self._note_incomplete(process, name)
                if not self._step(process, name, queries[name][1], patched):
                    return

    def _step(self, process, name, ids, patched):
        """Returns whether the run goes on."""
        end = min(ROWS, process.begun_at(name, self.log) + self.dice.randint(0, 5))
        what = self.dice.choice(["write", "write", "write", "pass", "begin", "told", "before", "bucket"])
        if what == "write":
            process.write(name, self.log, end, ids=ids)
        elif what == "pass":
            process.pass_over(name, self.log, end, ids)
        elif what == "told":  # the ledger, once the topic knows of the query's name, or of the rows
            patched.setattr(process.handle, "_put", self._kill)
            try:
                process.write(name, self.log, end, ids=ids)
            except Killed:
                return False
        elif what == "before":
            process.write(name, self.log, end, is_killed=True, ids=ids)
        elif what == "bucket":
            process.write_one_bucket(name, self.log, end, self.dice.randrange(2), ids)
        return what in ("write", "pass")

    def _kill(self, *_):
        raise Killed

    def _note_incomplete(self, process, name):
        process.begin(name)
        self.read_anew |= {each.rpartition(".")[2] for each in process.handle.stream(name).incomplete}

    def judged(self):
        """The rows that are there, as far as no snapshot would bring them again."""
        mine = {number for number, table in enumerate(self.tables, 1) if table not in self.read_anew}
        return [each for each in ids_in(self.kafka, self.prefix) if each in mine], sorted(mine)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 60))]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_there_twice_however_tables_move_and_runs_end(kafka, tmp_path, monkeypatch, seed):
    campaign = Campaign(kafka, tmp_path, random.Random(seed), monkeypatch, with_branches=False)
    campaign.play(9)
    found, expected = campaign.judged()
    assert found == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_however_rows_are_routed_by_whom_and_runs_end(kafka, tmp_path, monkeypatch, seed):
    """Whose rows came how far cannot be told where branches end: some come again."""
    campaign = Campaign(kafka, tmp_path, random.Random(seed), monkeypatch, with_branches=True)
    campaign.play(9)
    found, expected = campaign.judged()
    assert sorted({*found}) == expected
