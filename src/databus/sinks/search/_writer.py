"""What tasks do for a search output: the rows of a bucket of keys become documents, by bulk requests.

`version` is the SCN of a row's image, `version_type` external_gte: the server refuses what is older than what is there,
whoever sends it and whenever. Two images of one key and one SCN look the same to it, so of a batch only the last is
sent; where a transaction comes in parts, its rows wait for its end where they cannot be told apart (`HeldParts`), and
a fence keeps out whoever began before (`Fence`).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from databus.core import (
    AccessDenied,
    CorruptData,
    LockHeld,
    Pair,
    ServiceUnavailable,
    UnrepresentableValue,
    UnsupportedFeature,
)
from databus.flow import (
    BUCKETS_MAX,
    Bucket,
    BucketWriter,
    ChangeBatch,
    DeadLetters,
    Int,
    Letter,
    Letters,
    TableControl,
    TableRows,
    Taken,
    released_below,
    rows_above,
)
from databus.link import TOO_LARGE
from databus.schema import key_buckets, key_bytes
from databus.sinks.search._bulk import FILTER, NDJSON, BulkOperations, Refusal, Sorted, operations, sort_answer
from databus.sinks.search._client import SearchClient, SearchCluster, reason_of
from databus.sinks.search._control import CLAIM, FENCE, PLACE, ControlIndex
from databus.sinks.search._indices import IndexPlan, Indices, pairs_of_documents
from databus.sinks.search._parts import HASHES, HeldParts, HeldRows, TransactionPart
from databus.wire import is_inside_transaction

_STANDS_BESIDE: Final = (
    "the index has, or has deleted, another row of its document, which by its version is as new: one of the same "
    "transaction, which came in parts. The next change of the row puts it right, and so does `databus rebuild`"
)
_WAITS_FOR_REFRESH: Final = (
    ". With `refresh: wait` the server answers when the index has refreshed itself: its refresh_interval has to be "
    "shorter than request_ms_max, and -1 is never"
)
_NOT_THE_ROWS_FAULT: Final = frozenset({401, 403, 404})


@dataclass(frozen=True)
class SearchWriter:
    """Travels to tasks."""

    buckets: int
    cluster: SearchCluster
    plan: IndexPlan
    letters: DeadLetters
    """Where they are kept with `dead_letter`, and may be from when it was that."""
    refresh: str = "false"
    """`false`, `wait_for` or `true`, as a bulk request takes it."""
    bulk_bytes_max: int = 5 << 20
    bulk_rows_max: int = 10_000
    on_error: str = "halt"
    """What to do with rows that the server refuses."""

    def replay(self, given: Letters) -> list[Letter]:
        """Send letters again; returns those that are refused again. What the index has newer of a row stays, and so
        does what it has of the same transaction: the pipeline may be writing a later row of that.
        """
        client = self.cluster.client()
        index = _indices(client, self.plan).ready(given.physical, given.table)
        plan = self.plan
        made = operations(given.table, given.rows(), plan.key_of(given.table), index, soft=plan.soft, typed=plan.typed)
        not_over_equals = made.without_equals(np.ones(len(made), np.bool_))
        turned_away, refused = BulkSender(client, self, None).send(not_over_equals)
        again = {int(made.rows[refusal.place]): refusal.reason for refusal in refused}
        ids = {place: made.ids[place].as_py() for place in turned_away}
        there = pairs_of_documents(client, index, [*ids.values()], typed=plan.typed)
        again |= {
            int(made.rows[place]): _STANDS_BESIDE
            for place, name in ids.items()
            if there.get(name, (0, 0)) < made.pair(place)
        }
        return [replace(given.letters[place], reason=reason) for place, reason in sorted(again.items())]

    @contextmanager
    def open(self, bucket: Bucket) -> Iterator[BucketWriter]:
        """See `DirectWriter.open`."""
        client = self.cluster.client()
        control = ControlIndex(client, self.plan.owner, typed=self.plan.typed)
        fence = Fence(control, bucket.physical, bucket.number)
        yield _BucketOfSearch(self, bucket, client, _indices(client, self.plan), fence, control)


@lru_cache(maxsize=16)
def _indices(client: SearchClient, plan: IndexPlan) -> Indices:
    """One for each process, which serves many batches."""
    return Indices(client, plan)


class Fence:
    """Keeps those out who began before, where a transaction comes in parts: two rows of one key have one version then.

    Whoever writes a part says so first, and looks before each request whether somebody has come after him. A request
    that is on its way then does no harm, however late it is carried out: see `HeldParts`.
    """

    def __init__(self, control: ControlIndex, physical: str, number: int) -> None:
        self._control = control
        self._name = f"{physical}:{number}"
        self._token = ""

    def take(self) -> None:
        """Before parts are written."""
        self._token = uuid4().hex
        self._control.write(FENCE, self._name, {"token": self._token})

    def check(self) -> None:
        """Before each request. Raises `LockHeld`."""
        if not self._token:
            return
        fence = self._control.read(FENCE, self._name)
        if fence is None or fence["token"] != self._token:
            raise LockHeld(f"{self._name}: another attempt of this task has begun to write; this one ends")

    def end(self) -> None:
        """After all requests were answered."""
        self.check()
        self._token = ""


def shut_out_above(control: ControlIndex, physicals: Collection[str], buckets: int) -> None:
    """Keep out whoever writes a part into a bucket of these physical sources that is none any more: there are fewer
    now, and no task takes its fence. While nothing writes.
    """
    names = [f"{physical}:{number}" for physical in physicals for number in range(buckets, BUCKETS_MAX)]
    for name in control.present(FENCE, names):
        control.remove(FENCE, name)


class _BucketOfSearch:
    """Writes the rows of a bucket."""

    def __init__(
        self,
        writer: SearchWriter,
        bucket: Bucket,
        client: SearchClient,
        indices: Indices,
        fence: Fence,
        control: ControlIndex,
    ) -> None:
        self._writer = writer
        self._bucket = bucket
        self._client = client
        self._indices = indices
        self._fence = fence
        self._control = control
        held = HeldRows(client, typed=writer.plan.typed, before=fence.check)
        self._parts = HeldParts(held, indices, control, bucket)
        self._claims: set[str] = set()
        self._taken: dict[str, Taken] = {}  # of this batch, or has something newer of
        self.letters: Counter[str] = Counter()
        """See `CountsLetters`."""
        self.already: Counter[str] = Counter()
        """See `CountsKnown`."""

    def write(self, batch: ChangeBatch) -> Mapping[str, int]:
        """See `BucketWriter.write`. Controls are the driver's, once all buckets are there."""
        rows = _rows_left(batch)
        if self._bucket.reached is None:
            for source, table in {item.table.source: item.table for item in reversed(rows)}.items():
                self._claim(f"{batch.physical}/{source}", self._indices.ready(batch.physical, table), batch)
        begun, open_ = self._in_parts(batch)
        parts = {scn for scn in (begun, open_) if scn}
        if parts:
            self._fence.take()
        written: Counter[str] = Counter()
        self._taken.clear()
        self.letters.clear()
        self.already = batch.rows_by_source()
        for item in rows:
            self.already[item.table.source] -= item.rows.num_rows
            written[item.table.source] += self._put(batch, item, parts)
        if begun and begun != open_:
            self._parts.settle(self._part(batch, begun))
        self._fence.end()
        self._writer.letters.release_overtaken(self._taken)
        return written

    def _in_parts(self, batch: ChangeBatch) -> tuple[int, int]:
        """The SCN of the transaction of which a part came before, and of the one whose end comes later; 0 for none."""
        places = self._bucket.position.done
        known = [places(f"{batch.physical}/{item.table.source}") for item in batch.items]
        return _inside(max([batch.start.pair, *([min(known)] if known else [])])), _inside(batch.end.pair)

    def _part(self, batch: ChangeBatch, scn: int) -> TransactionPart:
        return TransactionPart(self._writer.plan.owner, batch.end.log or "", scn)

    def _claim(self, name: str, index: str, batch: ChangeBatch) -> None:
        """Where the ledger says nothing, rows may be of another database, whose versions say nothing here: whoever
        comes first has the table, so that of two pipelines of one name one is refused before it writes.

        Raises `UnsupportedFeature`, and `ServiceUnavailable` where a relay can say whether the claim is of its history.
        """
        if name in self._claims:
            return
        noted, log, uuid = self._control.read(PLACE, name), batch.end.log, self._indices.uuid(index)
        if noted is None or noted["uuid"] != uuid:
            end = {"scn": batch.end.scn, "txid": batch.end.txid, "ts_us": batch.end.ts_us}
            mine = {"index": index, "uuid": uuid, "log": log, "db": self._bucket.position.uuid, **end}
            self._control.change(CLAIM, name, lambda before: self._claimed(name, before, mine))
        elif noted["log"] not in (None, log) and not self._is_ours(noted):
            raise UnsupportedFeature(f"{self._of_other_log(name, noted, log)} {self._ways_out(name)}")
        self._claims.add(name)

    def _claimed(self, name: str, before: Mapping[str, Any] | None, mine: Mapping[str, Any]) -> Mapping[str, Any]:
        if before is None or before["uuid"] != mine["uuid"]:
            return mine
        if before["log"] not in (None, mine["log"], *self._bucket.accepted) and not self._is_ours(before):
            pair = self._of_other_log(name, before, mine["log"])
            if before["txid"]:
                raise ServiceUnavailable(f"{pair} The query begins again, and asks whose that is")
            raise UnsupportedFeature(f"{pair} {self._ways_out(name)}")
        return before

    def _is_ours(self, document: Mapping[str, Any]) -> bool:
        """Whether it says that it is of this database, whichever log that was read from."""
        return bool(self._bucket.position.uuid) and document.get("db") == self._bucket.position.uuid

    def _of_other_log(self, name: str, noted: Mapping[str, Any], log: str | None) -> str:
        return (
            f"outputs.{self._bucket.output}: index {noted['index']} holds {name} from log {noted['log']}, and the next "
            f"changes come from {log}: perhaps of another database, by another pipeline of this name."
        )

    def _ways_out(self, name: str) -> str:
        return (
            f"Restore the pipeline's state; or give one of two pipelines another name; or rebuild the index: "
            f"`databus rebuild FILE {self._bucket.output} {name}` (FILE is the pipeline's file)"
        )

    def _put(self, batch: ChangeBatch, item: TableRows, parts: set[int]) -> int:
        """Returns how many of the rows were written: the others the server has something newer of, wants no more, or
        refuses. parts: the transactions that come in parts.
        """
        plan, count, physical = self._writer.plan, int(item.rows.num_rows), batch.physical
        index = self._indices.ready(physical, item.table)
        item = replace(item, rows=rows_above(item.rows, self._indices.takes_above(index)))
        left = int(item.rows.num_rows)
        made = operations(item.table, item.rows, plan.key_of(item.table), index, soft=plan.soft, typed=plan.typed)
        bulk = BulkSender(self._client, self._writer, self._fence)
        is_part = np.isin(made.scns, [*parts])
        turned_away, refused = bulk.send(made.without_equals(is_part) if is_part.any() else made)
        held = np.array(sorted(row for row in turned_away if is_part[row]), np.int64)
        stale = len(turned_away) - len(held)
        source = f"{physical}/{item.table.source}"
        for scn in parts if len(held) else ():
            places = held[made.scns[held] == scn]
            keys = key_bytes(item.rows.take(made.rows[places]).select(plan.key_of(item.table)).columns)
            self._parts.hold(self._part(batch, scn), source, index, made.take(places), key_buckets(keys, HASHES))
        if refused:
            self._refuse(source, index, item, made, refused)
            self.letters[item.table.source] += len(refused)
        is_taken = np.ones(len(made), np.bool_)
        is_taken[[refusal.place for refusal in refused]] = False
        taken = self._taken.setdefault(source, Taken())
        taken.add(made.ids.filter(pa.array(is_taken)), made.scns[is_taken], made.seqs[is_taken])
        self.already[item.table.source] += count - left + stale
        return left - stale - len(refused)

    def _refuse(
        self, source: str, index: str, item: TableRows, made: BulkOperations, refused: Sequence[Refusal]
    ) -> None:
        are_kept = self._writer.on_error == "dead_letter"
        if not are_kept or any(refusal.status in _NOT_THE_ROWS_FAULT for refusal in refused):
            raise self._error(source, index, made, refused)
        refused = sorted(refused, key=lambda refusal: int(made.rows[refusal.place]))
        places = [refusal.place for refusal in refused]
        reasons = [
            (name, f"status {refusal.status}: {refusal.reason}")
            for name, refusal in zip(made.ids.take(places).to_pylist(), refused, strict=True)
        ]
        self._writer.letters.put(source, item.table, item.rows.take(made.rows[places]), reasons)

    def _error(self, source: str, index: str, made: BulkOperations, refused: Sequence[Refusal]) -> Exception:
        first = refused[0]
        message = (
            f"{source}: index {index} refuses {len(refused)} rows of a batch; of them the row at "
            f"{made.pair(first.place)} (SCN, _seq), document {made.ids[first.place].as_py()}: status {first.status}: "
            f"{first.reason}"
        )
        if first.status in (401, 403):
            return AccessDenied(f"{message}. Look at `user`, `password`, `api_key` and at what they may do")
        if first.status == 404:
            return CorruptData(
                f"{message}. The index was removed while it was written: `databus rebuild` makes it again"
            )
        if self._writer.on_error == "retry":
            return ServiceUnavailable(f"{message}. It is tried again")
        return UnrepresentableValue(
            f"{message}. Give the column another `mapping` and rebuild the index with `databus rebuild`, or "
            f"leave the column out with the filter `project`"
        )


