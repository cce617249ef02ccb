"""Writes a batch as a run does: by tasks where the output has some, which fail and repeat as in a cluster."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from databus.core import SEQ_DONE, Pair, SourceCheckpoint
from databus.flow import (
    RECEIPTS,
    Bucket,
    DirectFeed,
    DirectWriter,
    Here,
    Stage,
    StagedBatch,
    StagedFeed,
    Tasks,
    Ways,
    joined,
    joined_buckets,
    last_pair,
    rows_above,
)
from databus.pipeline import ChangeBatch, Output, Restage, TableControl, TableRows, Written
from databus.plugins import Discards, TakesOver

_STAGES_MAX: Final = 100

Committed = TypeVar("Committed")
T = TypeVar("T")


def opened(output: Output) -> Output:
    """An output, opened as by a run whose ledger says nothing."""
    output.open()
    if isinstance(output, TakesOver):
        output.take_over({}, ())
    return output


def write_batch(output: Output, batch: ChangeBatch) -> None:
    """Have an output write a batch, by whichever way it has."""
    writer = output.part_writer()
    if writer is None:
        output.write(batch)
    elif isinstance(writer, DirectWriter):
        bucket = Bucket(output.context.pipeline, output.context.output, batch.physical)
        for staged in write_buckets(output, batch, bucket):
            output.commit(staged, Here())
    else:
        write_by_tasks(output, batch, output.commit, partial(discard, output))


def discard(output: Output, batch: StagedBatch) -> None:
    """Have an output remove what tasks have written for nothing, if it can."""
    if isinstance(output, Discards):
        output.discard(batch)


def write_by_tasks(
    output: Output,
    batch: ChangeBatch,
    commit: Callable[[StagedBatch, Tasks], Committed],
    discard: Callable[[StagedBatch], object],
) -> Committed:
    """Have two tasks write a batch (every second batch: one task), run the first of them twice, and commit what they
    return. Returns the result of `commit`.
    """
    return _committed(output, batch, _staged, lambda staged: commit(staged, Unlucky()), discard)


def write_here(output: Output, batch: ChangeBatch) -> Written | None:
    """Write a batch as one task does, and commit it, all in this process."""
    return _committed(output, batch, _staged_whole, partial(output.commit, tasks=Here()), partial(discard, output))


def _committed(
    output: Output,
    batch: ChangeBatch,
    stage: Callable[[StagedFeed, ChangeBatch], list[StagedBatch]],
    commit: Callable[[StagedBatch], Committed],
    discard: Callable[[StagedBatch], object],
) -> Committed:
    above: dict[str, Pair] = {}
    fits: dict[str, pa.Schema] = {}
    for _ in range(_STAGES_MAX):
        writer = output.part_writer()
        assert writer is not None
        assert not isinstance(writer, DirectWriter)
        (staged,) = stage(StagedFeed(_all, _as_they_are, writer, partial(_done, above), fits), batch)
        staged = replace(staged, ahead=batch.ahead, seeds=batch.seeds, ways=batch.ways)
        try:
            return commit(staged)
        except Restage as again:
            discard(staged)
            above.update(again.above)
            fits.update(again.fits)
        except Exception:  # raised again; as in a run, no files stay behind
            discard(staged)
            raise
    raise AssertionError(f"{_STAGES_MAX} stages were not enough")


def write_buckets(output: Output, batch: ChangeBatch, bucket: Bucket) -> list[StagedBatch]:
    """Have one task for each bucket write a batch; the first is run twice, the second time after the others."""
    writer = output.part_writer()
    assert isinstance(writer, DirectWriter)
    feed = DirectFeed(Ways(key=output.config.key_choice), writer, bucket)

    def decode(_: pa.Table) -> Iterable[ChangeBatch]:
        return [batch]

    nothing = pa.table({})
    feed.write_ranges(decode, nothing, 0)  # a task whose answer is lost
    buckets = reversed(range(writer.buckets))
    answers = [(number, text) for number in buckets for text in feed.write_ranges(decode, nothing, number)]
    receipts = pa.table([[number for number, _ in answers], [text for _, text in answers]], schema=RECEIPTS)
    return joined_buckets(receipts, writer.buckets)


def _staged_whole(feed: StagedFeed, batch: ChangeBatch) -> list[StagedBatch]:
    stage = Stage(lambda _: [batch], [feed])
    return joined(pa.Table.from_batches([*stage(iter([pa.record_batch({"n": [0]})]))]), 0)


def _staged(feed: StagedFeed, batch: ChangeBatch) -> list[StagedBatch]:
    halves = [batch] if batch.start.scn % 2 else _halves(batch)
    if len(halves) == 1:
        halves = [replace(batch, is_whole=True)]

    def decode(part: pa.Table) -> Iterable[ChangeBatch]:
        return [halves[part.column("half")[0].as_py()]]

    stage = Stage(decode, [feed])
    parts = [pa.record_batch({"half": [number]}) for number in range(len(halves))]
    list(stage(iter(parts[:1])))  # a task whose answer is lost
    return joined(pa.Table.from_batches([*stage(iter(reversed(parts)))]), 0)


@dataclass(frozen=True)
class Unlucky:
    """Tasks of a machine where they end in another order than they began, and the first one's answer is lost."""

    slots: int = 3
    rows_min: int = 1

    def run(self, task: Callable[[int], T], count: int) -> list[T]:
        """See `Tasks.run`."""
        if count:
            task(0)
        return [task(number) for number in reversed(range(count))][::-1]


def _done(above: Mapping[str, Pair], name: str) -> Pair:
    return above.get(name, (0, 0))


def _all(name: str) -> bool:
    del name
    return True


def _as_they_are(name: str, rows: TableRows, dropped: object) -> Sequence[TableRows]:
    del name, dropped
    return (rows,)


def _halves(batch: ChangeBatch) -> list[ChangeBatch]:
    """A batch as two ranges of it, cut at the end of a transaction in its middle, where there is one."""
    scns = sorted({scn for item in batch.items for scn in _scns(item) if scn > batch.start.scn})
    if len(scns) < 2:
        return [batch]
    cut = (scns[len(scns) // 2 - 1], SEQ_DONE)
    before = [part for item in batch.items if (part := _part(item, cut, is_above=False)) is not None]
    after = [part for item in batch.items if (part := _part(item, cut, is_above=True)) is not None]
    middle = SourceCheckpoint(scn=cut[0], log=batch.end.log)
    return [replace(batch, end=middle, items=tuple(before)), replace(batch, start=middle, items=tuple(after))]


def _scns(item: TableRows | TableControl) -> set[int]:
    return {item.pair[0]} if isinstance(item, TableControl) else set(item.rows.column("_commit_version").to_pylist())


def _part(item: TableRows | TableControl, cut: Pair, *, is_above: bool) -> TableRows | TableControl | None:
    if isinstance(item, TableControl):
        return item if (item.pair > cut) == is_above else None
    above = rows_above(item.rows, cut)
    rows = above if is_above else item.rows.slice(0, item.rows.num_rows - above.num_rows)
    assert rows.num_rows == 0 or is_above or last_pair(rows) <= cut
    return replace(item, rows=rows) if rows.num_rows else None
