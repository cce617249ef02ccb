"""What tasks do for the output `http`: the changes of a bucket of keys are posted, one request after the other.

A request is answered before the next is sent, so the changes of a key arrive in order. What is sent again, whole or
with other boundaries, is told by the rows' pairs; a request that is the same to the byte has the same id.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from databus.core import AccessDenied, DatabusError, InputError, ServiceUnavailable, UnrepresentableValue
from databus.tasks._batch import ChangeBatch, TableRows
from databus.tasks._direct import Bucket, BucketWriter
from databus.tasks.http._bodies import BodyForm, Request
from databus.tasks.http._client import Answer, Target
from databus.tasks.http._signature import headers_of_request

_NOT_THE_ROWS_FAULT: Final = frozenset({404, 405, 407, 410})
_TOO_LARGE: Final = 413


@dataclass(frozen=True)
class HttpWriter:
    """Travels to tasks. keys: that requests are signed with. on_error: what to do about requests that are refused."""

    buckets: int
    target: Target
    form: BodyForm
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    on_error: str = "halt"

    @contextmanager
    def open(self, bucket: Bucket) -> Iterator[BucketWriter]:
        """See `DirectWriter.open`."""
        yield _BucketOfRequests(self, bucket)


class _BucketOfRequests:
    """Posts the changes of a bucket."""

    def __init__(self, writer: HttpWriter, bucket: Bucket) -> None:
        self._writer = writer
        self._bucket = bucket
        self._client = writer.target.client()

    def write(self, batch: ChangeBatch) -> Mapping[str, int]:
        """See `BucketWriter.write`."""
        for request in self._writer.form.requests(batch, self._bucket.takes_controls_of):
            self._deliver(batch, request)
        written: Counter[str] = Counter()
        for item in batch.items:
            if isinstance(item, TableRows):
                written[item.table.source] += item.rows.num_rows
        return written

    def _deliver(self, batch: ChangeBatch, request: Request) -> None:
        """Send a request until it is taken; what is too large for the target goes in smaller ones."""
        left = [request]
        while left:
            each = left.pop()
            answer = self._send(batch, each)
            if answer.status == _TOO_LARGE and each.messages > 1:
                left += reversed(each.halves())
            elif not 200 <= answer.status < 300:
                raise self._error(each, answer)

    def _send(self, batch: ChangeBatch, request: Request) -> Answer:
        writer, body = self._writer, request.body
        request_id = self._id_of(batch, request, body)

        def headers() -> Mapping[str, str]:
            return headers_of_request(request_id, int(time.time()), body, writer.keys)

        return self._client.post(request.url, body, writer.form.content_type, headers)

    def _id_of(self, batch: ChangeBatch, request: Request, body: bytes) -> str:
        """The same for the same bytes from the same place, and another for all else."""
        bucket = self._bucket
        place = [bucket.pipeline, bucket.output, batch.physical, batch.end.log, bucket.number, bucket.buckets]
        told = json.dumps([*place, request.first, request.last]).encode()
        return hashlib.sha256(told + b"\n" + body).hexdigest()[:32]

    def _error(self, request: Request, answer: Answer) -> DatabusError:
        output = self._bucket.output
        where = (
            f"outputs.{output}: the request with the {request.messages} changes from {request.first} to {request.last} "
            f"(SCN, _seq) was refused: {answer}"
        )
        if 300 <= answer.status < 400:
            return InputError(
                f"{where}. Redirects are not followed, for body and signature would go to somebody else; give the "
                f"address where it leads as `url`"
            )
        if answer.status in (401, 403):
            return AccessDenied(f"{where}. Look at `headers` and `secret`, and at what the target lets in")
        if self._writer.on_error == "retry":
            return ServiceUnavailable(f"{where}. It is tried again")
        if answer.status in _NOT_THE_ROWS_FAULT:
            return InputError(f"{where}. Look at `url`")
        return UnrepresentableValue(
            f"{where}. Have the target take it, or leave the rows out by a filter (`where`); with `on_error: retry` it "
            f"is tried again"
        )
