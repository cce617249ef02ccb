"""Following: a thread that reads one physical source for as long as it is wanted, over any number of connections.

It hands what arrives to a `Channel`, in order: where it starts, which log it is connected to, groups, and how it ended.
A channel is bounded in bytes, so a consumer that does not take what came stops its own reader and nothing else.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from databus.core import (
    UNBEGUN,
    UNREAD_TABLES,
    Backoff,
    DatabusError,
    FatalError,
    InputError,
    Pair,
    PositionForeign,
    PositionPurged,
    SchemaChanged,
    ServiceUnavailable,
    SourceCheckpoint,
    StreamCut,
    TransientError,
    is_pattern,
)
from databus.link._frame_stream import FrameStream
from databus.link._ranges import any_of
from databus.link._relay import STATE, LookBack, RelayClient, Start, capture_otherwise, otherwise
from databus.wire import (
    Commit,
    Frame,
    FrameGroup,
    Header,
    done_by,
    end_of_answer,
    ends_in_other_log,
    is_answer,
    position_at,
    snapshots_after,
    snapshots_at,
)


@dataclass(frozen=True, slots=True)
class FollowConfig:
    """Bounds of following a relay."""

    buffer_bytes_max: int = 32 << 20
    """What may wait for the consumer, for each physical source (one group may always wait)."""
    backoff_first_ms: int = 50
    """How long to wait before connecting again; doubled each time."""
    backoff_ms_max: int = 5_000
    """The longest of these waits."""
    outage_ms_max: int = 24 * 3_600_000
    """How long the relay may be away before `ServiceUnavailable` is raised."""
    reread_after_ms: int = 10_000
    """How long the relay may be away before tables whose snapshots were open are read anew by another one, and before a
    bootstrap service is asked for what another one has lost.
    """
    on_filter_change: Literal["snapshot", "stop"] = "snapshot"
    """What happens where a change of a table's schema makes a filter mean something else for rows that came before: the
    relay is asked for a snapshot of the table, or the reader stops with `SchemaChanged`.
    """
    look_back: LookBack = field(default_factory=LookBack)
    """How a bootstrap service is asked for what has left the relay's log."""


@dataclass(frozen=True, slots=True)
class Started:
    """Where this source is followed from."""

    position: SourceCheckpoint


