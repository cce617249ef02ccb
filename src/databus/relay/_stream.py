"""/stream: groups of a log, from any place in it to one client, as they are or as JSON.

A stream that is behind reads large pieces of the log's files in a thread, the next while the last is being sent, so
that a disk's slowness is its own. One that has everything stands at the log's tail (`databus.relay._tail`), where what
is published is made ready once for all. Either way a client that does not read stops at its socket, and nowhere else.

An error before the first byte is an answer with its status. After that the connection is reset, so that no
client takes what came for the whole; it asks again from where it is, and gets the error as an answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web

from databus.core import Checkpoint, DatabusError, MalformedRequest, Pair, SourceCheckpoint
from databus.filters import FrameFilter
from databus.formats import BigIntegers
from databus.log import Cursor, End, Log, Span
from databus.operate import logger_of
from databus.relay._catalog import Selection
from databus.relay._command_table import FRAMES, NDJSON
from databus.relay._feed import PublishFeed
from databus.relay._filters import check_filter, read_filtered
from databus.relay._grant import Grant
from databus.relay._ndjson import Renderer
from databus.relay._params import AtTime, Given, Start, StartName, StreamForm, start_of
from databus.relay._send import ClientGone, Sender, sender_of
from databus.relay._stats import OpenStream, Stats
from databus.relay._tail import NEAR_BYTES, Follower, Tail
from databus.wire import VERSION

BULK_BYTES: Final = 4 << 20  # read at once by a stream that is behind
JSON_BYTES: Final = 256 << 10  # and what becomes JSON at a time
HEADERS_MS_MAX: Final = 500  # a slower first read is not waited for before the headers are sent
ANSWER_BYTES_MAX: Final = 64 << 20  # the largest answer to a long poll; behind a filter, which is held: `BULK_BYTES`

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamAsk:
    """What a client wants of /stream, checked."""

    physical: str | None
    sources: list[str] | None
    start: Start
    to: Pair | None
    follow: bool
    wait_ms: int
    bytes_max: int | None
    json: BigIntegers | None

    @classmethod
    def of(cls, given: Given, accept: str) -> "StreamAsk":
        """From the command's parameters and the header Accept. Raises `MalformedRequest` if they do not go together."""
        output = given["output"] or (StreamForm.FRAMES if FRAMES in accept else StreamForm.JSON)
        if output is StreamForm.FRAMES:
            _check_version(accept)
        limit = "max_bytes" if given["size"] is None else "size"
        if given["follow"] and given[limit] is not None:
            raise MalformedRequest(f"{limit}: a stream that follows has no end in bytes")
        default = StartName.LATEST if output is StreamForm.JSON and given["follow"] else StartName.BEGINNING
        return cls(
            given["physical"],
            given["sources"],
            start_of(given, default),
            given["to"],
            given["follow"],
            given["wait_ms"],
            given[limit],
            given["big_integers"] if output is StreamForm.JSON else None,
        )


def _check_version(accept: str) -> None:
    """Refuse a client of databus that does not say that it reads frames of this version: it is an older one."""
    if FRAMES in accept and f"version={VERSION}" not in accept.replace(" ", ""):
        raise MalformedRequest(
            f"Accept: this relay sends frames of version {VERSION}, and this client reads older ones only; update the "
            f"client's databus and connect again. Its checkpoints stay good"
        )


def open_cursor(log: Log, start: Start) -> Cursor:
    """Find the place to start from; reads the disk.

    Raises `PositionPurged`, `PositionForeign`, `ServiceUnavailable`.
    """
    if isinstance(start, AtTime):
        return log.at_time(start.us)
    if isinstance(start, Checkpoint):
        mine = start.sources.get(log.physical)
        if mine is None:
            held = ", ".join(sorted(start.sources)) or "none"
            raise MalformedRequest(f"from.sources: the checkpoint holds no {log.physical!r}, but {held}")
        return log.locate(mine)
    if isinstance(start, SourceCheckpoint):
        return log.locate(start)
    if start is StartName.BEGINNING:
        return log.beginning()
    return log.earliest() if start is StartName.EARLIEST else log.latest()


def open_filtered(log: Log, start: Start, selection: Selection, frames: FrameFilter | None) -> Cursor:
    """The same, for whoever reads behind a filter, which has to fit what is read from there."""
    cursor = open_cursor(log, start)
    if frames is not None:
        tables, there = selection.tables(log.schemas), selection.grant.visible(log.schemas)
        check_filter(frames, tables, there, is_at_end=cursor.is_at_end)
    return cursor


