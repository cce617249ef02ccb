"""Where the tables of an output stand in one physical source: one place for most, and the few that stand elsewhere.

    {"at": {"scn": 17, ...}, "tables": [[[["shop/*"], []]]], "except": [[{"scn": 9, ...}, ["shop/main.stock"]]],
     "seeds": {"shop/main.users": "asked"}}

`at` is where the tables stand that `tables` names, and says nothing of any other: a table that was never chosen has no
place, and begins where the options say. A table that is taken away keeps its place among the exceptions while `at` goes
on; given back, it is behind, and catches up. A table that is being read by a snapshot has no other place: it rides with
the others, and `seeds` says that its older rows are still to come. No name of a query, a filter or an input is here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Self

from databus.core import ControlKind, Pair, SourceCheckpoint, split_physical
from databus.filters import Selection, TableChoice, patterns_of, selects
from databus.places._held import Noted
from databus.schema import NEEDS_SNAPSHOT
from databus.wire import is_inside_answer

ASKED: Final = "asked"
"""A seed: the snapshot that brings the table's older rows was asked for, and has not begun."""
GAP: Final = "gap"
"""The same, where the target has rows from before some that the log has lost: a history gets the gap first."""
EXCEPT_MAX: Final = 2_000
"""Tables that stand elsewhere. Of those that are taken away beyond that nothing is known when they are given back."""
_NOTHING: Final[Pair] = (0, 0)

Choice = tuple[Selection, ...]
"""Tables, by selections of which any lets a table through."""
Seed = str | int
"""`ASKED`, `GAP`, or the generation of the snapshot whose begin the output was given."""


@lru_cache(maxsize=1 << 14)
def chosen_by(choice: Choice, name: str) -> bool:
    """Whether the table of this full name is among them."""
    return any(selects(selection, name) for selection in choice)


def patterns_in(choice: Choice) -> list[str]:
    """Patterns that all of them match."""
    return list(dict.fromkeys(pattern for selection in choice for pattern in patterns_of(selection)))


def read_by(choice: Choice, but: Collection[str] = ()) -> Callable[[str], bool]:
    """Whether a batch over these tables, but for some, has a table of a full name."""
    return lambda name: name not in but and chosen_by(choice, name)


def seed_after(seed: Seed | None, kind: ControlKind, body: Mapping[str, Any]) -> Seed | None:
    """What is left of a table's seed behind a control: nothing, once all of its snapshot was given, or nothing older
    is left to read. A change of its schema that changes values unseen begins one: the relay reads the table again, and
    a snapshot that was open has no end.
    """
    if kind is ControlKind.SCHEMA and int(body.get("class", 1)) >= NEEDS_SNAPSHOT:
        return ASKED
    if seed is None or kind in (ControlKind.TRUNCATE, ControlKind.DROP):
        return None
    if kind is ControlKind.SNAPSHOT_BEGIN:
        return int(body["generation"])
    is_whole = body.get("complete", False) or body.get("as_configured", False)
    if kind is ControlKind.SNAPSHOT_END and body.get("generation") == seed:
        return None if is_whole else ASKED  # that was a part: what was asked for is still to come
    return seed


