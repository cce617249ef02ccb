"""What tasks do for the output `http`: the changes of a bucket of keys are posted, one request after the other.

A request is answered before the next is sent, so the changes of a key arrive in order. What is sent again, whole or
with other boundaries, is recognized by the rows' pairs; a request that is the same to the byte has the same id.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from databus.core import (
    AccessDenied,
    DatabusError,
    InputError,
    ServiceUnavailable,
    SourceCheckpoint,
    UnrepresentableValue,
)
from databus.flow import Bucket, BucketWriter, ChangeBatch, DeadLetters, KeyChoice, Letter, Letters, Parking, TableRows
from databus.link import TOO_LARGE
from databus.sinks.http._bodies import BodyForm, BodyRequest
from databus.sinks.http._client import HttpTarget, TargetAnswer
from databus.sinks.http._signature import headers_of_request

_DENIED: Final = frozenset({401, 403})
_NOT_THE_ROWS_FAULT: Final = frozenset({405, 407, 410})
_LOOKS_LIKE_THE_URL: Final = _NOT_THE_ROWS_FAULT | {404}


@dataclass(frozen=True)
class HttpWriter:
    """Travels to tasks."""

    buckets: int
    target: HttpTarget
    form: BodyForm
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """That requests are signed with."""
    on_error: str = "halt"
    """What to do about requests that are refused."""
    letters: DeadLetters | None = None
    """Where rows are kept that are, with `dead_letter`."""
    key: KeyChoice = field(default_factory=KeyChoice)
    """By which the output tells rows apart."""

    def replay(self, bucket: Bucket, given: Letters, letters: DeadLetters) -> list[Letter]:
        """Send letters again, in order; returns those that are refused again, or behind an earlier letter of their key.

        letters: all that there are. Those that are forgotten meanwhile are not sent any more: a target that has had
        a truncation is not to get a row from before.
        """
        nowhere = SourceCheckpoint()
        batch = ChangeBatch(given.physical, nowhere, nowhere, (TableRows(given.table, given.rows()),))
        parking = Parking(letters, self.key, batch, given)
        _BucketOfRequests(self, bucket, lambda: letters.has(given)).send(batch, parking)
        return [replace(given.letters[row], reason=why) for row, why in parking.held(0)]

    @contextmanager
    def open(self, bucket: Bucket) -> Iterator[BucketWriter]:
        """See `DirectWriter.open`."""
        yield _BucketOfRequests(self, bucket)


class _Over(Exception):
    """What is left is not to be sent any more."""


class _BucketOfRequests:
    """Posts the changes of a bucket. goes_on: asked before each attempt at a request, which may be tried for long."""

    def __init__(self, writer: HttpWriter, bucket: Bucket, goes_on: Callable[[], bool] = lambda: True) -> None:
        self._writer = writer
        self._bucket = bucket
        self._goes_on = goes_on
        self._client = writer.target.client()
        self.letters: Counter[str] = Counter()
        """See `CountsLetters`."""

    def write(self, batch: ChangeBatch) -> Mapping[str, int]:
        """See `BucketWriter.write`."""
        letters = self._writer.letters
        parking = None if letters is None else Parking(letters, self._writer.key, batch)
        if parking is not None:
            parking.release()
        self.send(batch, parking)
        if parking is not None:
            parking.put()
            parking.release()
        written: Counter[str] = Counter()
        self.letters.clear()
        for number, item in enumerate(batch.items):
            if isinstance(item, TableRows):
                held = 0 if parking is None else len(parking.held(number))
                written[item.table.source] += item.rows.num_rows - held
                self.letters[item.table.source] += held
        return written

    def send(self, batch: ChangeBatch, parking: Parking | None) -> None:
        """Send what is not held back. parking: takes what is refused; None where that is an error."""
        holds = None if parking is None else parking.holds
        with suppress(_Over):
            for request in self._writer.form.requests(batch, self._bucket.takes_controls_of, holds):
                self._deliver(batch, request, parking)

    def _deliver(self, batch: ChangeBatch, request: BodyRequest, parking: Parking | None) -> None:
        """Send a request until it is taken, or each of its changes is held back that the target refuses; what is too
        large for the target goes in smaller ones, and so does what is refused, until that is one change.
        """
        left = [request] if parking is None else request.without(parking.holds)[::-1]
        while left:
            request = left.pop()
            answer = self._send(batch, request)
            if answer.is_taken:
                continue
            is_held = parking is not None and _is_of_the_rows(answer)
            if request.messages > 1 and (is_held or answer.status == TOO_LARGE):
                left += reversed(request.halves())
                continue
            number, row = request.origin
            if parking is None or not is_held or number < 0:
                raise self._error(request, answer)
            parking.refuse(number, row, str(answer))
            left = [piece for one in left for piece in reversed(one.without(parking.holds))]

    def _send(self, batch: ChangeBatch, request: BodyRequest) -> TargetAnswer:
        writer, body = self._writer, request.body
        request_id = self._id_of(batch, request, body)

        def headers() -> Mapping[str, str]:
            if not self._goes_on():
                raise _Over
            return headers_of_request(request_id, int(time.time()), body, writer.keys)

        return self._client.post(request.url, body, writer.form.content_type, headers)

    def _id_of(self, batch: ChangeBatch, request: BodyRequest, body: bytes) -> str:
        """The same for the same bytes from the same place, and another for all else."""
        bucket = self._bucket
        place = [bucket.pipeline, bucket.output, batch.physical, batch.end.log, bucket.number, bucket.buckets]
        identity = json.dumps([*place, request.first, request.last]).encode()
        return hashlib.sha256(identity + b"\n" + body).hexdigest()[:32]

    def _error(self, request: BodyRequest, answer: TargetAnswer) -> DatabusError:
        output = self._bucket.output
        where = (
            f"outputs.{output}: the request with the {request.messages} changes from {request.first} to {request.last} "
            f"(SCN, _seq) was refused: {answer}"
        )
        if 300 <= answer.status < 400:
            return InputError(
                f"{where}. Redirects are not followed, for body and signature would go to another server; give the "
                f"address where it leads as `url`"
            )
        if answer.status in _DENIED:
            return AccessDenied(f"{where}. Look at `headers` and `secret`, and at what the target lets in")
        if self._writer.on_error == "retry":
            return ServiceUnavailable(f"{where}. It is tried again")
        if answer.status in _LOOKS_LIKE_THE_URL:
            return InputError(f"{where}. Look at `url`")
        return UnrepresentableValue(
            f"{where}. Have the target take it, or leave the rows out by a filter (`where`); with `on_error: retry` it "
            f"is tried again"
        )


def _is_of_the_rows(answer: TargetAnswer) -> bool:
    """Whether the target refuses a request for what is in it."""
    return answer.status >= 400 and answer.status not in _DENIED | _NOT_THE_ROWS_FAULT