class Streaming:
    """One request for a stream, from its first read to its end."""

    def __init__(
        self,
        request: web.Request,
        ask: StreamAsk,
        *,
        log: Log,
        feed: PublishFeed,
        tail: Tail,
        frames: FrameFilter | None,
        reader: Executor,
        stats: Stats,
        client: str,
        grant: Grant,
        now_us: int,
        write_ms_max: int,
    ) -> None:
        self._request = request
        self._ask = ask
        self._log = log
        self._feed = feed
        self._tail = tail
        self._filter = frames
        self._has_moved = ask.start is StartName.LATEST
        self._reader = reader
        self._stats = stats
        self._write_ms_max = write_ms_max
        self._selection = Selection(log.physical, ask.sources, grant)
        self._renderer: Renderer | None = None
        self._published = SourceCheckpoint()
        self._until = ask.to
        self._logger = logger_of("databus.relay").bind(physical=log.physical, client=client, access=grant.name)
        output = "frames" if ask.json is None else "json"
        selected = "all" if ask.sources is None else ",".join(ask.sources)
        self._stream = OpenStream(client, log.physical, selected, output, now_us, SourceCheckpoint(), access=grant.name)

    async def serve(self) -> web.StreamResponse:
        """Answer the request. Raises a `DatabusError` only while nothing has been sent."""
        self._selection.check(self._log.schemas)
        begin = partial(open_filtered, self._log, self._ask.start, self._selection, self._filter)
        cursor = await self._in_thread(begin)
        self._stream.position = cursor.position
        if self._ask.json is not None:
            self._renderer = Renderer(self._log, self._ask.json, cursor.position.pair)
        self._stats.opened(self._stream)
        try:
            return await self._serve(cursor)
        finally:
            self._stats.closed(self._stream, time.monotonic())

    async def _serve(self, cursor: Cursor) -> web.StreamResponse:
        if not self._ask.follow:
            return await self._once(cursor)
        self._published = cursor.view.checkpoint(cursor.view.published.commit)
        # An error in the first read is an answer, if it comes soon; the headers do not wait for a slow disk.
        first = asyncio.ensure_future(self._in_thread(lambda: self._read_first(cursor, self._bulk_bytes)))
        try:
            await asyncio.wait({first}, timeout=HEADERS_MS_MAX / 1e3)
        except asyncio.CancelledError:
            first.add_done_callback(_look_at)  # its result is not awaited any more
            raise
        if first.done():
            first.result()
        return await self._flow(cursor, first)

    async def _once(self, cursor: Cursor) -> web.StreamResponse:
        """Wait for something, then answer with what is there by then."""
        size = min(self._ask.bytes_max or self._bulk_bytes, ANSWER_BYTES_MAX if self._filter is None else BULK_BYTES)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._ask.wait_ms / 1e3
        while True:
            seen = self._feed.count
            content = await self._in_thread(lambda: self._read_first(cursor, size))
            wait_s = deadline - loop.time()
            if content or self._is_over(cursor) or wait_s <= 0:
                break
            await self._feed.wait(seen, wait_s)
        self._until = self._published.pair if self._until is None else min(self._published.pair, self._until)
        if self._ask.bytes_max is not None or not content or self._is_over(cursor):
            return await self._answer(cursor, content)
        first = asyncio.get_running_loop().create_future()
        first.set_result(content)
        return await self._flow(cursor, first)

    def _is_over(self, cursor: Cursor) -> bool:
        return cursor.has_reached(self._until)

    @property
    def _bulk_bytes(self) -> int:
        return BULK_BYTES if self._renderer is None else JSON_BYTES

    def _read_first(self, cursor: Cursor, bytes_max: int) -> "list[Span] | bytes":
        self._published = self._log.head().published
        return self._read(cursor, bytes_max)

    def _read(self, cursor: Cursor, bytes_max: int, until: End | None = None) -> "list[Span] | bytes":
        """What comes next: spans of the log, or JSON; empty at the published end or at the end of what was asked."""
        if self._is_over(cursor):
            return []
        sources = self._selection.ids(self._log.schemas)
        if self._filter is not None:
            content = read_filtered(cursor, self._filter, bytes_max, sources=sources, to=self._until, until=until)
            if self._renderer is None or not content:
                return content
            return self._renderer.rows(content) + self._renderer.position_line(cursor.position)
        spans = cursor.read(bytes_max, sources=sources, to=self._until, until=until)
        if self._renderer is None or not spans:
            return spans
        return self._renderer.lines(spans, cursor.position)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def _answer(self, cursor: Cursor, content: "list[Span] | bytes") -> web.StreamResponse:
        """A whole answer whose length is known; the connection is kept."""
        response = web.StreamResponse(headers=self._headers())
        response.content_length = _length(content)
        return await self._deliver(response, lambda sender: self._send(sender, content, cursor.position))

    async def _cut_off(self, sender: Sender) -> None:
        """Reset the connection once the client has what was sent before: that is valid, and must not look complete."""
        try:
            await sender.drain()
        finally:
            sender.abort()

    async def _flow(self, cursor: Cursor, first: "asyncio.Future[list[Span] | bytes]") -> web.StreamResponse:
        """An answer whose end is the end of the connection."""
        first.add_done_callback(_look_at)  # where the client leaves before it is waited for
        response = _Endless(headers=self._headers())
        response.force_close()

        async def send(sender: Sender) -> None:
            await self._run(cursor, await first, sender)

        return await self._deliver(response, send)

    async def _deliver(
        self, response: web.StreamResponse, send: Callable[[Sender], Awaitable[None]]
    ) -> web.StreamResponse:
        """Send the headers, and what `send` does. What goes wrong after them cuts the answer off."""
        await response.prepare(self._request)
        if self._request.method == "HEAD":
            return response
        sender = self._sender()
        try:
            await sender.after_headers()
            await send(sender)
        except ClientGone as gone:
            self._logger.info("client gone", message=str(gone), scn=self._stream.position.scn)
            sender.abort()
        except DatabusError as error:
            self._logger.warning("stream cut off", error=type(error).__name__, message=str(error))
            await self._cut_off(sender)
        except Exception:
            await self._cut_off(sender)
            raise
        except BaseException:  # cancelled: then too what came must not look complete
            sender.abort()
            raise
        finally:
            sender.close()
        return response

    async def _run(self, cursor: Cursor, content: "list[Span] | bytes", sender: Sender) -> None:
        """Send what there is from the log's files; at their end stand at the tail for as long as that goes."""
        may_stand = True
        while True:
            if content:
                self._has_moved = True
                content = await self._send_and_read(cursor, content, sender)
                continue
            if self._is_over(cursor) or (self._feed.is_over and self._until is None):
                if self._feed.error is not None:
                    raise self._feed.error
                return  # between two groups: a follower asks again from here
            seen = self._feed.count
            follower = self._stand_up(cursor, sender) if may_stand and self._has_moved else None
            if follower is not None:
                content = await self._stand(follower, cursor)
                may_stand = False  # before anything was read from the files: the tail has no use for it
                continue
            boundary = self._tail.boundary(cursor.place)
            content = await self._in_thread(partial(self._read, cursor, self._bulk_bytes, boundary))
            if not content and (may_stand or not self._has_moved):
                self._stream.at_tail = True
                await self._feed.wait(seen)
            may_stand = True

    def _stand_up(self, cursor: Cursor, sender: Sender) -> Follower | None:
        return self._tail.join(
            cursor,
            self._selection,
            sender,
            json=self._ask.json,
            frames=self._filter,
            to=self._until,
            note=lambda follower, count: self._stats.sent(self._stream, count, follower.position),
        )

    async def _stand(self, follower: Follower, cursor: Cursor) -> "list[Span] | bytes":
        """Stay at the tail until it is left; returns what is left of a group that was sent in part."""
        self._stream.at_tail = True
        try:
            error = await follower.left
        finally:
            self._tail.leave(follower)
        if error is not None:
            raise error
        self._stream.at_tail = False
        cursor.go(follower.place, follower.position)
        return follower.rest

    async def _send_and_read(
        self, cursor: Cursor, content: "list[Span] | bytes", sender: Sender
    ) -> "list[Span] | bytes":
        """Send, and while that takes its time read on, if there is a lot to read."""
        position = cursor.position
        if _length(content) < NEAR_BYTES or self._is_over(cursor):
            await self._send(sender, content, position)
            return []
        boundary = self._tail.boundary(cursor.place)
        ahead = asyncio.ensure_future(self._in_thread(partial(self._read, cursor, self._bulk_bytes, boundary)))
        try:
            await self._send(sender, content, position)
        except BaseException:
            ahead.add_done_callback(_look_at)
            raise
        return await ahead

    async def _send(self, sender: Sender, content: "list[Span] | bytes", position: SourceCheckpoint) -> None:
        before = sender.sent_bytes
        if isinstance(content, bytes):
            await sender.write(content)
        else:
            await sender.send(content)
        self._stats.sent(self._stream, sender.sent_bytes - before, position)

    def _sender(self) -> Sender:
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client closed the connection")
        return sender_of(transport, self._write_ms_max)

    def _headers(self) -> dict[str, str]:
        published = self._published
        seq = "" if published.seq is None else f":{published.seq}"
        return {
            "Content-Type": FRAMES if self._ask.json is None else NDJSON,
            "Cache-Control": "no-store",
            "x-dbus-physical": self._log.physical,
            "x-dbus-uuid": self._log.identity.uuid,
            "x-dbus-log": self._log.uuid,
            "x-dbus-published": f"{published.scn}{seq}",
        }


def _length(content: "list[Span] | bytes") -> int:
    return len(content) if isinstance(content, bytes) else sum(span.length for span in content)


def _look_at(future: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a read that is not awaited any more, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


class _Endless(web.StreamResponse):
    """A response without a length and without chunks: its end is the connection's."""

    _length_check = False
