"""The tail: what a log published last, in memory, for all who have been sent everything before it.

It is read and checked once, made into what is wanted once for each distinct request, and handed to each follower's
socket in one send: no task, no file and no walk for each of them. What is published while a socket is full goes out
together when it is not. Memory is bounded: a follower that has not been sent the oldest chunk when that has to go
leaves the tail, reads the log's files in large pieces at its own pace, and comes back at the end. Without
followers nothing is read.

All of it belongs to the event loop's thread, but for reading and rendering what is large.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from databus.core import DatabusError, Pair, SourceCheckpoint
from databus.disk import BUFFERS_A_CALL_MAX
from databus.filters import FrameFilter, StreamFilter
from databus.formats import BigIntegers
from databus.log import Cursor, End, Log, LogView, Span
from databus.operate import logger_of
from databus.relay._catalog import Selection
from databus.relay._chunk import Made, Piece, State, TailChunk, read_chunk
from databus.relay._feed import PublishFeed
from databus.relay._grant import Grant
from databus.relay._ndjson import Renderer
from databus.relay._send import BURST_BYTES_MAX, ClientGone, Sender

NEAR_BYTES: Final = 256 << 10
"""Who comes to an empty tail may be so far behind the published end."""
_IN_LOOP_BYTES: Final = 64 << 10  # read in the loop's thread; what is more, in another
_RENDER_IN_LOOP_BYTES: Final = 16 << 10

_logger = logger_of("databus.relay")
LineKey = tuple[frozenset[str] | None, Grant, BigIntegers | None, StreamFilter | None]
"""Names of sources, None for all; what the reader may see; how big integers are written in JSON, None for frames; and
the filter.
"""


def key_of(selection: Selection, json: BigIntegers | None, frames: FrameFilter | None) -> LineKey:
    """What two requests have in common whose followers are sent the same."""
    names = None if selection.names is None else frozenset(selection.names)
    return names, selection.grant, json, None if frames is None else frames.wanted


def state_of(position: SourceCheckpoint) -> State:
    """The snapshots that are open at a position."""
    return tuple(sorted(position.snapshots.items())) if position.snapshots else ()


class TailLine:
    """Followers with one key, and what is made for them.

    made: the number of the first chunk that nothing has been made of yet. `make` runs in one thread at a time, the rest
    in the loop's.
    """

    def __init__(
        self,
        log: Log,
        view: LogView,
        selection: Selection,
        json: BigIntegers | None,
        frames: FrameFilter | None,
        made: int,
    ) -> None:
        self._log = log
        self._view = view
        self._selection = selection
        self._renderer = None if json is None else Renderer(log, json)
        self._frames = frames
        self.key = key_of(selection, json, frames)
        self.followers: set[Follower] = set()
        self.made = made
        self.is_rendering = False

    @property
    def renders(self) -> bool:
        """Whether making something of a chunk takes more than copying."""
        return self._renderer is not None or self._frames is not None

    def make(self, chunk: TailChunk) -> int:
        """Have the chunk hold what this line makes of it; returns the bytes that takes.

        Raises `CorruptData`, and what the filter says of a change that it cannot follow.
        """
        sources = self._selection.ids(self._log.schemas)
        if self._frames is None:
            content = chunk.content_of(sources)
        else:
            result = self._frames.filtered(chunk.content, chunk.cut, sources)
            if result.error is not None:
                raise result.error
            content = result.content
        if self._renderer is not None:
            content = self._renderer.rows(content)
        chunk.made[self.key] = Made(content, sources)
        return 0 if content is chunk.content else len(content)

    def piece(self, chunk: TailChunk, before: SourceCheckpoint, state: State) -> Piece:
        """What to send of a chunk that was made, to who stands at `before` with these snapshots open."""
        piece = chunk.pieces.get((self.key, state))
        if piece is None:
            made = chunk.made[self.key]
            position = self._view.checkpoint_after(chunk.end.commit, before, made.sources)
            renderer = self._renderer
            buffers = (made.content,) if renderer is None else (made.content, renderer.position_line(position))
            piece = Piece(buffers, sum(map(len, buffers)), position, state_of(position))
            chunk.pieces[self.key, state] = piece
        return piece

    def rest_of(self, chunk: TailChunk, piece: Piece, bytes_done: int) -> list[Span] | bytes:
        """What is left of a piece of which so much was sent; frames as they stand in the log."""
        if not self.renders:
            return chunk.spans_behind(chunk.made[self.key].sources, bytes_done)
        return b"".join(piece.buffers)[bytes_done:]


class Follower:
    """A stream at the tail: it has been sent all chunks before number `next`, and `done` bytes of that one.

    position, state: where it stands, and the snapshots open there. to: it leaves before the chunk that reaches this
    pair. left: set when it is at the tail no more, to the error that ended it, if one did; `rest` is then what is left
    of a chunk of which it was sent a part, and `place` where the log goes on behind that.
    """

    __slots__ = (
        "_note", "_tail", "_unblock", "done", "is_blocked", "left", "line", "next", "place", "position", "rest",
        "sender", "state", "to",
    )  # fmt: skip

    def __init__(
        self,
        tail: "Tail",
        line: TailLine,
        cursor: Cursor,
        number: int,
        sender: Sender,
        to: Pair | None,
        note: Callable[["Follower", int], None],
    ) -> None:
        self._tail = tail
        self._note = note
        self._unblock: Callable[[], None] | None = None
        self.line = line
        self.next = number
        self.done = 0
        self.place = cursor.place
        self.position = cursor.position
        self.state = state_of(cursor.position)
        self.sender = sender
        self.to = to
        self.is_blocked = False
        self.rest: list[Span] | bytes = b""
        self.left: asyncio.Future[DatabusError | None] = asyncio.get_running_loop().create_future()

    def push(self) -> None:
        """Send what there is, as far as the socket takes it."""
        if self.is_blocked or self.next >= self.line.made or self.left.done():
            return
        pieces = self._tail.pieces(self)
        if not pieces:
            self._tail.leave(self)  # the log's files tell where exactly `to` is
            return
        try:
            count = self.sender.try_write([buffer for piece in pieces for buffer in piece.buffers], self.done)
        except ClientGone as gone:
            self._tail.leave(self, gone)
            return
        if count:
            self._sent(pieces, count)
            self._note(self, count)
        if self.done or not count:
            self.is_blocked = True
            self._unblock = self.sender.when_writable(self._has_room)
        elif self.next < self.line.made:
            asyncio.get_running_loop().call_soon(self.push)  # the others have their turn first

    def _sent(self, pieces: list[Piece], count: int) -> None:
        left = self.done + count
        for piece in pieces:
            if left < piece.bytes:
                break
            left -= piece.bytes
            self.next += 1
            self.position, self.state = piece.position, piece.state
        self.done = left

    def _has_room(self, error: DatabusError | None) -> None:
        self.is_blocked, self._unblock = False, None
        if error is None:
            self.push()
        else:
            self._tail.leave(self, error)

    def end(self, error: DatabusError | None) -> None:
        """Be at the tail no more."""
        if self._unblock is not None:
            self._unblock()
            self._unblock = None
        if not self.left.done():
            self.left.set_result(error)


class Tail:
    """The tail of one log, and who stands there. bytes_max: what it may hold in memory."""

    def __init__(self, log: Log, feed: PublishFeed, reader: Executor, bytes_max: int) -> None:
        self.log = log
        self._feed = feed
        self._reader = reader
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._lines: dict[LineKey, TailLine] = {}
        self._followers: set[Follower] = set()
        self._clear(log.latest())

    def _clear(self, cursor: Cursor) -> None:
        self._cursor = cursor  # reads what comes next; in another thread while `_is_reading`
        self._place = cursor.place
        self._is_reading = False
        self._chunks: deque[TailChunk] = deque()
        self._numbers: dict[tuple[int, int], int] = {}  # of the chunks, by where they start
        self._first = 0  # number of the oldest chunk held
        self._bytes = 0

    @property
    def _end(self) -> int:
        """The number of the chunk that comes next."""
        return self._first + len(self._chunks)

    # Who stands here

    def join(
        self,
        cursor: Cursor,
        selection: Selection,
        sender: Sender,
        *,
        json: BigIntegers | None,
        frames: FrameFilter | None,
        to: Pair | None,
        note: Callable[[Follower, int], None],
    ) -> Follower | None:
        """Stand here from `cursor` on; None if that is not the start of a chunk, or too far from the end,
        or the relay stops.

        note: called with what each send took.
        """
        if self._feed.is_over:
            return None
        if not self._followers:
            if cursor.view.bytes_behind(cursor.place) > NEAR_BYTES:
                return None
            self._clear(cursor.copy())
            self._feed.listen(self._published)
        place, self._place = cursor.view.settled(cursor.place), cursor.view.settled(self._place)
        number = self._end if place == self._place else self._numbers.get(place)
        if number is None:
            return None
        key = key_of(selection, json, frames)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = TailLine(self.log, cursor.view, selection, json, frames, number)
        elif line.made > number and any(line.key not in self._chunk(n).made for n in range(number, line.made)):
            line.made = number
        follower = Follower(self, line, cursor, number, sender, to, note)
        line.followers.add(follower)
        self._followers.add(follower)
        self._advance(line)
        self._loop.call_soon(self._published)
        return follower

    def leave(self, follower: Follower, error: DatabusError | None = None) -> None:
        """Stand here no more; callable twice."""
        if follower not in self._followers:
            return
        if self._first <= follower.next < self._end:
            chunk = self._chunk(follower.next)
            follower.place = chunk.start
            if follower.done:
                piece = follower.line.piece(chunk, follower.position, follower.state)
                follower.rest = follower.line.rest_of(chunk, piece, follower.done)
                follower.place, follower.position = chunk.end.place, piece.position
        else:
            follower.place = self._place
        self._followers.discard(follower)
        line = follower.line
        line.followers.discard(follower)
        if not line.followers:
            del self._lines[line.key]
        follower.end(error)
        if not self._followers:
            self._feed.unlisten(self._published)
            self._clear(self._cursor.copy())

    def boundary(self, place: tuple[int, int]) -> End | None:
        """Where a reader of the log's files, from `place` on, meets the start of a chunk, or the end of all of them."""
        place = self._cursor.view.settled(place)
        if not self._followers or not self._chunks or place >= self._place:
            return None
        at = bisect_right(self._chunks, place, key=lambda chunk: chunk.start)
        return self._chunks[max(at - 1, 0) if at else -1].end

    # What they are sent

    def pieces(self, follower: Follower) -> list[Piece]:
        """What this follower may be sent at once; nothing if the chunk that comes next reaches its `to`."""
        line, position, state = follower.line, follower.position, follower.state
        pieces: list[Piece] = []
        size = 0
        for number in range(follower.next, line.made):
            chunk = self._chunk(number)
            if follower.to is not None and chunk.reached >= follower.to:
                break
            piece = line.piece(chunk, position, state)
            pieces.append(piece)
            position, state = piece.position, piece.state
            size += piece.bytes
            if size >= BURST_BYTES_MAX or 2 * len(pieces) >= BUFFERS_A_CALL_MAX:
                break
        return pieces

    def _chunk(self, number: int) -> TailChunk:
        return self._chunks[number - self._first]

    def _advance(self, line: TailLine) -> None:
        """Make of the newest chunks what this line wants, and send it."""
        line.made = max(line.made, self._first)
        while line.made < self._end and not line.is_rendering:
            chunk = self._chunk(line.made)
            if line.key not in chunk.made:
                if line.renders and len(chunk.content) > _RENDER_IN_LOOP_BYTES:
                    self._render(line, chunk)
                    break
                try:
                    bytes_more = line.make(chunk)
                except Exception as error:  # noqa: BLE001 - each follower meets it again in the files, and reports it
                    self._drop(line.followers, error)
                    return
                self._hold(chunk, bytes_more)
            line.made = max(line.made + 1, self._first)
        for follower in tuple(line.followers):
            follower.push()

    def _render(self, line: TailLine, chunk: TailChunk) -> None:
        line.is_rendering = True

        def made(future: "asyncio.Future[int]") -> None:
            line.is_rendering = False
            if future.cancelled() or self._lines.get(line.key) is not line:
                return
            error = future.exception()
            if error is None:
                self._hold(chunk, future.result())
                self._advance(line)
            else:
                self._drop(line.followers, error)

        self._loop.run_in_executor(self._reader, line.make, chunk).add_done_callback(made)

    def _hold(self, chunk: TailChunk, bytes_more: int) -> None:
        """Account for what a chunk holds more, if it is still held."""
        chunk.bytes += bytes_more
        if self._chunks and chunk.start >= self._chunks[0].start:
            self._bytes += bytes_more
            self._let_go()

    def _let_go(self) -> None:
        """Keep within `bytes_max`: who is still to be sent the oldest chunk leaves."""
        while self._bytes > self._bytes_max and self._chunks:
            for follower in [other for other in self._followers if other.next <= self._first]:
                self.leave(follower)
            if not self._chunks:
                return  # without followers there are no chunks
            chunk = self._chunks.popleft()
            self._first += 1
            del self._numbers[chunk.start]
            self._bytes -= chunk.bytes

    def _drop(self, followers: set[Follower], error: BaseException | None = None) -> None:
        """Make these followers leave. They read on from the log's files, where an error of theirs is reported."""
        if error is not None:
            _logger.warning("tail given up", physical=self.log.physical, error=type(error).__name__, message=str(error))
        for follower in tuple(followers):
            self.leave(follower)

    # What is published

    def _published(self) -> None:
        """Read what is new. Called by the feed, and after each chunk."""
        if self._feed.is_over:
            self._drop(self._followers)
        if not self._followers or self._is_reading:
            return
        behind = self._cursor.view.bytes_behind(self._place)
        if behind > self._bytes_max // 2:
            self._drop(self._followers)  # the files serve that better
        elif behind > _IN_LOOP_BYTES:
            self._is_reading = True
            cursor = self._cursor
            reading = self._loop.run_in_executor(self._reader, read_chunk, cursor)
            reading.add_done_callback(lambda done: self._was_read(cursor, done))
        elif behind:
            try:
                chunk = read_chunk(self._cursor)
            except Exception as error:  # noqa: BLE001 - see `_drop`
                self._drop(self._followers, error)
                return
            self._add(chunk)

    def _was_read(self, cursor: Cursor, reading: "asyncio.Future[TailChunk | None]") -> None:
        if cursor is not self._cursor or reading.cancelled():
            return  # everybody has left meanwhile
        self._is_reading = False
        error = reading.exception()
        if error is None:
            self._add(reading.result())
        else:
            self._drop(self._followers, error)

    def _add(self, chunk: TailChunk | None) -> None:
        if chunk is None:
            return
        if self._chunks:
            self._chunks[-1].let_go_of_frames()
        self._numbers[chunk.start] = self._end
        self._chunks.append(chunk)
        self._place = chunk.end.place
        self._bytes += chunk.bytes
        for line in tuple(self._lines.values()):
            self._advance(line)
        self._let_go()
        if self._followers and self._cursor.view.bytes_behind(self._place):
            self._loop.call_soon(self._published)