@dataclass(frozen=True, slots=True)
class Connected:
    """What follows comes from this log."""

    uuid: str
    log: str
    unread: tuple[str, ...] = ()
    """Tables whose snapshots were open in another, and are read anew here."""
    look_back: Literal["state", "since", "every"] | None = None
    """What a bootstrap service gives; None of a relay."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Groups, in order."""

    groups: list[FrameGroup]


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes: `until` was reached, or, with an error, somebody has to decide."""

    error: BaseException | None = None


Event = Started | Connected | Arrived | Ended


class Channel:
    """Events of one reader on their way to one consumer, bounded in bytes. `bell` rings for all of its channels."""

    def __init__(self, bell: threading.Condition, bytes_max: int) -> None:
        self._bell = bell
        self._bytes_max = bytes_max
        self._events: deque[tuple[Event, int]] = deque()
        self._room = threading.Condition()
        self._is_closed = False
        self.bytes_waiting = 0

    def put(self, event: Event, size: int = 0) -> bool:
        """Add an event, waiting for room. False if the channel was closed: nobody wants it."""
        with self._room:
            while self.bytes_waiting and self.bytes_waiting + size > self._bytes_max and not self._is_closed:
                self._room.wait()
            if self._is_closed:
                return False
            self.bytes_waiting += size
            self._events.append((event, size))
        self.ring()
        return True

    def ring(self) -> None:
        """Wake the consumer: something is otherwise than it was."""
        with self._bell:
            self._bell.notify_all()

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> Event | None:
        """The next event, or None; never waits."""
        with self._room:
            if not self._events:
                return None
            event, size = self._events.popleft()
            if size:
                self.bytes_waiting -= size
                self._room.notify()
        return event

    def close(self) -> None:
        """Nobody takes any more: whoever waits for room gives up, and what is here is dropped."""
        with self._room:
            self._is_closed = True
            self._events.clear()
            self.bytes_waiting = 0
            self._room.notify_all()


class ReaderState(StrEnum):
    """What a reader is doing."""

    CONNECTING = "connecting"
    STREAMING = "streaming"
    WAITING = "waiting"
    ENDED = "ended"
    FAILED = "failed"


_JOIN_MS_MAX: Final = 10_000
_CUTS_MAX: Final = 3


class Reader:
    """Follows one physical source from a position on, in a thread of its own. `close` ends it from any other."""

    def __init__(
        self,
        relay: RelayClient,
        physical: str,
        start: Start,
        channel: Channel,
        *,
        sources: Iterable[str] | None = None,
        until: Pair | None = None,
        config: FollowConfig | None = None,
    ) -> None:
        self._config = config or FollowConfig()
        self._relay = relay.clone()
        self._bootstrap: RelayClient | None = None  # whose answer is being read
        self.physical = physical
        self.channel = channel
        self._sources = None if sources is None else tuple(sources)
        self._until = until
        self._until_log = ""  # in which it was found: the first one that is connected
        self._uuid = ""
        self._start = start
        self._choice: tuple[str, str | None, str] = ("", None, "")
        """Of which log, and what is captured there, and by whom."""
        self._closing = threading.Event()
        self._backoff = Backoff(self._config.backoff_first_ms, self._config.backoff_ms_max)
        self._away_since: float | None = None
        self._cuts = 0  # of responses in a row in which no group came
        self._position = start if isinstance(start, SourceCheckpoint) else SourceCheckpoint()
        self._last: tuple[Header, str, str] | None = None  # commit of the last group put, and whence
        self._snapshots: Mapping[str, int] = self._position.snapshots
        self._known: set[int] = set()
        self.state = ReaderState.CONNECTING
        self.connections = 0
        self.last_error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"databus-read-{physical}")
        self._thread.start()

    def cancel(self) -> None:
        """Stop reading, without waiting for the thread to notice. Callable twice."""
        self._closing.set()
        self.channel.close()
        self._relay.close()

    def close(self) -> None:
        """Stop reading, and wait for the thread. Callable twice."""
        self.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_MS_MAX / 1e3)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._follow()
        except BaseException as raised:  # noqa: BLE001 - it is raised again where the consumer takes it
            error = raised
        self.last_error = error or self.last_error
        self.state = ReaderState.ENDED if error is None else ReaderState.FAILED
        self.channel.put(Ended(error))
        self._relay.close()

    def _follow(self) -> None:
        is_started = False
        while not self._closing.is_set():
            self.state = ReaderState.CONNECTING
            try:
                if not is_started:
                    self._resolve(self._start)
                    is_started = True
                if self._stream_once():
                    return
            except TransientError as error:
                if self._closing.is_set():
                    return
                self._note_outage(error)
                self._note_cut(error)
            if self._closing.wait(self._backoff.next_ms() / 1e3):
                return

    def _note_outage(self, error: TransientError) -> None:
        now = time.monotonic()
        self.last_error, self.state = error, ReaderState.WAITING
        self.channel.ring()
        self._away_since = self._away_since or now
        if (now - self._away_since) * 1e3 > self._config.outage_ms_max:
            raise ServiceUnavailable(
                f"{self.physical}: no relay for outage_ms_max={self._config.outage_ms_max} ms; last: {error}"
            ) from error

    def _note_cut(self, error: TransientError) -> None:
        """A relay that answers and never gives anything, as where its log cannot be read, is left for another."""
        if not isinstance(error, StreamCut):
            return
        self._cuts += 1
        if self._cuts >= _CUTS_MAX:
            self._cuts = 0
            self._relay.leave(error)

    def _resolve(self, start: Start) -> None:
        if start == "state":
            self._position = STATE
        elif not isinstance(start, SourceCheckpoint):
            self._position = self._position_of(start)
        self.channel.put(Started(self._position))

    def _position_of(self, start: Start) -> SourceCheckpoint:
        try:
            return self._relay.position(self.physical, start=start)
        except (PositionPurged, ServiceUnavailable) as error:
            if error.bootstrap is None or start != "beginning" or self._is_awaited(error):
                raise
            return SourceCheckpoint()  # from nothing, which that service has an answer for

    def _stream_once(self) -> bool:
        """Read one response to its end; whether that was all there is to read."""
        position = self.position
        if self._has_reached(position):
            return True
        with self._open(position) as stream:
            self._check_identity(stream, position)
            self._check_choice(stream)
            unread = self._read_again(stream, position)
            self.state = ReaderState.STREAMING
            self.connections += 1
            self._away_since = None
            if self._has_reached(position):
                return True
            # told with the first groups: of a log that gives none, nothing was begun that would have to come again
            connected: Connected | None = Connected(stream.uuid, stream.log, unread, stream.look_back)
            for groups in stream:
                self._backoff.reset()
                self._cuts = 0
                if connected is not None:
                    if not self.channel.put(connected):
                        return True
                    self._snapshots = dict.fromkeys(unread, UNBEGUN) if unread else self._snapshots
                    connected = None
                if not self._pass_on(groups, stream.uuid, stream.log):
                    return True
                if not is_answer(stream.log) and self._is_done(done_by(groups[-1].commit)):
                    return True
        return False

    def _open(self, position: SourceCheckpoint) -> FrameStream:
        def asked(*, reads_anew: bool) -> FrameStream:
            return self._relay.stream(
                self.physical, position, sources=self._sources, to=self._until, follow=True, reads_anew=reads_anew
            )

        away_ms = self._away_ms
        self._bootstrap = None  # where an answer has ended, or broken off, the relay knows best where to go on
        try:
            return asked(reads_anew=away_ms >= self._config.reread_after_ms)
        except (PositionPurged, ServiceUnavailable) as error:
            if error.bootstrap is not None and not self._is_awaited(error):
                return self._look_back(error, error.bootstrap, position)
            if isinstance(error, ServiceUnavailable):
                raise
            # by all that there are: nobody has to be waited for
            if position == STATE:
                raise PositionPurged(
                    f'{self.physical}: `start="state"` begins with a state of a bootstrap service, and the relay names '
                    "none: say `bootstrap: {url: ...}` in its file",
                    physical=self.physical,
                ) from error
            if not position.snapshots:
                raise
            return asked(reads_anew=True)

    @property
    def _away_ms(self) -> float:
        return 0.0 if self._away_since is None else (time.monotonic() - self._away_since) * 1e3

    def _is_awaited(self, error: DatabusError) -> bool:
        """Whether a relay that is silent is waited for, although another has lost the position: it may have it, and
        mostly comes back at once.
        """
        return isinstance(error, ServiceUnavailable) and self._away_ms < self._config.reread_after_ms

    def _look_back(self, lost: DatabusError, url: str, position: SourceCheckpoint) -> FrameStream:
        """What the bootstrap service answers. Where it never will, a silent relay is waited for all the same."""
        self._bootstrap = self._relay.bootstrap(url, self._config.look_back)
        try:
            return self._bootstrap.stream(self.physical, position, sources=self._sources, follow=True)
        except (InputError, FatalError):
            if isinstance(lost, ServiceUnavailable):
                raise lost from None
            raise

    def _check_identity(self, stream: FrameStream, position: SourceCheckpoint) -> None:
        known = position.uuid or self._uuid
        if known and stream.uuid not in ("", known):
            raise PositionForeign(
                f"{self.physical}: {stream.where} serves {stream.uuid}, and what was read so far is of {known}; it is "
                f"another database, or another physical source",
                physical=self.physical,
            )
        self._uuid = self._uuid or stream.uuid
        if is_answer(stream.log):
            return
        self._until_log = self._until_log or stream.log
        if stream.log != self._until_log:
            self._until = ends_in_other_log(self._until)

    def _check_choice(self, stream: FrameStream) -> None:
        """Another relay of the same database may capture other tables; what a pattern fits there is less, or more."""
        is_by_pattern = self._sources is None or any(map(is_pattern, self._sources))
        if is_answer(stream.log) or not self._relay.is_of_several or not is_by_pattern:
            return
        log, known, whose = self._choice
        try:
            choice = self._relay.choice(self.physical)
            if log not in ("", stream.log) and capture_otherwise(known, choice):
                message = f"{self.physical}: {otherwise(whose, stream.where)}; the others are waited for"
                raise ServiceUnavailable(message)
        except TransientError as error:
            self._relay.leave(error)
            raise
        self._choice = stream.log, choice, stream.where

    def _read_again(self, stream: FrameStream, position: SourceCheckpoint) -> tuple[str, ...]:
        """Have the tables read again whose snapshots this log cannot go on with; which they are. Until their snapshots
        begin they stand in every position, so whoever is killed meanwhile asks again.
        """
        if stream.unread is None:
            return ()
        try:
            tables = tuple(name for name in position.snapshots if name != UNREAD_TABLES)
            if UNREAD_TABLES in position.snapshots:
                is_read = any_of(self._sources, self.physical)
                served = [source.table for source in self._relay.sources() if source.physical == self.physical]
                tables = tuple(dict.fromkeys([*tables, *filter(is_read, served)]))
            self._relay.request_snapshot(self.physical, tables)
        except (InputError, FatalError) as error:
            raise PositionPurged(
                f"{stream.unread}. They could not be requested from here: {error}", physical=self.physical
            ) from error
        return tables

    def _has_reached(self, position: SourceCheckpoint) -> bool:
        """Whether nothing is to be read after it. An answer is read to its end, wherever its rows stand."""
        return not is_answer(position.log) and self._is_done(position.pair)

    def _is_done(self, pair: Pair) -> bool:
        return self._until is not None and pair >= self._until

    def _pass_on(self, groups: list[FrameGroup], uuid: str, log: str) -> bool:
        changed = (
            at for at, group in enumerate(groups) if group.control and group.control.control.get("exact") is False
        )
        at = next(changed, 0)  # what is before it comes first, whatever becomes of it
        if at and not (self._pass_on(groups[:at], uuid, log) and not self._is_done(done_by(groups[at - 1].commit))):
            return False
        groups = groups[at:]
        size = 0
        for group in groups:
            size += group.commit.frame_bytes
            for frame in group.frames:
                header = frame.header
                size += header.frame_bytes
                if header.fingerprint not in self._known:
                    (self._bootstrap or self._relay).table_of(header.fingerprint)  # so that the consumer never waits
                    self._known.add(header.fingerprint)
            if (control := group.control) is not None:
                if control.control.get("exact") is False:
                    self._filter_changed(control)
                table = self._relay.table_of(control.header.fingerprint)
                self._snapshots = snapshots_after(self._snapshots, table.source, control.control_kind, control.control)
            self._snapshots = snapshots_at(self._snapshots, group.commit)
        if not self.channel.put(Arrived(groups), size):
            return False
        self._last = groups[-1].commit, uuid, log
        return True

    def _filter_changed(self, control: Frame) -> None:
        """Rows before this control were judged by other values than they have now: have them read again, or stop."""
        table = self._relay.table_of(control.header.fingerprint).source
        what = (
            f"{self.physical}/{table}: at SCN {control.header.first[0]} its schema changes what the filter reads, and "
            "rows that came before were chosen, or cut, by other values than they have now"
        )
        if self._config.on_filter_change == "stop":
            raise SchemaChanged(
                f"{what}. Read the table again (`databus snapshot`), or say `on_filter_change: snapshot`"
            )
        try:
            self._relay.request_snapshot(self.physical, [table])
        except (InputError, FatalError) as error:
            raise SchemaChanged(f"{what}. A snapshot could not be requested: {error}") from error

    @property
    def position(self) -> SourceCheckpoint:
        """The end of what has been put into the channel."""
        if self._last is None:
            return self._position
        header, uuid, log = self._last
        return end_of_answer(header, log) or position_at(
            header.last,
            continues=header.continues,
            uuid=uuid,
            txid=Commit.from_header(header).txid,
            ts_us=header.commit_us,
            log=log,
            snapshots=self._snapshots,
        )
