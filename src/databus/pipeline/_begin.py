"""Where a query begins: after what its outputs' ledgers say, or where the options of its input say.

A table that is new to an output, or whose older changes have left the relay's log, is read anew first: it is incomplete
until the end of that snapshot.
"""

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from databus.core import (
    Checkpoint,
    DatabusError,
    InputError,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownSource,
)
from databus.operate import logger_of
from databus.pipeline._contract import Input, RunContext
from databus.pipeline._handle import OutputHandle
from databus.pipeline._offsets import Offsets
from databus.pipeline._output_contract import DirectOutput, Output
from databus.pipeline._plan import Feed, QueryPlan
from databus.pipeline._streams import Stream

Feeds = Sequence[tuple[Feed, OutputHandle]]


Fits = Callable[[Feed, OutputHandle, Collection[str]], None]
"""Raises `InputError` or `FatalError` where tables, by full names, as they are now, would not come into an output."""


def begin(
    plan: QueryPlan, feeds: Feeds, offsets: Offsets, context: RunContext, fits: Fits, source: str | None = None
) -> Checkpoint | None:
    """The checkpoint after which a query begins; Spark's own is removed unless it says the same. fits: looks at tables
    before what an output has of them is removed. source: its one table, as `db.table`, if it has but one.

    None: where the options say, or, if none of the outputs says anything, where Spark's checkpoint does. Raises
    `InputError` where tables have to be read anew, and cannot.
    """
    origin, handles = offsets.origin, [handle for _, handle in feeds]
    if not origin.resumes:
        return None
    offsets.drop_damaged()
    known = [handle.stream(plan.name) for handle in handles]
    if not any(known) and offsets.are_of_before_ledgers:
        for handle in handles:
            handle.adopt(plan.name)
        return None
    reader = _Reader(plan, context, origin, offsets.physical, source, fits)
    known = [reader.inherit(*each, stream) for each, stream in zip(feeds, known, strict=True)]
    for feed, handle in feeds:
        handle.check(plan.name, partial(reader.readable, feed, handle))
        reader.check_ahead(feed, handle)
    reader.go_on(feeds, [handle.stream(plan.name) for handle in handles])
    streams = [handle.stream(plan.name) for handle in handles]
    starts = [each.checkpoint for each in streams if each is not None and _has_come(each)]
    if len(starts) < len(handles):
        beginning = origin.beginning(context, offsets.physical)
        if beginning is not None:  # what it means now; a moment later it would be a gap
            beginning = reader.no_later_than_targets(feeds, beginning)
            starts.append(beginning)
            reader.begin(feeds, known, beginning)
        elif all(offsets.pair_of(each)[0] >= origin.starting_version for each in starts):
            for handle in handles:
                handle.announce(plan.name)
            shutil.rmtree(offsets.folder, ignore_errors=True)
            return None
    least = min(starts, key=offsets.pair_of)
    reader.check_others(feeds, streams, least)
    if offsets.committed() != least:
        shutil.rmtree(offsets.folder, ignore_errors=True)
    return least


def _has_come(stream: Stream) -> bool:
    """Whether it says a place; one that was only announced does not."""
    return bool(stream.checkpoint.sources)


