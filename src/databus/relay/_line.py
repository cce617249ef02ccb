"""Lines: what followers with the same parameters are sent, made of each chunk once for all of them."""

from typing import TYPE_CHECKING

from databus.core import SourceCheckpoint
from databus.filters import FrameFilter, StreamFilter
from databus.formats import BigIntegers
from databus.log import Log, LogView, Span
from databus.relay._catalog import Selection
from databus.relay._chunk import Chunk, Made, Piece, State
from databus.relay._grant import Grant
from databus.relay._ndjson import Renderer

if TYPE_CHECKING:
    from databus.relay._tail import Follower

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


class Line:
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

    def make(self, chunk: Chunk) -> int:
        """Have the chunk hold what this line makes of it; returns the bytes that takes.

        Raises `CorruptData`, and what the filter says of a change that it cannot follow.
        """
        sources = self._selection.ids(self._log.schemas)
        if self._frames is None:
            content = chunk.content_of(sources)
        else:
            found = self._frames.filtered(chunk.content, chunk.cut, sources)
            if found.error is not None:
                raise found.error
            content = found.content
        if self._renderer is not None:
            content = self._renderer.rows(content)
        chunk.made[self.key] = Made(content, sources)
        return 0 if content is chunk.content else len(content)

    def piece(self, chunk: Chunk, before: SourceCheckpoint, state: State) -> Piece:
        """What to send of a chunk that was made, to who stands at `before` with these snapshots open."""
        found = chunk.pieces.get((self.key, state))
        if found is None:
            made = chunk.made[self.key]
            position = self._view.checkpoint_after(chunk.end.commit, before, made.sources)
            renderer = self._renderer
            buffers = (made.content,) if renderer is None else (made.content, renderer.position_line(position))
            found = Piece(buffers, sum(map(len, buffers)), position, state_of(position))
            chunk.pieces[self.key, state] = found
        return found

    def rest_of(self, chunk: Chunk, piece: Piece, bytes_done: int) -> list[Span] | bytes:
        """What is left of a piece of which so much was sent; frames as they stand in the log."""
        if not self.renders:
            return chunk.spans_behind(chunk.made[self.key].sources, bytes_done)
        return b"".join(piece.buffers)[bytes_done:]
