"""Whether the batches of an output follow each other, table by table. Pure; no I/O.

A batch is over the tables of an output that stand together, from where the one before ended. Tables that are behind
have ranges of their own, which follow each other too, until they are where the others stand. What lies between an end
and a later beginning was given to no batch: a break. A killed process may repeat its last batch, which counts once.
Start with `Chain.take`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from databus.core import Pair
from databus.places import Choice, choice_from_json, chosen_by

_BREAKS_MAX: Final = 100
_NOWHERE: Final[Pair] = (0, 0)


class Break(NamedTuple):
    """What no batch has: of one table, or, without a name, of all that stand together."""

    start: Pair
    end: Pair
    table: str = ""


@dataclass
class Run:
    """Ranges that follow each other. rows: that came in them, by table."""

    start: Pair
    end: Pair
    rows: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    repeated: int = 0
    _last: tuple[Pair, Mapping[str, int]] | None = None  # where the last range began, and its rows

    def take(self, start: Pair, end: Pair, rows: Mapping[str, int]) -> bool:
        """The next range, if it follows; else another run begins with it."""
        if start != self.end:
            if self._last is None or start != self._last[0]:
                return False
            self.rows.subtract(self._last[1])  # whoever wrote it was killed before the ledger said so
            self.repeated += 1
        self.batches += 1
        self.rows.update(rows)
        self._last, self.end = (start, dict(rows)), end
        return True

    def settle(self) -> None:
        """Forget what was counted up to here."""
        self.start, self._last = self.end, None
        self.rows.clear()


class Counted(NamedTuple):
    """Rows that came of some tables between two places. tables: None for all that were chosen, but `but`."""

    choice: Choice
    inputs: str
    start: Pair
    end: Pair
    rows: Mapping[str, int]
    tables: frozenset[str] | None = None
    but: frozenset[str] = frozenset()


@dataclass
class Chain:
    """The batches of an output over one physical source. since: up to there nothing is compared, nor missed."""

    output: str
    physical: str
    since: Pair = _NOWHERE
    query: str = ""
    start: Pair = _NOWHERE
    end: Pair = _NOWHERE
    batches: int = 0
    repeated: int = 0
    written: Counter[str] = field(default_factory=Counter)
    breaks: list[Break] = field(default_factory=list)
    unbalanced: list[tuple[Pair, Pair]] = field(default_factory=list)
    """Batches that have written more rows of a table than came."""
    is_counted: bool = True
    """Whether all batches say how many rows came."""
    choice: Choice = ()
    inputs: str = ""
    main: Run | None = None
    """Of the tables that stand together."""
    apart: dict[str, Run] = field(default_factory=dict)
    """Those of tables that stood elsewhere meanwhile."""
    ended: list[Counted] = field(default_factory=list)
    """What runs had counted that were ended by something else than the next batch."""
    _said: Mapping[str, Any] | None = None  # as the journal has the choice
    _answered: set[str] = field(default_factory=set)  # tables in the middle of an answer, whose places are its own

    def take(self, line: Mapping[str, Any]) -> None:
        """The next batch, as the journal has it."""
        start, end = pair_of(line["start"]), pair_of(line["end"])
        self.query = line.get("query", "")
        rows = self._rows(line, start, end)
        choice = line.get("choice")
        if choice is not None and choice != self._said:
            self._choose(choice)
        behind = {_source(name): pair_of(place) for name, place in line.get("behind", {}).items()}
        if line["only"]:
            for name in map(_source, line["only"]):
                self._own(name, start, end, rows.get(name, 0), is_answer=line.get("is_answer", False))
            return
        if self.main is None:
            self.start = start
        self._together(start, end, rows, behind)
        self.end = end

    def _rows(self, line: Mapping[str, Any], start: Pair, end: Pair) -> dict[str, int]:
        counts = line.get("counts", {})
        self.batches += 1
        self.written.update(line["rows"])
        if counts is None:
            self.is_counted = False
            return {}
        if any(each.get("already", 0) < 0 for each in counts.values()) and len(self.unbalanced) < _BREAKS_MAX:
            self.unbalanced.append((start, end))
        return {**line["rows"], **{table: each["in"] for table, each in counts.items()}}

    def _choose(self, said: Mapping[str, Any]) -> None:
        """Other tables, or other rows of them, come from now on: what follows is counted by itself."""
        self._end_all()
        choice = choice_from_json(said["tables"])
        self._said, self.choice, self.inputs = said, choice, said["inputs"]
        self.apart = {name: run for name, run in self.apart.items() if chosen_by(choice, f"{self.physical}/{name}")}

    def _end_all(self) -> None:
        """What follows is counted by itself."""
        self.ended += self.counted()
        for run in (self.main, *self.apart.values()):
            if run is not None:
                run.settle()

    def _together(self, start: Pair, end: Pair, rows: Mapping[str, int], behind: Mapping[str, Pair]) -> None:
        main = self.main
        mine = {name: count for name, count in rows.items() if name not in self.apart}
        if main is None:
            main = self.main = Run(start, start)
        repeated = main.repeated
        if not main.take(start, end, mine):
            if start > main.end:
                self._miss(main.end, start)
            self._end_all()
            self.main = main = Run(start, start)
            main.take(start, end, mine)
        self.repeated += main.repeated - repeated
        for name, run in list(self.apart.items()):
            self._join(name, run, start, behind.get(name, end), rows.get(name, 0), stays=name in behind)
        for name, place in behind.items():
            if name not in self.apart:
                came = Counter({name: main.rows.pop(name, 0)})
                self.apart[name] = Run(main.start, place, came) if place >= start else Run(place, place)
        if start < self.since:
            self.start = end
            main.settle()

    def _join(self, name: str, run: Run, start: Pair, place: Pair, count: int, *, stays: bool) -> None:
        """A table that stood elsewhere, after a batch of the others; place: where it stands now."""
        if stays and place == run.end:
            return
        if name in self._answered:
            self._answered.discard(name)
            if stays:  # it stands in the middle of an answer still, or behind it
                self.apart[name] = Run(place, place)
                return
            run = self.apart[name] = Run(start, start)
        self._add(name, run, min(start, place), place, count)

    def _own(self, name: str, start: Pair, end: Pair, count: int, *, is_answer: bool) -> None:
        """A range of a table alone."""
        if self.main is not None:
            self.main.rows.pop(name, None)
        run = self.apart.get(name)
        if is_answer or name in self._answered:  # what is counted in an answer is not what the log has
            self._answered.discard(name)
            run = Run(end, end) if is_answer else Run(start, start)
            self._answered |= {name} if is_answer else set()
        run = self.apart[name] = run or Run(start, start)
        if not is_answer:
            self._add(name, run, start, end, count)

    def _add(self, name: str, run: Run, start: Pair, end: Pair, count: int) -> None:
        if run.take(start, end, {name: count}):
            if start < self.since:
                run.settle()
            return
        if start > run.end:
            self._miss(run.end, start, name)
        self.ended += self._compared([self._counted_of(name, run)])
        run = self.apart[name] = Run(start, start)
        run.take(start, end, {name: count})
        if start < self.since:
            run.settle()

    def _miss(self, start: Pair, end: Pair, table: str = "") -> None:
        if end > self.since and len(self.breaks) < _BREAKS_MAX:
            self.breaks.append(Break(start, end, table))

    @property
    def behind(self) -> dict[str, Pair]:
        """The tables that stand below the others, and where."""
        return {name: run.end for name, run in self.apart.items() if run.end < self.end}

    @property
    def rows(self) -> Counter[str]:
        """That came, by table, each once; of what is not settled."""
        return sum((Counter(each.rows) for each in (*self.ended, *self.counted())), Counter[str]())

    def counted(self) -> list[Counted]:
        """What can be compared with the log of what was not yet ended."""
        found = [self._counted_of(name, run) for name, run in self.apart.items() if name not in self._answered]
        if self.main is not None:
            main = self.main
            found.append(
                Counted(self.choice, self.inputs, main.start, main.end, Counter(main.rows), None, frozenset(self.apart))
            )
        return self._compared(found)

    def _compared(self, found: Iterable[Counted]) -> list[Counted]:
        return [each for each in found if self.since <= each.start < each.end]

    def _counted_of(self, name: str, run: Run) -> Counted:
        return Counted(self.choice, self.inputs, run.start, run.end, Counter(run.rows), frozenset({name}))

    def settled(self) -> list[Counted]:
        """What was counted since this was asked last."""
        self._end_all()
        found, self.ended = self.ended, []
        at = None if self.main is None else self.main.end
        self.apart = {name: run for name, run in self.apart.items() if run.end != at or name in self._answered}
        return found


def chains(output: str, batches: Iterable[Mapping[str, Any]], since: Mapping[str, Pair] | None = None) -> list[Chain]:
    """The chains of an output, of its batches in the order in which they were written. since: by physical source."""
    found: dict[str, Chain] = {}
    for line in batches:
        physical = line["physical"]
        if physical not in found:
            found[physical] = Chain(output, physical, (since or {}).get(physical, _NOWHERE))
        found[physical].take(line)
    return list(found.values())


def pair_of(value: Sequence[int]) -> Pair:
    """A pair, as the journal has it."""
    scn, seq = value
    return int(scn), int(seq)


def _source(name: str) -> str:
    return name.partition("/")[2]