@dataclass(frozen=True)
class Position:
    """Of one output and physical source. Tables are named in full."""

    at: SourceCheckpoint | None = None
    """Where the tables of `tables` stand that are no exceptions; None before the first batch."""
    tables: Choice = ()
    places: Mapping[str, SourceCheckpoint] = field(default_factory=dict)
    """The exceptions."""
    seeds: Mapping[str, Seed] = field(default_factory=dict)
    """Tables whose older rows come with a snapshot that has not ended."""
    ways: Mapping[str, str] = field(default_factory=dict)
    """By which way the rows of a table come; in the ledger alone."""
    marks: Mapping[str, Noted] = field(default_factory=dict)
    """What the target said of a table after the last batch that wrote it; in the ledger alone."""

    def place(self, name: str) -> SourceCheckpoint | None:
        """Where a table stands; None where nothing is known of it."""
        elsewhere = self.places.get(name)
        if elsewhere is not None or self.at is None:
            return elsewhere
        return self.at if chosen_by(self.tables, name) else None

    def done(self, name: str) -> Pair:
        """Up to where the changes of a table are in the target."""
        place = self.place(name)
        return _NOTHING if place is None else place.pair

    @property
    def known(self) -> set[str]:
        """The tables that it knows by name."""
        return {*self.places, *self.seeds, *self.ways, *self.marks}

    @property
    def uuid(self) -> str:
        """The database; empty where no place says it."""
        return next((place.uuid for place in (self.at, *self.places.values()) if place and place.uuid), "")

    @property
    def last_written(self) -> Pair | None:
        """The end of the last batch of the tables that stand together, where their target stands by all means; None
        where nothing was written.
        """
        pairs = [noted.pair for name, noted in self.marks.items() if name not in self.places]
        return None if self.at is None or not pairs else min(max(pairs), self.at.pair)

    def behind(self, start: Pair) -> dict[str, SourceCheckpoint]:
        """The tables that stand below where a batch begins, which therefore is not for them; and where they stand.
        Those in the middle of an answer of a bootstrap service do, whatever its pairs: they lack the rest of it.
        """
        return {name: place for name, place in self.places.items() if place.pair < start or is_inside_answer(place)}

    def least(self, choice: Choice) -> SourceCheckpoint | None:
        """The lowest place of some tables, of those that have one; None where none has."""
        places = [] if self.at is None else [self.at]
        places += [place for name, place in self.places.items() if chosen_by(choice, name)]
        return min(places, key=_pair, default=None)

    def refusing(self, names: Collection[str]) -> Self:
        """The same where some tables cannot be taken: nothing is known of where they stand, and once they can be taken
        they are read by a snapshot, behind the rows that could not. Those are a gap behind what is there.
        """
        places = {name: place for name, place in self.places.items() if name not in names}
        return replace(self, places=places, seeds={**self.seeds, **dict.fromkeys(names, GAP)})

    def choosing(self, choice: Choice, there: Collection[str]) -> Self:
        """The same where `at` speaks of other tables. Of those that there are, the ones that are taken away keep their
        places; of the ones that are new nothing is said: who knows where they stand has them among the exceptions.
        """
        if self.at is None or choice == self.tables:
            return replace(self, tables=choice)
        names = {*there, *self.known}
        left = {name for name in names if chosen_by(self.tables, name) and not chosen_by(choice, name)} - {*self.places}
        if len(left) + len(self.places) > EXCEPT_MAX:
            left = set()
        return replace(self, tables=choice, places={**self.places, **dict.fromkeys(left, self.at)})

    def holding(self, names: Collection[str]) -> Self:
        """The same where some tables stay where they are when `at` goes on: what is written next is not of them."""
        places = {name: place for name in names if (place := self.place(name)) is not None}
        return replace(self, places={**self.places, **places})

    def reached(self, end: SourceCheckpoint, read: Callable[[str], bool]) -> Self:
        """The same once a batch over the tables of `at` was written up to its end. read: whether it had a table; others
        stay where they are, and so does one that stands above.
        """
        at = end if self.at is None or end.pair >= self.at.pair else self.at
        places = {
            name: end if read(name) and place.pair < end.pair else place
            for name, place in self.places.items()
            if not (read(name) and place.pair <= at.pair <= end.pair)
        }
        return replace(self, at=at, places=places)

    def moved(self, name: str, to: SourceCheckpoint) -> Self:
        """The same where one table has come to a place of its own. A snapshot that is open there is one that `at` does
        not know of: the table is whole when that has ended.
        """
        places = {other: place for other, place in self.places.items() if other != name}
        is_there = self.at is not None and to.pair == self.at.pair and chosen_by(self.tables, name)
        generation = to.snapshots.get(_source(name))
        seeds = {**self.seeds, name: generation} if generation and name not in self.seeds else self.seeds
        return replace(self, places=places if is_there else {**places, name: to}, seeds=seeds)

    def normal(self) -> Self:
        """The same without exceptions that are none: the tables that stand where the others do."""
        at = self.at
        kept = {
            name: place
            for name, place in self.places.items()
            if at is None or place.pair != at.pair or not chosen_by(self.tables, name)
        }
        return replace(self, places=kept)

    def seeded(self, seeds: Mapping[str, Seed | None]) -> Self:
        """The same with other seeds of some tables; with None of none."""
        merged = {**self.seeds, **seeds}
        return replace(self, seeds={name: seed for name, seed in merged.items() if seed is not None})

    def reading(self, names: Iterable[str], at: SourceCheckpoint | None = None, seed: Seed = ASKED) -> Self:
        """The same where tables are to be read by a snapshot, and ride with the others, or stand at a place that is
        given. A snapshot that has begun already does not count, for what it read before went elsewhere; a gap that was
        not told does.
        """
        names = set(names)
        sources = {_source(name) for name in names}

        def unread(place: SourceCheckpoint) -> SourceCheckpoint:
            left = {name: generation for name, generation in place.snapshots.items() if name not in sources}
            return replace(place, snapshots=left)

        own, rides = self.at, {name for name in names if chosen_by(self.tables, name)} if self.at is not None else set()
        at = at or own
        places = {name: place for name, place in self.places.items() if name not in names}
        if at is not None:
            places |= dict.fromkeys(names - rides, unread(at))
        seeds = {**self.seeds, **{name: GAP if self.seeds.get(name) == GAP else seed for name in names}}
        return replace(self, at=None if own is None else unread(own), places=places, seeds=seeds)

    def noting(self, marks: Mapping[str, Noted], written: Collection[str]) -> Self:
        """The same after a batch. marks: what the target says of tables now. written: those of the batch; without a
        mark, nothing is noted of them any more.

        While a table's mark stays, what is noted does not fall: where another output of the query stands lower, a batch
        ends below the table's place and writes nothing of it, and a target that is put back would not be seen.
        """

        def raised(name: str, noted: Noted) -> Noted:
            before = self.marks.get(name)
            return before if before and before.mark == noted.mark and before.pair > noted.pair else noted

        kept = {name: noted for name, noted in self.marks.items() if name not in written}
        return replace(self, marks={**kept, **{name: raised(name, noted) for name, noted in marks.items()}})

    def without(self, names: Collection[str]) -> Self:
        """The same where nothing of some tables is in the target any more: they stand before everything."""
        left = set(names)

        def kept(known: Mapping[str, Any]) -> dict[str, Any]:
            return {name: place for name, place in known.items() if name not in left}

        rest = replace(self, places=kept(self.places), seeds=kept(self.seeds), ways=kept(self.ways))
        return replace(rest, places={**rest.places, **dict.fromkeys(left, SourceCheckpoint())}, marks=kept(self.marks))

    def written(
        self,
        own: "Position | None",
        end: SourceCheckpoint,
        read: Callable[[str], bool],
        seeds: Mapping[str, Seed],
        *,
        moves_at: bool,
    ) -> "Position":
        """What a writer with a record of its own, such as a bucket, says after a batch. self: what the ledger said.

        own: the record before, which may be ahead of the ledger, and is repeated for tables that the batch did not
        have: what the ledger says of these may hide that the target was put back. seeds: of the tables, after the
        batch. moves_at: whether the batch was one over the tables of `at`.
        """
        if own is None:
            own = replace(self, ways={}, marks={})
        places, known_seeds = {}, {}
        for name in {*self.places, *own.places}:
            mine = own.place(name)
            known = [place for place in (mine, self.place(name)) if place is not None]
            places[name] = max([*known, end], key=_pair) if read(name) else mine or known[0]
        for name in {*self.seeds, *own.seeds, *seeds}:
            seed = seeds.get(name) if read(name) and own.done(name) <= end.pair else own.seeds.get(name)
            if seed is not None:
                known_seeds[name] = seed
        at = own.at
        if moves_at:
            at = end if at is None or at.pair < end.pair else at
        rides = {name for name, place in places.items() if at and place.pair == at.pair and chosen_by(own.tables, name)}
        kept = {name: place for name, place in places.items() if name not in rides}
        return replace(own, at=at, places=kept, seeds=known_seeds)

    def introduced(self, to: "Position", there: Collection[str]) -> "Position":
        """A record that speaks of the tables that are chosen now. to: what the ledger says. there: tables that there
        are. One that is new here stands where the ledger has it; one that is made later stands at `at`.
        """
        if self.tables == to.tables or to.at is None:
            return self
        position = self.choosing(to.tables, there)
        new = [name for name in there if chosen_by(to.tables, name) and self.place(name) is None]
        places = {name: place for name in new if (place := to.place(name)) is not None}
        position = replace(position, places={**places, **position.places})
        return position.seeded({name: to.seeds[name] for name in new if name in to.seeds})

    @classmethod
    def least_of(cls, records: "Sequence[Position | None]", name: str) -> tuple[SourceCheckpoint, Seed | None] | None:
        """Where a table stands in all of several records, and its seed there; None where one of them has no place."""
        known = [(place, record) for record in records if record is not None and (place := record.place(name))]
        if not known or len(known) < len(records):
            return None
        place = min((place for place, _ in known), key=_pair)
        seeds = (record.seeds.get(name) for mine, record in known if mine.pair == place.pair)
        return place, next((seed for seed in seeds if seed is not None), None)

    @classmethod
    def shared(cls, records: "Sequence[Position]", choice: Choice) -> "Position | None":
        """What several records say alike of the tables of a choice; None where it is not alike. So the keys of one may
        come to another. Others, of which a record has more than another, stand where the furthest is, and what some
        keys lack is read by a snapshot once the table is chosen again.
        """
        first = records[0]
        names = sorted({name for record in records for name in (*record.places, *record.seeds)})
        pairs = [None if record.at is None else record.at.pair for record in records]
        alike = [
            name for name in names if len({(record.done(name), record.seeds.get(name)) for record in records}) == 1
        ]
        if len({*pairs}) > 1 or any(record.tables != first.tables for record in records):
            return None
        others = {*names} - {*alike}
        if any(chosen_by(choice, name) or chosen_by(first.tables, name) for name in others):
            return None
        places = {name: place for name, place in first.places.items() if name in alike}
        for name in sorted(others):
            known = [place for record in records if (place := record.place(name)) is not None]
            places |= {name: max(known, key=_pair)} if known else {}
        seeds = {name: seed for name, seed in first.seeds.items() if name in alike}
        return replace(first, places=places, seeds={**seeds, **dict.fromkeys(others, GAP)})

    def to_json(self, *, is_record: bool = False) -> dict[str, Any]:
        """As a ledger has it, or, shorter, a record in a target."""
        grouped: dict[str, tuple[SourceCheckpoint, list[str]]] = {}
        for name, place in sorted(self.places.items()):
            grouped.setdefault(repr(place), (place, []))[1].append(name)
        value = {
            "at": None if self.at is None else self.at.to_json(),
            "tables": choice_to_json(self.tables),
            "except": [[place.to_json(), names] for place, names in grouped.values()],
            "seeds": dict(sorted(self.seeds.items())),
        }
        if is_record:
            return value
        ways: dict[str, list[str]] = {}
        for name, way in sorted(self.ways.items()):
            ways.setdefault(way, []).append(name)
        return {**value, "ways": ways, "marks": dict(sorted(self.marks.items()))}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Self:
        """Read what `to_json` made. Raises `MalformedRequest`, `ValueError`, `KeyError`, `TypeError`."""
        grouped = [(SourceCheckpoint.from_json(place, where), names) for place, names in value["except"]]
        return cls(
            None if value["at"] is None else SourceCheckpoint.from_json(value["at"], where),
            choice_from_json(value["tables"]),
            {str(name): place for place, names in grouped for name in names},
            {str(name): _seed(seed) for name, seed in value["seeds"].items()},
            {str(name): str(way) for way, names in value.get("ways", {}).items() for name in names},
            {str(name): Noted.from_json(noted) for name, noted in value.get("marks", {}).items()},
        )


def choice_to_json(choice: Choice) -> list[Any]:
    """As ledgers and journals have it."""
    return [[[choice_part.include, choice_part.exclude] for choice_part in selection] for selection in choice]


def choice_from_json(value: Any) -> Choice:
    """Read what `choice_to_json` made. Raises `ValueError`, `TypeError`."""
    return tuple(
        tuple(TableChoice(tuple(include), tuple(exclude)) for include, exclude in selection) for selection in value
    )


def _pair(place: SourceCheckpoint) -> Pair:
    return place.pair


def _source(name: str) -> str:
    return split_physical(name)[1]


def _seed(value: object) -> Seed:
    if value in (ASKED, GAP):
        return str(value)
    if isinstance(value, int):
        return value
    raise ValueError(f"no seed: {value!r}")
