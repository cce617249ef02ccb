"""Whether the batches of an output follow each other, table by table. Pure; no I/O.

A main batch is over the tables of an output that are at the same place, from where the one before ended. Tables that
are behind have ranges of their own, which follow each other too, until they have caught up. A gap between an end and a
later start is a break: no batch has it. A killed process may repeat its last batch, which then counts once; an output
goes back to where another of its lane is. Start with `Chain.take`.
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
    """A range that no batch has: of one table, or, without a name, of the tables of main batches."""

    start: Pair
    end: Pair
    table: str = ""


class Unbalanced(NamedTuple):
    """Rows of a table in one batch that are in more or fewer of its counts than came."""

    start: Pair
    end: Pair
    table: str
    rows: int
    """That came and were neither written, dropped, refused nor in the target before; below zero, that did not come."""

    def __str__(self) -> str:
        if self.rows > 0:
            return f"{self.rows:,} rows of {self.table} came, and are neither written, dropped, refused nor were there"
        counted = "are counted as written, dropped, refused or there before"
        return f"{-self.rows:,} rows of {self.table} {counted}, and never came"


@dataclass
class ChainStretch:
    """Ranges that follow each other."""

    start: Pair
    end: Pair
    rows: Counter[str] = field(default_factory=Counter)
    """Rows in them, by table."""
    batches: int = 0
    repeated: int = 0
    _last: tuple[Pair, Mapping[str, int]] | None = None  # where the last range began, and its rows

    def take(self, start: Pair, end: Pair, rows: Mapping[str, int]) -> bool:
        """Take the next range; returns whether it follows. If not, another stretch has to begin with it."""
        if start != self.end:
            if self._last is None or start != self._last[0]:
                return False
            # The writer was killed before it wrote the ledger, so the range is repeated.
            self.rows.subtract(self._last[1])
            self.repeated += 1
        self.batches += 1
        self.rows.update(rows)
        self._last, self.end = (start, dict(rows)), end
        return True

    def settle(self) -> None:
        """Begin to count again from here."""
        self.start, self._last = self.end, None
        self.rows.clear()


class RangeCounts(NamedTuple):
    """Rows of some tables in a range."""

    choice: Choice
    inputs: str
    """A hash of the options of the inputs."""
    start: Pair
    end: Pair
    rows: Mapping[str, int]
    """By table."""
    tables: frozenset[str] | None = None
    """None for all of the choice, except `but`."""
    but: frozenset[str] = frozenset()


@dataclass
class Chain:
    """The batches of an output over one physical source."""

    output: str
    physical: str
    since: Pair = _NOWHERE
    """Where the log begins: what is before cannot be compared."""
    query: str = ""
    start: Pair = _NOWHERE
    end: Pair = _NOWHERE
    """The furthest that it has come to."""
    batches: int = 0
    repeated: int = 0
    written: Counter[str] = field(default_factory=Counter)
    breaks: list[Break] = field(default_factory=list)
    unbalanced: list[Unbalanced] = field(default_factory=list)
    """Batches whose counts do not add up; the first of them."""
    is_counted: bool = True
    """Whether all batches have counts of the rows that they were given."""
    choice: Choice = ()
    inputs: str = ""
    main: ChainStretch | None = None
    """Of the main batches."""
    apart: dict[str, ChainStretch] = field(default_factory=dict)
    """Of tables at other places, by table."""
    ended: list[RangeCounts] = field(default_factory=list)
    """Counts of stretches that ended otherwise than by the next batch."""
    _choice_json: Mapping[str, Any] | None = None  # the choice, as in the journal
    _answered: set[str] = field(default_factory=set)
    """Tables in the middle of a bootstrap's answer, which has places of its own."""

    def take(self, line: Mapping[str, Any]) -> None:
        """Take the next batch, as in the journal."""
        start, end = pair_of(line["start"]), pair_of(line["end"])
        self.query = line.get("query", "")
        rows = self._rows(line, start, end)
        choice = line.get("choice")
        if choice is not None and choice != self._choice_json:
            self._choose(choice)
        behind = {_source(name): pair_of(place) for name, place in line.get("behind", {}).items()}
        if line["only"]:
            for name in map(_source, line["only"]):
                self._own(name, start, end, rows.get(name, 0), is_answer=line.get("is_answer", False))
            return
        if self.main is None:
            self.start = start
        self._together(start, end, rows, behind)
        self.end = max(self.end, end)  # an output repeats batches that another one of its lane lacks

    def _rows(self, line: Mapping[str, Any], start: Pair, end: Pair) -> dict[str, int]:
        counts = line.get("counts", {})
        self.batches += 1
        self.written.update(line["rows"])
        if counts is None:
            self.is_counted = False
            return {}
        for table, count in counts.items():
            known = sum(count.get("dropped", {}).values()) + count.get("letters", 0) + count.get("already", 0)
            lost = count["in"] - known - line["rows"].get(table, 0)
            if lost and len(self.unbalanced) < _BREAKS_MAX:
                self.unbalanced.append(Unbalanced(start, end, table, lost))
        return {**line["rows"], **{table: count["in"] for table, count in counts.items()}}

    def _choose(self, choice_json: Mapping[str, Any]) -> None:
        """From now on there are other tables, or other rows of them: begin to count again."""
        self._end_all()
        choice = choice_from_json(choice_json["tables"])
        self._choice_json, self.choice, self.inputs = choice_json, choice, choice_json["inputs"]
        self.apart = {
            name: stretch for name, stretch in self.apart.items() if chosen_by(choice, f"{self.physical}/{name}")
        }

    def _end_all(self) -> None:
        """Begin to count again."""
        self.ended += self.counted()
        for stretch in (self.main, *self.apart.values()):
            if stretch is not None:
                stretch.settle()

    def _together(self, start: Pair, end: Pair, rows: Mapping[str, int], behind: Mapping[str, Pair]) -> None:
        main = self.main
        counted_rows = {name: count for name, count in rows.items() if name not in self.apart}
        if main is None:
            main = self.main = ChainStretch(start, start)
        repeated = main.repeated
        if not main.take(start, end, counted_rows):
            if start > main.end:
                self._miss(main.end, start)
            self._end_all()
            self.main = main = ChainStretch(start, start)
            main.take(start, end, counted_rows)
        self.repeated += main.repeated - repeated
        for name, stretch in list(self.apart.items()):
            self._join(name, stretch, start, behind.get(name, end), rows.get(name, 0), stays=name in behind)
        for name, place in behind.items():
            if name not in self.apart:
                came = Counter({name: main.rows.pop(name, 0)})
                self.apart[name] = (
                    ChainStretch(main.start, place, came) if place >= start else ChainStretch(place, place)
                )
        if start < self.since:
            self.start = end
            main.settle()

    def _join(self, name: str, stretch: ChainStretch, start: Pair, place: Pair, count: int, *, stays: bool) -> None:
        """Update a table of `apart` after a main batch; place: where it is now."""
        if stays and place == stretch.end:
            return
        if name in self._answered:
            self._answered.discard(name)
            if stays:  # it is still in the middle of an answer, or after one
                self.apart[name] = ChainStretch(place, place)
                return
            stretch = self.apart[name] = ChainStretch(start, start)
        self._add(name, stretch, min(start, place), place, count)

    def _own(self, name: str, start: Pair, end: Pair, count: int, *, is_answer: bool) -> None:
        """Take a range of one table."""
        if self.main is not None:
            self.main.rows.pop(name, None)
        stretch = self.apart.get(name)
        if is_answer or name in self._answered:  # an answer's rows are not those of the log
            self._answered.discard(name)
            stretch = ChainStretch(end, end) if is_answer else ChainStretch(start, start)
            self._answered |= {name} if is_answer else set()
        stretch = self.apart[name] = stretch or ChainStretch(start, start)
        if not is_answer:
            self._add(name, stretch, start, end, count)

    def _add(self, name: str, stretch: ChainStretch, start: Pair, end: Pair, count: int) -> None:
        if stretch.take(start, end, {name: count}):
            if start < self.since:
                stretch.settle()
            return
        if start > stretch.end:
            self._miss(stretch.end, start, name)
        self.ended += self._compared([self._counted_of(name, stretch)])
        stretch = self.apart[name] = ChainStretch(start, start)
        stretch.take(start, end, {name: count})
        if start < self.since:
            stretch.settle()

    def _miss(self, start: Pair, end: Pair, table: str = "") -> None:
        if end > self.since and len(self.breaks) < _BREAKS_MAX:
            self.breaks.append(Break(start, end, table))

    @property
    def behind(self) -> dict[str, Pair]:
        """The tables that are behind the others, and their places."""
        return {name: stretch.end for name, stretch in self.apart.items() if stretch.end < self.end}

    @property
    def rows(self) -> Counter[str]:
        """Rows by table, each once, of what is not settled."""
        return sum((Counter(part.rows) for part in (*self.ended, *self.counted())), Counter[str]())

    def counted(self) -> list[RangeCounts]:
        """What can be compared with the log, of the present stretches."""
        parts = [self._counted_of(name, stretch) for name, stretch in self.apart.items() if name not in self._answered]
        if self.main is not None:
            main = self.main
            parts.append(
                RangeCounts(
                    self.choice, self.inputs, main.start, main.end, Counter(main.rows), None, frozenset(self.apart)
                )
            )
        return self._compared(parts)

    def _compared(self, parts: Iterable[RangeCounts]) -> list[RangeCounts]:
        return [part for part in parts if self.since <= part.start < part.end]

    def _counted_of(self, name: str, stretch: ChainStretch) -> RangeCounts:
        return RangeCounts(
            self.choice, self.inputs, stretch.start, stretch.end, Counter(stretch.rows), frozenset({name})
        )

    def settled(self) -> list[RangeCounts]:
        """What was counted since the last call."""
        self._end_all()
        settled, self.ended = self.ended, []
        at = None if self.main is None else self.main.end
        self.apart = {
            name: stretch for name, stretch in self.apart.items() if stretch.end != at or name in self._answered
        }
        return settled


def chains(output: str, batches: Iterable[Mapping[str, Any]], since: Mapping[str, Pair] | None = None) -> list[Chain]:
    """The chains of an output, from its batches in the order of writing. since: where the logs begin, by source."""
    chain_of: dict[str, Chain] = {}
    for line in batches:
        physical = line["physical"]
        if physical not in chain_of:
            chain_of[physical] = Chain(output, physical, (since or {}).get(physical, _NOWHERE))
        chain_of[physical].take(line)
    return list(chain_of.values())


def pair_of(value: Sequence[int]) -> Pair:
    """A pair, from the journal's form."""
    scn, seq = value
    return int(scn), int(seq)


def _source(name: str) -> str:
    return name.partition("/")[2]
