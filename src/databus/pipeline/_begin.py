"""Where a query begins: after what its outputs' ledgers say, or where the options of its input say.

A table that is new to an output, or whose older changes have left the relay's log, is read anew first: it is incomplete
until the end of that snapshot.
"""

import shutil
from collections.abc import Sequence

import structlog

from databus.core import Checkpoint, DatabusError, InputError, PositionForeign, PositionPurged, SourceCheckpoint
from databus.pipeline._contract import Input, Output, RunContext
from databus.pipeline._handle import OutputHandle
from databus.pipeline._ledger import Stream
from databus.pipeline._offsets import Offsets
from databus.pipeline._plan import Feed, QueryPlan

Feeds = Sequence[tuple[Feed, OutputHandle]]


def begin(plan: QueryPlan, feeds: Feeds, offsets: Offsets, context: RunContext) -> Checkpoint | None:
    """The checkpoint after which a query begins; Spark's own is removed unless it says the same.

    None: where the options say, or, if none of the outputs says anything, where Spark's checkpoint does. Raises
    `InputError` where tables have to be read anew, and cannot.
    """
    origin, handles = offsets.origin, [handle for _, handle in feeds]
    if not origin.resumes:
        return None
    known = [handle.stream(plan.name) for handle in handles]
    starts = [each.checkpoint for each in known if each is not None]
    if not starts and offsets.are_of_before_ledgers:
        return None
    _take_in(plan, feeds, known, offsets.physical, context, origin)
    if len(starts) < len(handles):
        beginning = origin.beginning(context, offsets.physical)
        starts += [] if beginning is None else [beginning]
        if beginning is not None:  # what it means now; a moment later it would be a gap
            _begin_anew(plan, feeds, known, beginning, context, origin, offsets.physical)
        elif all(offsets.pair_of(each)[0] >= origin.starting_version for each in starts):
            shutil.rmtree(offsets.folder, ignore_errors=True)
            return None
    least = min(starts, key=offsets.pair_of)
    if offsets.committed() != least:
        shutil.rmtree(offsets.folder, ignore_errors=True)
    return least


def _take_in(
    plan: QueryPlan,
    feeds: Feeds,
    known: Sequence[Stream | None],
    physical: str,
    context: RunContext,
    origin: Input,
) -> None:
    """Have tables read anew that an output, which has begun, did not take before."""
    for (feed, handle), stream in zip(feeds, known, strict=True):
        if stream is None:
            continue
        new = stream.unread
        if stream.selections != handle.bringing[plan.name].selections:
            new |= {each for each in origin.tables_of(context, physical) if feed.selects(each) and not stream.had(each)}
        if new:
            _read_anew(handle, new, context, origin, physical)
        if new or stream.selections != handle.bringing[plan.name].selections:
            handle.begin(plan.name, stream.checkpoint, new)


def _begin_anew(
    plan: QueryPlan,
    feeds: Feeds,
    known: Sequence[Stream | None],
    beginning: Checkpoint,
    context: RunContext,
    origin: Input,
    physical: str,
) -> None:
    """Note where outputs begin that have nothing yet; what the log does not hold any more is read anew."""
    is_purged = beginning.sources.get(physical, SourceCheckpoint()).scn > 0
    for (feed, handle), stream in zip(feeds, known, strict=True):
        if stream is not None:
            continue
        old: frozenset[str] = frozenset()
        if origin.wants_all and is_purged and isinstance(handle.output, Output):
            tables = origin.tables_of(context, physical) if plan.table is None else [f"{physical}/{plan.table}"]
            old = frozenset(name for name in tables if feed.selects(name))
            _read_anew(handle, old, context, origin, physical)
        handle.begin(plan.name, beginning, old)


def _read_anew(handle: OutputHandle, tables: frozenset[str], context: RunContext, origin: Input, physical: str) -> None:
    if not tables:
        return
    names = sorted(tables)
    try:
        origin.read_anew(context, physical, names)
    except InputError as error:
        raise InputError(
            f"outputs.{handle.name}: older rows of {', '.join(names)} are not in the relay's log (any more), and "
            f"could not be read anew: {error}. Have them read by `databus snapshot`, or leave these tables out, or say "
            f"in the input from where on you want them: `starting_version: latest`, or a number"
        ) from error
    structlog.get_logger("databus.pipeline").info(
        "incomplete until a snapshot has ended", output=handle.name, tables=names
    )


def advised(error: DatabusError, feeds: Feeds, *, resumed: bool) -> DatabusError:
    """An error with the way out, where it is that a relay cannot go on from where the outputs stand."""
    if not (resumed and isinstance(error, PositionForeign | PositionPurged)):
        return error
    places = ", ".join(str(handle.ledger_path) for _, handle in feeds)
    ways = ", ".join(f"`databus rebuild FILE {handle.name}`" for _, handle in feeds)
    return type(error)(
        f"{error}. How far the output has come stands in {places}. If this is another database, give the output "
        f"another `path`; if it is the right one, have the output made anew: {ways}, FILE being the pipeline's"
    )
