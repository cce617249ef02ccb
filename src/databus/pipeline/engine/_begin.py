"""Where a query begins: decided by `databus.places.reconcile` from its outputs' ledgers, their targets and the log.

Snapshots of tables that have to be read are asked for here, at each start until the snapshot has begun: a relay that
dies may have forgotten the request.
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
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownSource,
    UnsupportedFeature,
)
from databus.flow import part_of_other_log
from databus.operate import logger_of
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._offsets import Offsets
from databus.pipeline.engine._plan import OutputFeed, WayOf, why_stopped
from databus.places import (
    ChosenTables,
    Held,
    LogPurged,
    MissingRows,
    PartOfTransaction,
    Position,
    Stopped,
    WayChanged,
    chosen_by,
    reconcile,
)
from databus.plugins import Delivery, Input, RunContext

_SEQ_MAX: Final = 2**63 - 1

Feeds = Sequence[tuple[OutputFeed, OutputHandle]]

Fits = Callable[[OutputFeed, OutputHandle, Collection[str]], None]
"""Raises `InputError` or `FatalError` if an output would refuse tables, by full names, as they are now."""


def begin(feeds: Feeds, offsets: Offsets, context: RunContext, fits: Fits) -> Checkpoint | None:
    """The checkpoint after which a query begins; Spark's own is removed unless it is the same. None: by the options.

    fits: checks tables before an output's rows of them are removed. Raises `InputError` if tables have to be read by a
    snapshot, and cannot.
    """
    origin = offsets.origin
    if not origin.resumes:
        return None
    offsets.drop_damaged()
    offsets.drop_answers()
    reader = _Starts(context, origin, offsets.physical, fits)
    places = []
    for feed, handle in feeds:
        with handle.at_rest():  # queries of other physical sources write the same ledger
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
    """A physical source, seen through a relay; see `KnownLog`."""

    origin: Input
    context: RunContext
    physical: str
    log: str
    uuid: str
    tables: frozenset[str] = frozenset()
    """Full names of tables whose lost changes may come from a bootstrap service; none if the query cannot take its
    answers.
    """
    silent: list[ServiceUnavailable] = field(default_factory=list)
    """Filled where a bootstrap service was asked for tables from their beginning, and never answered."""

    @property
    def wants_all(self) -> bool:
        """See `KnownLog.wants_all`."""
        return self.origin.wants_all

    def beginning(self) -> SourceCheckpoint | None:
        """See `KnownLog.beginning`."""
        if self.wants_all and self.looks_back_to_beginning():
            return SourceCheckpoint(self.uuid)
        beginning = self.origin.beginning(self.context, self.physical)
        return None if beginning is None else beginning.sources.get(self.physical, SourceCheckpoint())

    def joining(self, at: SourceCheckpoint | None) -> SourceCheckpoint | None:
        """See `KnownLog.joining`."""
        version = self.origin.starting_version
        if version:  # rows of earlier snapshots have the SCN before it
            return SourceCheckpoint(self.uuid, version - 1, seq=_SEQ_MAX)
        try:
            beginning = self.beginning()
        except PositionPurged:
            return None
        return beginning if beginning is None or at is None else min(beginning, at, key=lambda place: place.pair)

    def lacks(self, place: SourceCheckpoint) -> bool:
        """See `KnownLog.lacks`."""
        try:
            self.origin.check_position(self.context, self.physical, Checkpoint({self.physical: place}))
        except PositionPurged:
            return not self.looks_back(place)
        return False

    def looks_back_to_beginning(self) -> bool:
        """Whether tables come by an answer from their beginning. A bootstrap service that never answers is waited for
        once: the relay's snapshot has the same rows.
        """
        if self.silent:
            return False
        try:
            return self.looks_back(SourceCheckpoint())
        except ServiceUnavailable as error:
            if not error.is_silent:
                raise
            self.silent.append(error)
            logger_of("databus.pipeline").warning(
                "the bootstrap service is silent; what the relay's log has lost is read by a snapshot",
                physical=self.physical,
                message=str(error),
            )
            return False

    def looks_back(self, place: SourceCheckpoint) -> bool:
        """Whether a bootstrap service answers with what followed a place."""
        return bool(self.tables) and self.origin.looks_back(self.context, self.physical, self.tables, place)


@dataclass(frozen=True)
class _Starts:
    """Finds where outputs begin, and has missing tables read."""

    context: RunContext
    origin: Input
    physical: str
    fits: Fits
    asked: set[str] = field(default_factory=set)
    """Tables of which snapshots were asked for already."""
    silent: list[ServiceUnavailable] = field(default_factory=list)
    """See `_View.silent`; of all outputs of the query."""

    def begin(self, feed: OutputFeed, handle: OutputHandle) -> SourceCheckpoint | None:
        """Where an output begins, which its ledger says from now on; None: by the options."""
        log = self.origin.log_of(self.context, self.physical)
        uuid, tables = self.origin.uuid_of(self.context, self.physical), self._tables(feed)
        view = _View(self.origin, self.context, self.physical, log, uuid, tables, self.silent)
        position, held = self._reconciled(feed, handle, view, tables)
        self._refuse_purged(handle, position)
        wants = {name for name, seed in position.seeds.items() if isinstance(seed, str) and name in tables}
        self._ask(handle, frozenset(wants))
        accepted = {word.place.log for word in held.values() if word.place is not None and word.place.log is not None}
        handle.put(self.physical, position, self._all(tables), accepted)
        for name in position.marks:
            if feed.selects(name):
                handle.follow_options(name)
        goes_back = position.at is not None and handle.catches_up_together
        return position.least(handle.choice(self.physical)) if goes_back else position.at

    def _reconciled(
        self, feed: OutputFeed, handle: OutputHandle, view: _View, tables: frozenset[str]
    ) -> tuple[Position, Mapping[str, Held]]:
        """Where an output begins, and the target's own places. With `on_change: rebuild`, tables whose filters were
        changed are removed first.
        """
        choice, output = handle.choice(self.physical), handle.output
        on_change, staying = output.config.on_change, set[str]()
        while True:
            before = None if handle.known(self.physical) is None else handle.position(self.physical)
            known = {name for name in (before.known if before else ()) if chosen_by(choice, name)}
            noted = {name: before.marks.get(name) if before else None for name in sorted(known | tables)}
            answer = handle.held(noted)
            held = answer or {}
            wanted = ChosenTables(
                choice,
                self._all(tables),
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
                staying |= self._rebuild(feed, handle, view, stop.tables)
            except (Stopped, PositionForeign) as stop:
                raise self._error_of(stop, feed, handle, before or Position(), held) from None
            else:
                self._log_other_ways(handle, before, position)
                refused = handle.refused.get(self.physical, {})
                return position.refusing(refused) if refused else position, held

    def _error_of(
        self,
        stop: Stopped | PositionForeign,
        feed: OutputFeed,
        handle: OutputHandle,
        before: Position,
        held: Mapping[str, Held],
    ) -> DatabusError:
        """Why an output does not begin, as an error."""
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
        return advised(
            PositionForeign(
                f"outputs.{handle.name}: the place of {names} in its target, or its ledger, is a position in another "
                f"database than the one that is read. If another pipeline of this name writes an output of this name "
                f"there, give one of them another name",
                physical=self.physical,
            ),
            [(feed, handle)],
            resumed=True,
        )

    def _rebuild(self, feed: OutputFeed, handle: OutputHandle, view: _View, tables: Sequence[str]) -> set[str]:
        """Remove tables whose older rows were made by other filters, so that they are read again. Returns those that
        stay as they are, because nothing could be read of them.
        """
        logger = logger_of("databus.pipeline")
        self.origin.log_of(self.context, self.physical)  # raises while the source is starting and names no table
        self.fits(feed, handle, tables)
        looks_back = view.looks_back_to_beginning()
        coming = view.tables.intersection(tables) if looks_back else self._ask(handle, frozenset(tables))
        uncaptured = {*tables} - coming
        if uncaptured:
            names = ", ".join(sorted(uncaptured))
            logger.warning("not captured now, so its copy stays as it is", output=handle.name, tables=names)
        if coming:
            handle.rebuild(coming)
            known = handle.known(self.physical)
            if known is not None and known.at is not None and not looks_back:  # their snapshots are on the way
                handle.put(self.physical, known.reading(coming, known.at), ())
            names = ", ".join(sorted(coming))
            logger.warning("rebuilt, since what decides their rows was changed", output=handle.name, tables=names)
        return uncaptured

    def _log_other_ways(self, handle: OutputHandle, before: Position | None, position: Position) -> None:
        ways = before.ways if before is not None else {}
        other = [name for name in position.marks if ways.get(name, "") not in ("", position.ways.get(name, ""))]
        if other:
            logger = logger_of("databus.pipeline")
            names = ", ".join(sorted(other))
            logger.warning(
                "older rows were made by other filters or options, and stay", output=handle.name, tables=names
            )

    def _refuse_purged(self, handle: OutputHandle, position: Position) -> None:
        """Raises `PositionPurged` for an output of DataFrames, which cannot take a snapshot; `ServiceUnavailable` if a
        silent bootstrap service may have it.
        """
        if position.seeds and handle.frames is not None:
            if self.silent:
                raise self.silent[0]
            raise PositionPurged(
                f"outputs.{handle.name}: the relay's log of {self.physical} no longer has its beginning; say in "
                f"the input from where on you want it: `starting_version: earliest`, `latest`, or a number"
            )

    def _tables(self, feed: OutputFeed) -> frozenset[str]:
        """The tables of an output now, by full names. Raises `ServiceUnavailable` while the relay does not know."""
        self.origin.log_of(self.context, self.physical)  # raises while the source is starting and names no table
        return frozenset(table for table in self.origin.tables_of(self.context, self.physical) if feed.selects(table))

    def _all(self, tables: frozenset[str]) -> frozenset[str]:
        """These and all other tables of the source."""
        return tables.union(self.origin.tables_of(self.context, self.physical))

    def _ask(self, handle: OutputHandle, tables: frozenset[str]) -> frozenset[str]:
        """Ask for snapshots; returns the tables that exist."""
        answered = set()
        for name in sorted(tables):  # one by one: with a dropped one among them all would be refused
            try:
                if name not in self.asked:
                    self.origin.read_anew(self.context, self.physical, [name])
                answered.add(name)
            except UnknownSource:
                continue
            except InputError as error:
                raise InputError(
                    f"outputs.{handle.name}: older rows of {name} are not in the relay's log (any more), and could not "
                    f"be read again: {error}. Have them read by `databus snapshot`, or exclude this table, or say in "
                    f"the input from where on you want it: `starting_version: latest`, or a number"
                ) from error
        self.asked.update(answered)
        if answered:
            logger_of("databus.pipeline").info(
                "incomplete until a snapshot has ended", output=handle.name, tables=sorted(answered)
            )
        return frozenset(answered)


def _way_but(way_of: WayOf, names: Collection[str], name: str) -> str:
    return "" if name in names else way_of(name)


def advised(error: DatabusError, feeds: Feeds, *, resumed: bool) -> DatabusError:
    """An error; with advice, if a relay cannot continue from the places of the outputs."""
    if not (resumed and isinstance(error, PositionForeign | PositionPurged)):
        return error
    places = ", ".join(str(handle.ledger_path) for _, handle in feeds)
    if places in str(error):
        return error
    ways = ". ".join(handle.how_to_start_over for _, handle in feeds)
    message = f"{error}. The output's place is in {places}. {ways}"
    error.args = (message,)
    return error
