"""Filters in use: each is fitted to tables once, for all who ask for the same; how a log is read behind one; and those
in the words of the original's clients.
"""

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from databus.core import CorruptData, MalformedRequest, Pair, TooManyRequests, UnknownColumn
from databus.filters import FrameFilter, StreamFilter, StreamPartition, TableCut
from databus.log import Allowance, Cursor, End, Log, SchemaStore, Span
from databus.operate import logger_of
from databus.relay._grant import Grant
from databus.schema import TableSchema

FILTERS_MAX: Final = 256
"""Distinct filters that may be in use at once: each costs the tail a pass over all that is published."""
_KEPT_MAX: Final = 4 * FILTERS_MAX
_PIECE_BYTES: Final = 4 << 20  # read from the log at a time


_logger = logger_of("databus.relay")

Behind = Callable[[Log, TableSchema], Collection[TableSchema]]
"""What a definition becomes for a reader; empty if that is unknown."""
_TYPE: Final = "partitionType"


class Filters:
    """The filters of a relay. In the loop's thread; what it gives out is for any."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, StreamFilter], FrameFilter] = OrderedDict()
        self._users: dict[tuple[str, StreamFilter], int] = {}

    @contextmanager
    def use(self, wanted: StreamFilter, log: Log) -> Iterator[FrameFilter | None]:
        """The filter over this log; None where it lets all pass. Raises `TooManyRequests`."""
        if wanted.is_nothing:
            yield None
            return
        key = log.uuid, wanted
        if key not in self._users and len(self._users) >= FILTERS_MAX:
            raise TooManyRequests(
                f"filters: {len(self._users)} distinct ones are in use, and at most {FILTERS_MAX} may be; ask for the "
                "same as others do, or again when some have ended"
            )
        self._users[key] = self._users.get(key, 0) + 1
        try:
            yield self._of(key, log)
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]

    def _of(self, key: tuple[str, StreamFilter], log: Log) -> FrameFilter:
        frames = self._kept.get(key)
        if frames is None:
            frames = self._kept[key] = FrameFilter(key[1], log.physical, log.schemas)
            for reason in misfits(key[1], log.schemas):
                _logger.warning("a condition of access does not fit; nothing of that table is sent", reason=reason)
        self._kept.move_to_end(key)
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return frames

    def behind(self, given: Mapping[str, Any], grant: Grant) -> Behind:
        """What becomes of a definition behind the filter that is given, and behind what the grant forces.

        Where a fingerprint is asked for, also what it has become for those of the same grant who were sent something
        lately.
        """
        is_given = any(given[name] is not None for name in ("where", "columns", "filters"))
        wants_all = given["fingerprint"] is not None

        def after(log: Log, table: TableSchema) -> Collection[TableSchema]:
            tables: dict[TableSchema, None] = {}
            if is_given or grant.rules:
                frames = FrameFilter(filter_of(given, log, grant), log.physical, log.schemas)
                tables = dict.fromkeys(frames.after(table))
            if not grant.rules and (wants_all or not is_given):
                tables = {table: None, **tables}
            if wants_all:
                kept = [frames for (uuid, _), frames in self._kept.items() if uuid == log.uuid]
                mine = (frames for frames in kept if frames.wanted.forced == grant.rules)
                tables |= {made: None for frames in mine for made in frames.made_of(table)}
            return tables

        return after


def misfits(wanted: StreamFilter, store: SchemaStore) -> Iterator[str]:
    """Why what is forced on a reader does not fit tables of a log as they are now."""
    forced = replace(wanted, rules=(), partition=None)
    for source in store.ids() if forced.forced else ():
        table = store.definition_now(source)
        name = store.full_name(source)
        if table is None or not forced.sees(name):
            continue
        try:
            TableCut.of(forced, store.physical, table, store)
        except UnknownColumn as error:
            cause = error.__cause__
            yield (
                f"{name}: there is no column {cause.args[0]!r}"
                if isinstance(cause, LookupError)
                else f"{name}: {cause}"
            )


def seen_by(grant: Grant) -> Behind:
    """What becomes of a definition for the holder of a grant."""

    def after(log: Log, table: TableSchema) -> Collection[TableSchema]:
        return FrameFilter(grant.filter, log.physical, log.schemas).after(table) if grant.rules else (table,)

    return after


def filter_of(given: Mapping[str, Any], log: Log, grant: Grant) -> StreamFilter:
    """The filter that a request's parameters ask for. Raises `MalformedRequest`."""
    filters, partition = translated(given["filters"], log.schemas, grant.visible(log.schemas))
    wanted = StreamFilter.parse(given["where"], given["columns"], filters, given.get("partition") or partition)
    return wanted.behind(grant.filter)


def check_filter(frames: FrameFilter, sources: Sequence[str], there: Iterable[str], *, is_at_end: bool) -> None:
    """Raise an `InputError` where a filter does not fit the tables that are asked for (`db.table`), or speaks of one
    that is not there.
    """
    lost = frames.unmatched(tuple(there))
    if lost is not None:
        raise MalformedRequest(lost)
    frames.check(sources, is_at_end=is_at_end)