@dataclass(frozen=True)
class _Reader:
    """Has what outputs lack read anew, and notes where they begin. source: of a query over one table, `db.table`.
    asked: tables for whose reading the relay was asked already.
    """

    plan: QueryPlan
    context: RunContext
    origin: Input
    physical: str
    source: str | None
    fits: Fits
    asked: set[str] = field(default_factory=set)

    def readable(self, feed: Feed, handle: OutputHandle, tables: Collection[str]) -> frozenset[str]:
        """Of tables that an output has to have anew, those that come again: asked for before what it has is removed,
        which nothing would bring back where they cannot be read, or not be written.
        """
        self.origin.log_of(self.context, self.physical)  # of a source that is still starting, no table is named
        self.fits(feed, handle, tables)
        return self._read_anew(handle, frozenset(tables))

    def inherit(self, feed: Feed, handle: OutputHandle, stream: Stream | None) -> Stream | None:
        """Where an output goes on, also with tables that came to it by other ways; None if it has nothing of them."""
        name = self.plan.name
        if handle.is_new or not isinstance(handle.output, Output) or handle.has_begun(name):
            return stream
        tells_apart = isinstance(handle.output, DirectOutput) and handle.output.tells_tables_apart
        if stream is not None and not tells_apart:
            return stream
        tables = self._tables(feed)
        least = handle.least_of(tables)
        if least is None:
            return stream
        if stream is not None:
            try:
                self.origin.check_position(self.context, self.physical, least)
            except (PositionForeign, PositionPurged):
                return stream  # they are read anew
        return handle.inherit(name, tables)

    def go_on(self, feeds: Feeds, known: Sequence[Stream | None]) -> None:
        """See to tables that outputs, which have begun, did not take before or were not given whole."""
        for (feed, handle), stream in zip(feeds, known, strict=True):
            if stream is not None:
                self._go_on(feed, handle, stream)

    def no_later_than_targets(self, feeds: Feeds, beginning: Checkpoint) -> Checkpoint:
        """Where queries begin, or before that, where they stand in targets whose ledgers are lost: what was committed
        since would be left out, in silence. Where all is wanted, it comes from the beginning, or is read anew.
        """
        if self.origin.wants_all:
            return beginning
        found = [at for _, handle in feeds if (at := handle.stands(self.plan.name)) is not None]
        places = [beginning, *(Checkpoint({self.physical: at}) for at in found)]
        return min(places, key=lambda each: each.sources.get(self.physical, SourceCheckpoint()).pair)

    def begin(self, feeds: Feeds, known: Sequence[Stream | None], beginning: Checkpoint) -> None:
        """See to what the log does not hold any more for outputs that have nothing yet.

        Raises `PositionPurged` for one that cannot be told what is read anew.
        """
        for (feed, handle), stream in zip(feeds, known, strict=True):
            if stream is None or not _has_come(stream):
                self._begin(feed, handle, beginning)

    def check_ahead(self, feed: Feed, handle: OutputHandle) -> None:
        """Raises `PositionForeign` where the target says more than the ledger, and means another history: rows of this
        one would be left out. A place before all that the log holds leaves out none.
        """
        for at in handle.ahead(self.plan.name, partial(self._tables, feed)):
            told = f"outputs.{handle.name}: its target says that {self.plan.name} has come to {at.pair} (SCN, _seq)"
            advice = (
                "If another pipeline of this name writes an output of this name there, give one of them another name; "
                "if this is another database, give the output another name, under which it is written from the "
                "beginning"
            )
            if isinstance(handle.output, Output) and handle.output.can_be_made_anew:
                advice += (
                    f"; or, where nobody needs what the other one has there, have all of it made anew: `databus "
                    f"rebuild FILE {handle.name}` (FILE is the pipeline's file)"
                )
            place = SourceCheckpoint(scn=at.scn, txid=at.txid, ts_us=at.ts_us)
            try:
                self.origin.check_position(self.context, self.physical, Checkpoint({self.physical: place}))
            except PositionPurged:
                handle.accept(at)
            except PositionForeign as error:
                said = f"{told}, which is no place in this log: {error}. {advice}"
                raise PositionForeign(said, physical=self.physical) from error
            except ServiceUnavailable as error:
                raise ServiceUnavailable(f"{told}: {error}. {advice}") from error
            else:
                handle.accept(at)

    def check_others(self, feeds: Feeds, streams: Sequence[Stream | None], least: Checkpoint) -> None:
        """Raises `PositionForeign` or `PositionPurged` where an output of a lane cannot go on from where it stands; the
        query itself asks for the least alone.
        """
        for feed, stream in zip(feeds, streams, strict=True):
            if stream is None or stream.checkpoint == least:
                continue
            try:
                self.origin.check_position(self.context, self.physical, stream.checkpoint)
            except (PositionForeign, PositionPurged) as error:
                raise advised(error, [feed], resumed=True) from error

    def _go_on(self, feed: Feed, handle: OutputHandle, stream: Stream) -> None:
        new = {each for each in stream.unread() if feed.selects(each)}  # nothing ends the snapshot of another
        is_chosen_anew = stream.selections != handle.bringing[self.plan.name].selections
        if is_chosen_anew:
            new |= {each for each in self._tables(feed) if not stream.had(each)}
        asked = self._read_anew(handle, frozenset(new))
        if is_chosen_anew or new:
            handle.begin(self.plan.name, stream.checkpoint, asked)

    def _begin(self, feed: Feed, handle: OutputHandle, beginning: Checkpoint) -> None:
        is_purged = beginning.sources.get(self.physical, SourceCheckpoint()).scn > 0
        asked: frozenset[str] = frozenset()
        if self.origin.wants_all and is_purged:
            if not isinstance(handle.output, Output):
                raise PositionPurged(
                    f"outputs.{handle.name}: the relay's log of {self.physical} no longer has its beginning; say in "
                    f"the input from where on you want it: `starting_version: earliest`, `latest`, or a number"
                )
            asked = self._read_anew(handle, self._tables(feed))
        handle.begin(self.plan.name, beginning, asked)

    def _tables(self, feed: Feed) -> frozenset[str]:
        """What goes to an output now, by full names. Raises `ServiceUnavailable` while the relay does not know."""
        if self.source is not None:
            return frozenset([f"{self.physical}/{self.source}"])
        self.origin.log_of(self.context, self.physical)  # of a source that is still starting, no table is named
        return frozenset(each for each in self.origin.tables_of(self.context, self.physical) if feed.selects(each))

    def _read_anew(self, handle: OutputHandle, tables: frozenset[str]) -> frozenset[str]:
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


def advised(error: DatabusError, feeds: Feeds, *, resumed: bool) -> DatabusError:
    """An error with the way out, where it is that a relay cannot go on from where the outputs stand."""
    if not (resumed and isinstance(error, PositionForeign | PositionPurged)):
        return error
    places = ", ".join(str(handle.ledger_path) for _, handle in feeds)
    ways = ". ".join(handle.how_to_begin_anew for _, handle in feeds)
    said = f"{error}. How far the output has come stands in {places}. {ways}"
    error.args = (said,)
    return error
