"""From the rows that stand for ranges of a log to change batches, in a task or in the driver."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Protocol

import pyarrow as pa

from databus.core import Pair, SourceCheckpoint, split_physical
from databus.filters import FrameFilter, StreamFilter
from databus.flow._batch import ChangeBatch
from databus.flow._counts import Counts
from databus.flow._decode import BATCH_BYTES, decode_ranges
from databus.link import Access, LookBack, RangeReader, RelayClient, any_of
from databus.places import Choice, chosen_by
from databus.schema import TableSchema
from databus.wire import FrameGroup

_ALL: Final = StreamFilter()


@lru_cache(maxsize=16)
def _client(relay: str, access: Access | None, wanted: StreamFilter, look_back: LookBack | None = None) -> RelayClient:
    """One for each process, which serves many batches: it remembers tables by their fingerprints."""
    client = RelayClient(relay, access=access).filtered(wanted)
    return client if look_back is None else client.looking_back(look_back)


class Definitions(Protocol):
    """Tells of tables' definitions; travels to tasks."""

    def of(self, fingerprint: int) -> TableSchema:
        """That of a fingerprint."""

    def now(self, name: str) -> TableSchema | None:
        """The one that a table, by its full name, has now; None if it is not captured any more."""


@dataclass(frozen=True)
class RelayTables:
    """Definitions, as a relay has them behind a filter."""

    relay: str
    access: Access | None
    """The files with which it is asked."""
    wanted: StreamFilter = _ALL

    def of(self, fingerprint: int) -> TableSchema:
        """See `Definitions.of`."""
        return _client(self.relay, self.access, self.wanted).table_of(fingerprint)

    def now(self, name: str) -> TableSchema | None:
        """See `Definitions.now`."""
        client = _client(self.relay, self.access, self.wanted)
        fingerprint = next((source.fingerprint for source in client.sources() if source.name == name), None)
        if fingerprint is None:
            return None
        table = client.table_of(fingerprint)
        return FrameFilter.over(self.wanted, split_physical(name)[0], table).cut_of(table).after


@dataclass(frozen=True)
class RangeDecoder:
    """Reads from a relay what the rows of `shape=ranges` stand for. Travels to tasks as it is."""

    relay: str
    access: Access | None
    """The files with which it is asked."""
    physical: str
    sources: tuple[str, ...] | None
    """Names to ask for; None for all."""
    wait_ms: int
    retry_ms: int
    wanted: StreamFilter = _ALL
    """What of their rows and columns."""
    look_back: LookBack | None = None
    """How a bootstrap service is asked for what the relay has lost; None: not at all. See `RangeReader` for the rest.
    """

    def __call__(self, collected: pa.Table, batch_bytes: int = BATCH_BYTES) -> Iterator[ChangeBatch]:
        """The ranges, in any order, as change batches in order, each small enough to be held.

        Raises what `decode_frames` does, and `TransientError` for a relay that does not answer.
        """
        return decode_ranges(collected, self._groups, self._client.table_of, batch_bytes)

    @property
    def _client(self) -> RelayClient:
        return _client(self.relay, self.access, self.wanted, self.look_back)

    def _groups(self, start: SourceCheckpoint, until: Pair, log: str) -> Iterator[tuple[list[FrameGroup], str]]:
        is_given = any_of(self.sources, self.physical)
        reader = RangeReader(self._client, self.physical, self.sources, is_given, self.wait_ms, self.retry_ms, log)
        for groups, stream in reader.groups(start, until):
            yield groups, stream.log


@dataclass(frozen=True)
class UnitedDecoder:
    """The same where tables are read through different filters: each part has some tables, and all of a range is one
    change batch, which the limit of a micro-batch bounds. Travels to tasks as it is.
    """

    parts: tuple[tuple[RangeDecoder, Choice], ...]

    def __call__(self, collected: pa.Table) -> Iterator[ChangeBatch]:
        """See `RangeDecoder`."""
        for row in sorted(collected.to_pylist(), key=lambda row: (row["after_scn"], row["after_seq"])):
            mine = pa.Table.from_pylist([row], collected.schema)
            yield _united([_part(decoder, choice, mine) for decoder, choice in self.parts])


def _part(decoder: RangeDecoder, choice: Choice, collected: pa.Table) -> ChangeBatch:
    (batch,) = decoder(collected, sys.maxsize)
    items = (item for item in batch.items if chosen_by(choice, f"{batch.physical}/{item.table.source}"))
    return replace(batch, items=tuple(items))


def _united(parts: Sequence[ChangeBatch]) -> ChangeBatch:
    first, items = parts[0], tuple(item for part in parts for item in part.items)
    before = first.start.snapshots
    after = dict(before)
    for part in parts:
        now: Mapping[str, int] = part.end.snapshots
        for source in {*before, *now}:
            if now.get(source) == before.get(source):
                continue  # another part has that table, or nothing has happened to it
            after.pop(source, None)
            after.update({source: now[source]} if source in now else {})
    counts = Counts.total(part.counts for part in parts)
    return replace(first, items=items, end=replace(first.end, snapshots=after), counts=counts)
