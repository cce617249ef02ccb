"""Where a query begins: as `databus.places.reconcile` says, of what its outputs' ledgers, targets and the log say.

What it says of tables that are to be read by a snapshot is asked of the relay here, at each start until the snapshot
has begun: a relay that dies may have forgotten who asked.
"""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from databus.core import (
    Checkpoint,
    DatabusError,
    InputError,
    PositionForeign,
    PositionPurged,
    SourceCheckpoint,
    UnknownSource,
    UnsupportedFeature,
)
from databus.flow import part_of_other_log
from databus.operate import logger_of
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._offsets import Offsets
from databus.pipeline.engine._plan import Feed, WayOf, why_stopped
from databus.places import (
    ForeignTarget,
    Held,
    LogPurged,
    MissingRows,
    PartOfTransaction,
    Position,
    Stopped,
    Wanted,
    WayChanged,
    chosen_by,
    reconcile,
)
from databus.plugins import Delivery, Input, RunContext

_SEQ_MAX: Final = 2**63 - 1

Feeds = Sequence[tuple[Feed, OutputHandle]]

Fits = Callable[[Feed, OutputHandle, Collection[str]], None]
"""Raises `InputError` or `FatalError` where tables, by full names, as they are now, would not come into an output."""


def begin(feeds: Feeds, offsets: Offsets, context: RunContext, fits: Fits) -> Checkpoint | None:
    """The checkpoint after which a query begins; Spark's own is removed unless it says the same. fits: looks at tables
    before what an output has of them is removed.

    None: where the options say. Raises `InputError` where tables have to be read by a snapshot, and cannot.
    """
    origin = offsets.origin
    if not origin.resumes:
        return None
    offsets.drop_damaged()
    offsets.drop_answers()
    reader = _Reader(context, origin, offsets.physical, fits)
    places = []
    for feed, handle in feeds:
        with handle.at_rest():  # queries of other physical sources have tables in the same ledger
            places.append(reader.begin(feed, handle))
    known = [place for place in places if place is not None]
    are_behind = len(known) < len(places) and all(place.scn >= origin.starting_version for place in known)
    if not known or are_behind:
        shutil.rmtree(offsets.folder, ignore_errors=True)
        return None
    least = Checkpoint({offsets.physical: min(known, key=lambda place: place.pair)})
    if offsets.committed() != least:
        shutil.rmtree(offsets.folder, ignore_errors=True)
    return least


@dataclass
class _View:
    """A physical source as a relay shows it; see `LogView`."""

    origin: Input
    context: RunContext
    physical: str
    log: str
    uuid: str
    tables: frozenset[str] = frozenset()
    """Of which an answer may take the place of what the log has lost, by full names; none of a query that can have no
    answers.
    """

    @property
    def wants_all(self) -> bool:
        """See `LogView.wants_all`."""
        return self.origin.wants_all

    def beginning(self) -> SourceCheckpoint | None:
        """See `LogView.beginning`."""
        if self.wants_all and self.looks_back(SourceCheckpoint()):
            return SourceCheckpoint(self.uuid)
        beginning = self.origin.beginning(self.context, self.physical)
        return None if beginning is None else beginning.sources.get(self.physical, SourceCheckpoint())

    def joining(self, at: SourceCheckpoint | None) -> SourceCheckpoint | None:
        """See `LogView.joining`."""
        version = self.origin.starting_version
        if version:  # rows of snapshots that were read before it are below it, too
            return SourceCheckpoint(self.uuid, version - 1, seq=_SEQ_MAX)
        try:
            beginning = self.beginning()
        except PositionPurged:
            return None
        return beginning if beginning is None or at is None else min(beginning, at, key=lambda place: place.pair)

    def lacks(self, place: SourceCheckpoint) -> bool:
        """See `LogView.lacks`."""
        try:
            self.origin.check_position(self.context, self.physical, Checkpoint({self.physical: place}))
        except PositionPurged:
            return not self.looks_back(place)
        return False

    def looks_back(self, place: SourceCheckpoint) -> bool:
        """Whether what followed a place comes by an answer."""
        return bool(self.tables) and self.origin.looks_back(self.context, self.physical, self.tables, place)