def _rows_left(batch: ChangeBatch) -> list[TableRows]:
    """The rows of a batch, without those of which a control of the same batch says that they are no more. They may have
    its version, by which another attempt at the batch would bring back what the driver has removed.
    """
    below: dict[str, Pair] = {}
    for control in (item for item in batch.items if isinstance(item, TableControl)):
        pair, source = released_below(batch, control), control.table.source
        if pair is not None:
            below[source] = max(pair, below.get(source, (0, 0)))
    rows = (item for item in batch.items if isinstance(item, TableRows))
    return [replace(item, rows=rows_above(item.rows, below.get(item.table.source, (0, 0)))) for item in rows]


class BulkSender:
    """Sends operations until each row is in the index, stale or refused."""

    def __init__(self, client: SearchClient, writer: SearchWriter, fence: Fence | None) -> None:
        self._client = client
        self._writer = writer
        self._fence = fence
        self._path = f"/_bulk?{FILTER}" + ("" if writer.refresh == "false" else f"&refresh={writer.refresh}")
        self._hint = _WAITS_FOR_REFRESH if writer.refresh == "wait_for" else ""

    def send(self, made: BulkOperations) -> tuple[list[int], list[Refusal]]:
        """Returns which were stale, and those refused, by their places in `made`.

        Raises `ServiceUnavailable` if rows are turned away for want of room for `retry_ms_max`.
        """
        stale: list[int] = []
        refused: list[Refusal] = []
        for begin, end, body in made.requests(self._writer.bulk_bytes_max, self._writer.bulk_rows_max):
            some, refusals = self._send(made, np.arange(begin, end), body)
            stale += some
            refused += refusals
        return stale, refused

    def _send(self, made: BulkOperations, places: Int, body: bytes) -> tuple[list[int], list[Refusal]]:
        stale: list[int] = []
        refused: list[Refusal] = []
        backoff = self._client.backoff()
        while True:
            answers = self._sorted(body, len(places))
            if answers is None:
                return self._in_halves(made, places, stale, refused)
            stale += [int(places[place]) for place in answers.stale]
            refused += [refusal._replace(place=int(places[refusal.place])) for refusal in answers.refused]
            if not answers.busy:
                return stale, refused
            if len(answers.busy) < len(places):
                backoff.extend()
            elif backoff.is_over:
                raise ServiceUnavailable(
                    f"{self._client.name} takes no rows ({answers.why}). Those that it took are no loss: all come again"
                )
            places = places[list(answers.busy)]
            backoff.sleep()
            body = _body(made.take(places))

    def _in_halves(
        self, made: BulkOperations, places: Int, stale: list[int], refused: list[Refusal]
    ) -> tuple[list[int], list[Refusal]]:
        """Send rows in two requests that were too large as one."""
        for half in np.array_split(places, 2):
            some, refusals = self._send(made, half, _body(made.take(half)))
            stale += some
            refused += refusals
        return stale, refused

    def _sorted(self, body: bytes, rows: int) -> Sorted | None:
        """What has become of the rows; None where the request is too large, and can be a smaller one."""
        if self._fence is not None:
            self._fence.check()
        try:
            answer = self._client.send("POST", self._path, body, NDJSON)
        except ServiceUnavailable as error:
            raise ServiceUnavailable(f"{error}{self._hint}") from error
        if answer.status == TOO_LARGE:
            return (
                Sorted(refused=(Refusal(0, TOO_LARGE, f"{len(body)} bytes: {reason_of(answer)}"),))
                if rows == 1
                else None
            )
        if answer.status >= 300:
            raise self._client.error_of(answer, "POST /_bulk")
        try:
            return sort_answer(answer.content, rows)
        except ValueError as error:
            raise ServiceUnavailable(f"{self._client.name}: {error}. All rows are sent again") from error


def _body(rows: BulkOperations) -> bytes:
    return b"".join(body for _, _, body in rows.requests(1 << 62, len(rows)))


def _inside(pair: Pair) -> int:
    """The SCN of the transaction that a position lies in; 0 where it lies in none."""
    return pair[0] if pair[0] and is_inside_transaction(pair) else 0


def pair_of(document: Mapping[str, int]) -> Pair:
    """The pair of a document of the control index."""
    return int(document["scn"]), int(document["seq"])