def read_filtered(
    cursor: Cursor,
    frames: FrameFilter,
    bytes_max: int,
    *,
    sources: frozenset[int] | None = None,
    to: Pair | None = None,
    until: End | None = None,
) -> bytes:
    """Move over the next whole groups until what is left of them makes `bytes_max`, or it takes too long.

    Empty if there are none. Parameters and errors are those of `Cursor.read`.

    Where the filter cannot follow, what is before comes first; the error is raised by the next call.
    """
    allowance = Allowance()
    pieces: list[bytes] = []
    left = bytes_max
    while left > 0 and not (pieces and allowance.is_spent):
        before = cursor.copy()
        spans = cursor.read(min(left, _PIECE_BYTES), sources=sources, to=to, until=until, allowance=allowance)
        if not spans:
            break
        result = frames.filtered(_bytes_of(spans))
        pieces.append(result.content)
        left -= len(result.content)
        if result.error is not None:
            cursor.go(before.place, before.position)
            if not any(pieces):
                raise result.error
            taken = 0
            while taken < result.taken:  # a group at a time
                taken += sum(span.length for span in cursor.read(1, sources=sources, to=to, until=until))
            break
    return b"".join(pieces)


def _bytes_of(spans: Sequence[Span]) -> bytes:
    pieces = [os.pread(span.fd, span.length, span.offset) for span in spans]
    for piece, span in zip(pieces, spans, strict=True):
        if len(piece) < span.length:
            raise CorruptData(f"{span.file.path} at {span.offset}: the file ends here")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def translated(
    text: str | None, store: SchemaStore, visible: Mapping[str, int]
) -> tuple[str | None, StreamPartition | None]:
    """`filters` as the original's clients send them, by source id, over keys, in our words, and the partition that they
    ask for. What is ours already is the same text.

        {"40": {"partitionType": "RANGE", "filters": [{"keyRange": {"start": 0, "end": 1000}}]}}

    RANGE becomes a condition over the key. One bucket of MOD becomes a partition: as many, dealt by our hash, so that a
    bucket holds other keys than it did there, and all of them together still hold each key once.

    visible: the tables that are there for who asks, with their ids.

    Raises `MalformedRequest` for what is neither.
    """
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return text, None  # said where it is read
    if not isinstance(value, dict) or not any(
        isinstance(options, dict) and _TYPE in options for options in value.values()
    ):
        return text, None
    conditions: dict[str, Any] = {}
    partitions: set[StreamPartition | None] = set()
    for name, options in value.items():
        table = _table_of(name, store, visible)
        where, partition = _original_of(f"filters: {name[:100]}", options, table)
        if where is not None:
            conditions[store.full_name(table.source)] = {"where": where}
        partitions.add(partition)
    if len(partitions) > 1:
        raise MalformedRequest("filters: MOD of all sources has to be the same bucket here; ask for each by itself")
    return json.dumps(conditions) if conditions else None, partitions.pop()


def _table_of(name: str, store: SchemaStore, visible: Mapping[str, int]) -> TableSchema:
    source = next((source for source, id_ in visible.items() if str(id_) == name), None)
    table = None if source is None else store.definition_now(source)
    if table is None:
        raise MalformedRequest(f"filters: {name[:100]!r} is not the id of a source; /sources lists them")
    return table


def _original_of(where: str, value: Any, table: TableSchema) -> tuple[str | None, StreamPartition | None]:
    try:
        kind, filters = value[_TYPE], value.get("filters", [])
        if kind == "NONE":
            return None, None
        if kind == "RANGE":
            bounds = [(int(bucket["keyRange"]["start"]), int(bucket["keyRange"]["end"])) for bucket in filters]
            return _range_condition(where, bounds, table), None
        if kind == "MOD":
            (only,) = filters
            start, end = int(only["bktRange"]["start"]), int(only["bktRange"]["end"])
            if end == start + 1:
                return None, StreamPartition.parse(f"{start}/{int(only['numBuckets'])}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedRequest(f"{where}: not a filter: {error!r} in {str(value)[:200]}") from error
    raise MalformedRequest(
        f"{where}: {str(kind)[:100]!r} with these buckets: there are NONE, RANGE, and MOD with one bucket, whose "
        "`bktRange` ends one behind its start"
    )


def _range_condition(where: str, bounds: list[tuple[int, int]], table: TableSchema) -> str:
    if len(table.key) != 1 or "int" not in table.column(table.key[0]).type or not bounds:
        key: Mapping[str, str] = {name: table.column(name).type for name in table.key}
        raise MalformedRequest(f"{where}: RANGE takes a key of one whole number; the key of {table.source} is {key}")
    name = '"{}"'.format(table.key[0].replace('"', '""'))
    return " OR ".join(f"({name} >= {start} AND {name} < {end})" for start, end in bounds)
