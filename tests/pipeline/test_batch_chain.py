"""Chains of batches: none that is whole is called broken, and what is taken out of a journal is found."""

import random
from collections import Counter

import pytest

from databus.core import SEQ_DONE
from databus.pipeline.comparing._batch_chain import chains
from databus.places import chosen_by

TABLES = ("a", "b", "c")
CHOICE = {"tables": [[[["shop/*"], []]]], "inputs": "x"}


def pair(scn):
    return [scn, SEQ_DONE] if scn else [0, 0]


class World:
    """A log, and an output that is written from it, as the engine does: what it notes is in `lines`."""

    def __init__(self, dice):
        self.dice = dice
        self.log = [dice.choice(TABLES) for _ in range(400)]  # the table of each SCN's row
        self.at, self.behind, self.lines = 0, {}, []
        self.choice = CHOICE
        self.going_back = 0  # the last line at which a table was made anew

    def rows(self, start, end, names):
        return Counter(name for name in self.log[start:end] if name in names)

    def line(self, start, end, names, only=()):
        rows = self.rows(start, end, names)
        told = {"physical": "shop", "query": "q", "choice": self.choice, "only": [f"shop/{each}" for each in only]}
        dropped = {name: {"in": count, "dropped": {"filters.f": 1}} for name, count in rows.items() if count % 2}
        written = {name: count - (count % 2) for name, count in rows.items()}
        behind = {f"shop/{name}": pair(place) for name, place in self.behind.items()}
        ends = {"start": pair(start), "end": pair(end), "behind": behind}
        self.lines.append({**told, **ends, "rows": written, "counts": dropped})

    def together(self):
        start, end = self.at, min(self.at + self.dice.randrange(5), len(self.log))
        names = {*self.names} - {*self.behind}
        counted = self.rows(start, end, names)
        if names and end > start and self.dice.random() < 0.1:  # one fails in the middle
            name = self.dice.choice(sorted(names))
            self.behind[name] = self.dice.randrange(start, end)
            counted[name] = self.rows(start, self.behind[name], {name})[name]
        self.at = end
        self.line(start, end, names)
        self.lines[-1]["rows"], self.lines[-1]["counts"] = dict(counted), {}

    @property
    def names(self):
        return [name for name in TABLES if self.choice is CHOICE or name != "c"]

    def alone(self):
        if not self.behind:
            return
        start = min(self.behind.values())
        mine = [name for name, place in self.behind.items() if place == start]
        end = min([start + self.dice.randrange(1, 9), self.at, *(p for p in self.behind.values() if p > start)])
        for name in mine:
            self.behind[name] = end
        self.behind = {name: place for name, place in self.behind.items() if place < self.at}
        self.line(start, end, mine, only=mine)

    def killed(self):
        before = self.at, dict(self.behind)
        self.together()
        if self.dice.random() < 0.7:
            self.at, self.behind = before

    def step(self):
        match self.dice.randrange(12):
            case 0:
                self.killed()
            case 1:
                self.behind[self.dice.choice(self.names)] = 0
                self.going_back = len(self.lines)
            case 2 if self.dice.random() < 0.2:
                self.choice = {"tables": [[[["shop/*"], ["shop/c"]]]], "inputs": "x"}
                self.behind.pop("c", None)
            case 3 | 4 | 5:
                self.alone()
            case _:
                self.together()


def wrong_in(world, lines):
    """What the chain says is not as in the log."""
    (chain,) = chains("copy", lines)
    found = [f"break {each}" for each in chain.breaks]
    for each in (*chain.ended, *chain.counted()):
        names = {name for name in TABLES if chosen_by(each.choice, f"shop/{name}")}
        names = names - each.but if each.tables is None else names & each.tables
        wanted = world.rows(each.start[0], each.end[0], names)
        found += [f"{each}: {name}" for name in names if each.rows.get(name, 0) != wanted[name]]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_history_that_is_whole_is_called_whole_and_a_batch_that_is_taken_out_is_a_break(seed):
    world = World(random.Random(seed))
    for _ in range(40):
        world.step()
    world.together()
    assert wrong_in(world, world.lines) == []
    broken = 0
    for number in range(world.going_back + 1, len(world.lines) - 1):
        line, others = world.lines[number], [*world.lines[:number], *world.lines[number + 1 :]]
        is_repeated = any((each["start"], each["only"]) == (line["start"], line["only"]) for each in others)
        is_left_out = "shop/c" in line["only"] and world.choice is not CHOICE
        if line["start"] == line["end"] or is_repeated or is_left_out:
            continue
        assert wrong_in(world, others), (number, line)
        broken += 1
    assert broken or world.going_back > len(world.lines) // 2


def test_what_is_older_than_the_log_is_neither_compared_nor_missed():
    def line(start, end, **rows):
        return {"physical": "shop", "start": pair(start), "end": pair(end), "only": [], "rows": rows, "choice": CHOICE}

    (chain,) = chains("copy", [line(0, 2, a=2), line(4, 6, a=2), line(6, 9, a=1)], {"shop": (6, SEQ_DONE)})
    assert (chain.breaks, dict(chain.rows)) == ([], {"a": 1})
    (chain,) = chains("copy", [line(0, 2, a=2), line(4, 6, a=2)])
    assert [(each.start[0], each.end[0]) for each in chain.breaks] == [(2, 4)]


def test_a_table_in_the_middle_of_an_answer_is_compared_from_its_end_on():
    """An answer of a bootstrap service has places of its own."""
    told = {"physical": "shop", "rows": {"a": 3}, "choice": CHOICE}
    first = {**told, "start": pair(0), "end": pair(9), "only": [], "behind": {"shop/b": pair(0)}, "rows": {}}
    alone = {**told, "only": ["shop/b"], "rows": {"b": 3}}
    answer = [{**alone, "start": pair(0), "end": [5, 7], "is_answer": True}]
    answer.append({**alone, "start": [5, 9], "end": [6, 1], "is_answer": True})
    last = {**alone, "start": [6, SEQ_DONE], "end": pair(9)}
    (chain,) = chains("copy", [first, *answer, last, {**told, "start": pair(9), "end": pair(12), "only": []}])
    assert chain.breaks == []
    assert {(each.start[0], each.end[0]) for each in (*chain.ended, *chain.counted())} == {(6, 12), (0, 12)}