@dataclass(frozen=True)
class _Reader:
    """Has outputs begin, and what they lack read."""

    context: RunContext
    origin: Input
    physical: str
    fits: Fits
    asked: set[str] = field(default_factory=set)
    """Tables for whose reading the relay was asked already."""

    def begin(self, feed: Feed, handle: OutputHandle) -> SourceCheckpoint | None:
        """Where an output begins, as its ledger says from now on; None where the options say."""
        log = self.origin.log_of(self.context, self.physical)
        uuid, there = self.origin.uuid_of(self.context, self.physical), self._tables(feed)
        view = _View(self.origin, self.context, self.physical, log, uuid, there)
        position, held = self._reconciled(feed, handle, view, there)
        self._refuse_purged(handle, position)
        wants = {name for name, seed in position.seeds.items() if isinstance(seed, str) and name in there}
        self._ask(handle, frozenset(wants))
        accepted = {word.place.log for word in held.values() if word.place is not None and word.place.log is not None}
        handle.put(self.physical, position, self._all(there), accepted)
        for name in position.marks:
            if feed.selects(name):
                handle.follow_options(name)
        goes_back = position.at is not None and handle.catches_up_together
        return position.least(handle.choice(self.physical)) if goes_back else position.at

    def _reconciled(
        self, feed: Feed, handle: OutputHandle, view: _View, there: frozenset[str]
    ) -> tuple[Position, Mapping[str, Held]]:
        """Where an output begins, and what its target says. Tables whose way was changed are removed if one says so."""
        choice, output = handle.choice(self.physical), handle.output
        on_change, staying = output.config.on_change, set[str]()
        while True:
            before = None if handle.known(self.physical) is None else handle.position(self.physical)
            known = {name for name in (before.known if before else ()) if chosen_by(choice, name)}
            noted = {name: before.marks.get(name) if before else None for name in sorted(known | there)}
            answer = handle.held(noted)
            held = answer or {}
            wanted = Wanted(
                choice,
                self._all(there),
                partial(_way_but, handle.way_of(self.physical), staying),
                tells=answer is not None,
                may_repeat=output.delivery is Delivery.AT_LEAST_ONCE,
                may_lack=output.config.may_lack,
                takes_other_ways=on_change == "continue",
                joins_by_snapshot=output.config.counts_transactions,
            )
            try:
                position = reconcile(before, held, view, wanted)
            except WayChanged as stop:
                if on_change != "rebuild":
                    raise InputError(f"outputs.{handle.name}: {why_stopped(handle.name, stop.tables)}") from None
                staying |= self._make_anew(feed, handle, view, stop.tables)
            except (Stopped, PositionForeign) as stop:
                raise self._said(stop, feed, handle, before or Position(), held) from None
            else:
                self._tell_other_ways(handle, before, position)
                refused = handle.refused.get(self.physical, {})
                return position.refusing(refused) if refused else position, held

    def _said(
        self,
        stop: Stopped | PositionForeign,
        feed: Feed,
        handle: OutputHandle,
        before: Position,
        held: Mapping[str, Held],
    ) -> DatabusError:
        """Why an output does not begin, in words."""
        if isinstance(stop, PositionForeign):
            return advised(stop, [(feed, handle)], resumed=True)
        names = ", ".join(stop.tables) or self.physical
        if isinstance(stop, MissingRows):
            first = stop.tables[0]
            return handle.gone(first, before.marks[first], held.get(first))
        if isinstance(stop, PartOfTransaction):
            place = before.place(stop.tables[0]) or held[stop.tables[0]].place or SourceCheckpoint()
            log = self.origin.log_of(self.context, self.physical)
            return UnsupportedFeature(part_of_other_log(handle.name, self.physical, place, log))
        if isinstance(stop, LogPurged):
            message = (
                f"outputs.{handle.name}: the relay's log of {self.physical} has lost the changes of {names} that follow"
            )
            return advised(PositionPurged(f"{message} what the target has"), [(feed, handle)], resumed=True)
        assert isinstance(stop, ForeignTarget)  # noqa: S101 - there are no others
        return advised(
            PositionForeign(
                f"outputs.{handle.name}: what its target, or its ledger, says of {names} is a position in another "
                f"database than the one that is read. If another pipeline of this name writes an output of this name "
                f"there, give one of them another name",
                physical=self.physical,
            ),
            [(feed, handle)],
            resumed=True,
        )

    def _make_anew(self, feed: Feed, handle: OutputHandle, view: _View, tables: Sequence[str]) -> set[str]:
        """Have tables removed of which older rows were made in another way; returns those of which nothing would come
        again: asked before what the output has is removed, which nothing would bring back.
        """
        logger = logger_of("databus.pipeline")
        self.origin.log_of(self.context, self.physical)  # of a source that is still starting, no table is named
        self.fits(feed, handle, tables)
        looks_back = view.looks_back(SourceCheckpoint())
        coming = view.tables.intersection(tables) if looks_back else self._ask(handle, frozenset(tables))
        left = {*tables} - coming
        if left:
            names = ", ".join(sorted(left))
            logger.warning("not captured now, so its copy stays as it is", output=handle.name, tables=names)
        if coming:
            handle.make_anew(coming)
            known = handle.known(self.physical)
            if known is not None and known.at is not None and not looks_back:  # their snapshots are on the way
                handle.put(self.physical, known.reading(coming, known.at), ())
            names = ", ".join(sorted(coming))
            logger.warning("made anew, since what decides their rows was changed", output=handle.name, tables=names)
        return left

    def _tell_other_ways(self, handle: OutputHandle, before: Position | None, position: Position) -> None:
        ways = before.ways if before is not None else {}
        other = [name for name in position.marks if ways.get(name, "") not in ("", position.ways.get(name, ""))]
        if other:
            logger = logger_of("databus.pipeline")
            names = ", ".join(sorted(other))
            logger.warning("older rows were made in another way, and stay", output=handle.name, tables=names)

    def _refuse_purged(self, handle: OutputHandle, position: Position) -> None:
        """Raises `PositionPurged` for an output that cannot be told what is read by a snapshot."""
        if position.seeds and handle.frames is not None:
            raise PositionPurged(
                f"outputs.{handle.name}: the relay's log of {self.physical} no longer has its beginning; say in "
                f"the input from where on you want it: `starting_version: earliest`, `latest`, or a number"
            )

    def _tables(self, feed: Feed) -> frozenset[str]:
        """What goes to an output now, by full names. Raises `ServiceUnavailable` while the relay does not know."""
        self.origin.log_of(self.context, self.physical)  # of a source that is still starting, no table is named
        return frozenset(table for table in self.origin.tables_of(self.context, self.physical) if feed.selects(table))

    def _all(self, there: frozenset[str]) -> frozenset[str]:
        """All tables that there are."""
        return there.union(self.origin.tables_of(self.context, self.physical))

    def _ask(self, handle: OutputHandle, tables: frozenset[str]) -> frozenset[str]:
        """Ask for snapshots; returns those of the tables that there are."""
        asked = set()
        for name in sorted(tables):  # one by one, since one that was dropped would have all refused
            try:
                if name not in self.asked:
                    self.origin.read_anew(self.context, self.physical, [name])
                asked.add(name)
            except UnknownSource:
                continue
            except InputError as error:
                raise InputError(
                    f"outputs.{handle.name}: older rows of {name} are not in the relay's log (any more), and could not "
                    f"be read anew: {error}. Have them read by `databus snapshot`, or leave this table out, or say in "
                    f"the input from where on you want it: `starting_version: latest`, or a number"
                ) from error
        self.asked.update(asked)
        if asked:
            logger_of("databus.pipeline").info(
                "incomplete until a snapshot has ended", output=handle.name, tables=sorted(asked)
            )
        return frozenset(asked)


def _way_but(way_of: WayOf, names: Collection[str], name: str) -> str:
    return "" if name in names else way_of(name)


def advised(error: DatabusError, feeds: Feeds, *, resumed: bool) -> DatabusError:
    """An error with the way out, where it is that a relay cannot go on from where the outputs stand."""
    if not (resumed and isinstance(error, PositionForeign | PositionPurged)):
        return error
    places = ", ".join(str(handle.ledger_path) for _, handle in feeds)
    if places in str(error):
        return error
    ways = ". ".join(handle.how_to_begin_anew for _, handle in feeds)
    message = f"{error}. How far the output has come stands in {places}. {ways}"
    error.args = (message,)
    return error
