"""The stream of frames that a relay answers with."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, Self

from databus.core import Pair, PositionPurged, ServiceUnavailable, TransientError
from databus.link._http import Body
from databus.wire import FrameGroup, FrameParser

_LOOK_BACK: Final[Mapping[str, Literal["state", "since", "every"]]] = {
    "state": "state",
    "since": "since",
    "every": "every",
}


class FrameStream:
    """A response of frames: iterate it for lists of groups. Every checksum is checked. unread: set where it was begun
    without the snapshots that were open, since this log cannot go on with them: what the relay says of that.

    Ends at the end of the response, or when `close` is called, by any thread. Raises `StreamCut` if the response ended
    before it was complete, `ServiceUnavailable` if nothing came in time, `CorruptData` for bytes that no relay wrote.
    """

    def __init__(
        self,
        body: Body,
        where: str,
        physical: str,
        *,
        unread: PositionPurged | None = None,
        fell_silent: Callable[[ServiceUnavailable], None] | None = None,
    ) -> None:
        """fell_silent: told where nothing came in time."""
        self.where = where
        self.unread = unread
        self._body = body
        self._fell_silent = fell_silent
        self._parser = FrameParser(where)
        self.physical = body.headers.get("x-dbus-physical") or physical
        self.uuid = body.headers.get("x-dbus-uuid") or ""
        self.log = body.headers.get("x-dbus-log") or ""
        self.look_back = _LOOK_BACK.get(body.headers.get("x-dbus-look-back") or "")
        """What it is, where a bootstrap service gives it."""
        self.published: Pair = _pair(body.headers.get("x-dbus-published"))

    def __iter__(self) -> Iterator[list[FrameGroup]]:
        return self

    def __next__(self) -> list[FrameGroup]:
        parser, body = self._parser, self._body
        try:
            while count := body.read_into(parser.space()):
                groups = parser.received(count)
                if groups:
                    return groups
            parser.finish()
        except TransientError as error:
            if not body.is_closed:
                self.close()
                if isinstance(error, ServiceUnavailable) and self._fell_silent is not None:
                    self._fell_silent(error)
                raise
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def read_into(self, space: memoryview) -> int:
        """Instead of iterating: the bytes as they come, unchecked, for who hands them on. 0 at the end of the response.

        Raises `StreamCut` and `ServiceUnavailable` as iterating does.
        """
        return self._body.read_into(space)

    def interrupt(self) -> None:
        """End a read that blocks in another thread."""
        self._body.interrupt()

    def close(self) -> None:
        """Let go of the connection; from any thread, callable twice."""
        self._body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pair(text: str | None) -> Pair:
    scn, _, seq = (text or "0:0").partition(":")
    return int(scn), int(seq or 0)
