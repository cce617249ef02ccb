"""Where an output begins: one function over what its ledger says, what its target says, and what the log has.

The ledger may be lost, older than the target, or from after the target was put back. So, in this order:

1. Rows of another database stop the output (`ForeignTarget`).
2. So does one that lacks what it had after the last batch of a table (`MissingRows`).
3. Of each table the higher of both words counts; its mark and its seed come with it. Not where the target had it from
   an answer of a bootstrap service: only the ledger knows which. It comes again, and what is there is dropped.
4. A table that neither knows begins where the options say. Where the log has lost that place, it goes on with the
   others, and a snapshot brings what was before. One that was removed comes whole, whatever the options say.
5. A place in the middle of a transaction of another log stops it (`PartOfTransaction`), unless the target has nothing
   of that transaction, or may be given it once more.
6. Where the log has lost what follows a place: the output stops (`LogPurged`) if the others stand there too; else the
   table goes on with the others, and is read by a snapshot.
7. Rows that came by another way than they would now stop it (`WayChanged`), unless one says to go on.

What follows is what the ledger has to say before the first batch. Spark's offsets are never asked.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from databus.core import SEQ_DONE, Pair, SourceCheckpoint, split_physical
from databus.places._held import Held, Noted, identity, is_of_answer
from databus.places._position import ASKED, GAP, Choice, Position, chosen_by
from databus.wire import is_answer, is_inside_transaction

_BEGINNING: Final[Pair] = (0, SEQ_DONE)
"""Before everything. What snapshots read before the first commit is behind it, and has the same SCN."""


class KnownLog(Protocol):
    """What a relay says of a physical source, and the options of who reads it."""

    @property
    def uuid(self) -> str:
        """The database."""

    @property
    def log(self) -> str:
        """The log of it that is read."""

    @property
    def wants_all(self) -> bool:
        """Whether the options ask for all that there ever was."""

    def beginning(self) -> SourceCheckpoint | None:
        """Where the options say to begin, or, where all is wanted and the log has lost its beginning, its end; None
        where they name no place that is known.
        """

    def joining(self, at: SourceCheckpoint | None) -> SourceCheckpoint | None:
        """The same for a table that joins others, which stand at `at`: the end of the log is where they stand, for the
        table may have been chosen for longer than anybody knows. None where the log has lost that place.
        """

    def lacks(self, place: SourceCheckpoint) -> bool:
        """Whether the log has lost what follows a place. Raises `PositionForeign` for a place of another history."""


@dataclass(frozen=True)
class ChosenTables:
    """What an output is to have."""

    choice: Choice
    """Tables by patterns."""
    tables: Collection[str]
    """All that there are, by full names."""
    way_of: Callable[[str], str]
    """By the full name of a table: a hash of what becomes of its rows on their way; empty where it is unknown."""
    tells: bool = True
    """Whether the target can tell what it has."""
    may_repeat: bool = False
    """Whether the target may be given rows again."""
    may_lack: bool = False
    """Whether to go on where the target lacks rows that it had."""
    takes_other_ways: bool = False
    """Whether to go on where rows were made in another way."""
    joins_by_snapshot: bool = False
    """Whether a table that is behind is read by a snapshot rather than from where it stands."""


class Stopped(Exception):
    """tables: those that it is about, by full names."""

    def __init__(self, tables: Iterable[str]) -> None:
        self.tables = tuple(sorted(tables))
        super().__init__(", ".join(self.tables))


class ForeignTarget(Stopped):
    """The target has rows of another database."""


class MissingRows(Stopped):
    """The target lacks rows that it had."""


class PartOfTransaction(Stopped):
    """The target has a part of a transaction, by the numbers of another log."""


class LogPurged(Stopped):
    """The log has lost the changes that come next."""


class WayChanged(Stopped):
    """Rows would come in another way than those that are there."""


def reconcile(ledger: Position | None, held: Mapping[str, Held], log: KnownLog, wanted: ChosenTables) -> Position:
    """Where an output begins. ledger: None where it says nothing of this physical source. held: what the target says of
    tables. Raises what this module's first lines say.
    """
    before = ledger or Position()
    mine = sorted(name for name in {*wanted.tables, *before.known} if chosen_by(wanted.choice, name))
    if not all(_is_of(place.uuid, log.uuid) for place in (before.at, *before.places.values()) if place is not None):
        raise ForeignTarget([])
    _stop(ForeignTarget, (name for name, word in held.items() if not _is_of(word.db, log.uuid)))
    if not wanted.may_lack:
        _stop(MissingRows, (name for name in mine if _lacks(before.marks.get(name), held.get(name))))
    position = before.choosing(wanted.choice, wanted.tables)
    ahead = {name for name in mine if _is_ahead(held.get(name), _known(name, before))}
    ahead = {name for name in ahead if (place := held[name].place) is not None and not is_of_answer(place.log)}
    _stop(ForeignTarget, (name for name in ahead if not _is_known(held[name], log.log)))
    position = _with_words(position, {name: held[name] for name in mine if name in held}, ahead, log)
    unknown = [name for name in mine if name not in ahead and _is_nowhere(name, before)]
    are_elsewhere = all(name in unknown or name in position.places for name in mine)
    if position.at is not None and are_elsewhere and log.lacks(position.at):
        position = replace(position, at=log.beginning() or position.at)  # no table stood there
    position = _begun(position, unknown, wanted, log)
    position = _in_this_log(position, held, mine, wanted, log)
    position = _in_reach(position, mine, wanted, log, is_known=before.at is not None)
    ways = {name: _way_there(before, held, ahead, name) for name in mine if name in position.marks}
    if not wanted.takes_other_ways:
        _stop(WayChanged, (name for name, way in ways.items() if way not in ("", wanted.way_of(name))))
    return replace(position, ways={**position.ways, **{name: wanted.way_of(name) for name in mine}})


def _with_words(position: Position, words: Mapping[str, Held], ahead: Collection[str], log: KnownLog) -> Position:
    """What the target says of tables of which it is ahead, and by what it is known from now on."""
    marks = dict(position.marks)
    for name, word in words.items():
        pair = word.place.pair if word.place is not None else (0, 0)
        if word.place is not None and is_of_answer(word.place.log):
            pair = min(pair, position.done(name))
        if not word.mark:
            marks.pop(name, None)
        elif name in marks or word.place is not None:
            marks[name] = Noted(max(pair, marks[name].pair if name in marks else pair), word.mark)
        if name in ahead and word.place is not None:
            is_numbered = word.place.seq is not None and _is_log(word.place.log, log.log)
            snapshots = {split_physical(name)[1]: word.seed} if isinstance(word.seed, int) else word.place.snapshots
            is_numbered = is_numbered or (bool(snapshots) and _is_log(word.place.log, log.log))
            of = log.log if is_numbered else word.place.log
            place = replace(word.place, uuid=log.uuid, log=of, snapshots=snapshots)
            position = position.moved(name, place).seeded({name: word.seed})
    return replace(position, marks=marks)


def _begun(position: Position, unknown: Sequence[str], wanted: ChosenTables, log: KnownLog) -> Position:
    """The position where unknown tables have a place, and all together one."""
    is_first = position.at is None and position.least(wanted.choice) is None
    if position.at is None and not is_first:
        at = position.least(wanted.choice)
        position = replace(position, at=at)  # what stands there is no exception any more: see `normal`
    elif not is_first and not unknown:
        return position.normal()
    others = [
        place for name, place in position.places.items() if chosen_by(wanted.choice, name) and name not in unknown
    ]
    at = position.at or min(others, key=lambda place: place.pair, default=None)
    beginning = log.beginning() if is_first else log.joining(at)
    is_whole = beginning is not None and beginning.pair <= _BEGINNING
    if is_first:
        position = replace(position, at=beginning)
        return position.reading(unknown, beginning) if log.wants_all and beginning and not is_whole else position
    for name in unknown:
        if beginning is None and position.at is None:
            continue  # only the options say where
        wants_all = log.wants_all or name in position.places  # of one that was removed, all that was there
        if beginning is not None and (is_whole or not wants_all) and name not in position.seeds:
            position = position.moved(name, beginning)
        else:
            position = position.reading([name], position.at or beginning)
    return position.normal()


def _in_this_log(
    position: Position, held: Mapping[str, Held], mine: Sequence[str], wanted: ChosenTables, log: KnownLog
) -> Position:
    """The position as places of this log. Another one numbers the rows of a transaction, and snapshots, otherwise."""

    def fitted(place: SourceCheckpoint) -> SourceCheckpoint:
        """Behind a transaction, what the bus put there in the other log is not here."""
        is_here = _is_log(place.log, log.log) or is_inside_transaction(place.pair)
        return place if is_here else replace(place, seq=None)

    others = [name for name in mine if (place := position.place(name)) is not None and not _is_log(place.log, log.log)]
    position = position.seeded({name: ASKED for name in others if isinstance(position.seeds.get(name), int)})
    at, parts = position.at, []
    places = {name: fitted(place) for name, place in position.places.items()}
    position = replace(position, at=None if at is None else fitted(at), places=places)
    for name in others:
        place = position.place(name)
        if place is None or not place.scn or not is_inside_transaction(place.pair):
            continue
        word = held.get(name)
        pair = word.place.pair if word is not None and word.place is not None else (0, 0)
        if wanted.may_repeat or (wanted.tells and pair < (place.scn, 0)):
            position = position.moved(name, SourceCheckpoint(place.uuid, place.scn - 1))
        else:
            parts.append(name)
    _stop(PartOfTransaction, parts)
    return position


def _in_reach(
    position: Position, mine: Sequence[str], wanted: ChosenTables, log: KnownLog, *, is_known: bool
) -> Position:
    """The position without places that the log has lost. is_known: whether a ledger says where the tables stand."""
    answers: dict[tuple[Pair, str], bool] = {}
    at, pair = position.at, (0, 0) if position.at is None else position.at.pair

    def is_lost(place: SourceCheckpoint) -> bool:
        key = place.pair, place.txid
        if key not in answers:
            answers[key] = log.lacks(place)
        return answers[key]

    places = {name: place for name in mine if (place := position.place(name)) is not None}
    lost = {name for name, place in places.items() if is_lost(place)}
    stops = {name for name in lost if not is_known or at is None or places[name].pair >= pair}
    _stop(LogPurged, stops)
    if is_known and at is not None and is_lost(at):
        raise LogPurged([])
    late = {name for name, place in places.items() if wanted.joins_by_snapshot and place.pair < pair}
    position = position.reading(lost | late, at, GAP)
    forgotten = {
        name
        for name, place in position.places.items()
        if not chosen_by(wanted.choice, name) and place.pair < pair and is_lost(place)
    }
    places = {name: place for name, place in position.places.items() if name not in forgotten}
    return replace(position, places=places).seeded(dict.fromkeys(forgotten))


def _way_there(before: Position, held: Mapping[str, Held], ahead: Collection[str], name: str) -> str:
    """By which way the rows came that are there."""
    word = held.get(name)
    is_told = word is not None and word.way and (name in ahead or name not in before.ways)
    return word.way if word is not None and is_told else before.ways.get(name, "")


def _is_ahead(word: Held | None, known: SourceCheckpoint | None) -> bool:
    """Whether a target has more of a table than the ledger says."""
    place = None if word is None else word.place
    return place is not None and (known is None or place.pair > known.pair)


def _known(name: str, ledger: Position) -> SourceCheckpoint | None:
    """Where a ledger has a table. One without a place that is to be read by a snapshot was refused: it goes on with the
    others, and not where its target has it, since the rows behind that could not be taken.
    """
    return ledger.place(name) or (ledger.at if name in ledger.seeds else None)


def _is_nowhere(name: str, ledger: Position) -> bool:
    """Whether a ledger knows no place of a table, or that nothing of it is there."""
    place = ledger.place(name)
    return place is None or (name in ledger.places and place.pair <= _BEGINNING)


def _lacks(noted: Noted | None, word: Held | None) -> bool:
    """Whether a target has not what it had after the last batch that is noted."""
    if noted is None:
        return False
    pair: Pair | None = None if word is None or word.place is None else word.place.pair
    return word is None or word.mark != noted.mark or (pair is not None and pair < noted.pair)


def _is_of(db: str, uuid: str) -> bool:
    return not db or not uuid or db in (uuid, identity(uuid))


def _is_known(word: Held, log: str) -> bool:
    """Whether it is known that a place is of this database: its log, or a relay, by its transaction."""
    place = word.place
    return bool(word.db) or place is None or bool(place.txid) or _is_log(place.log, log)


def _is_log(log: str | None, this: str) -> bool:
    return log in (None, this, identity(this)) or is_answer(log)  # which has the pairs of a log, and no other


def _stop(kind: type[Stopped], tables: Iterable[str]) -> None:
    names = sorted(tables)
    if names:
        raise kind(names)
