"""The source of a chained relay: groups of another relay's log, as they are.

A reader's thread receives and checks them; they go into the log in the same bytes. Its own position is the log's: after
the last whole transaction, which upstream finds by (SCN, `_seq`) and the transaction's id as it does for any consumer.
Commit frames that only repeat the last one share that place. So that none is missing, the group before it is asked for
too, and everything up to the very frame that the log ends with is skipped.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np

from databus.core import (
    COMMIT_VERSION,
    SEQ,
    AccessDenied,
    ControlKind,
    Identity,
    Pair,
    PositionPurged,
    RightMissing,
    ServiceUnavailable,
    SourceCheckpoint,
    SystemClock,
)
from databus.link import Arrived, Channel, Ended, FrameStream, RelayClient
from databus.log import LogOrigin, Resume, SchemaVersion
from databus.schema import TableSchema
from databus.sources._contract import SourceLag
from databus.sources._copying import RelayHop
from databus.sources._registry import contains_of
from databus.sources.relay._config import RelaySourceConfig
from databus.sources.relay._upstream import Upstream
from databus.wire import CONTROL, SNAPSHOT, Commit, Control, EncodedGroup, Frame, FrameGroup, Group, Rows

_NOBODY: Final = RelayHop("", "")
_JOIN_S_MAX: Final = 10.0


class RelaySource:
    """One physical source of another relay; see `databus.sources.Copying`."""

    config_model: ClassVar = RelaySourceConfig

    def __init__(self, physical: str, config: RelaySourceConfig) -> None:
        self.physical = physical
        self._config = config
        self._client = RelayClient(
            config.url, access=config.access, name=f"chained {physical}", read_ms_max=config.read_ms_max
        )
        self._upstream = Upstream(physical, self._client.clone())
        self._clock = SystemClock()
        self._bell = threading.Condition()
        self._channel = Channel(self._bell, config.buffer_bytes_max)
        self._stream: FrameStream | None = None
        self._receiver: threading.Thread | None = None
        self._arrived: deque[FrameGroup] = deque()
        self._origin: LogOrigin | None = None
        self._known: dict[int, TableSchema] = {}
        self._definitions_seen: Sequence[SchemaVersion] = ()
        self._pair: Pair = (0, 0)
        self._commit_us = 0
        self._position = SourceCheckpoint()
        self._awaited_us: int | None = None  # when the frame was written that the log ends with, until it has come

    # What a copy is of

    @property
    def begins_new_log(self) -> bool:
        """See `Copying`."""
        return self._config.on_new_log == "begin"

    @property
    def path(self) -> Sequence[RelayHop]:
        """See `Copying`."""
        return self._upstream.path

    @property
    def definitions(self) -> Sequence[SchemaVersion]:
        """See `Copying`."""
        return self._upstream.definitions

    def origin(self, me: RelayHop, *, is_new: bool) -> LogOrigin:
        """See `Copying.origin`."""
        self._origin = self._upstream.origin(me, self._config.start if is_new else "latest")
        return self._origin

    def identify(self) -> Identity:
        """See `Source.identify`: the database that the log upstream is of."""
        return (self._origin or self.origin(_NOBODY, is_new=False)).identity

    @staticmethod
    def contains(scheme: str, position: Mapping[str, Any], txid: str) -> bool | None:
        """See `databus.core.Contains`: as the source that upstream captures says it."""
        contains = contains_of(scheme)
        return None if contains is None else contains(scheme, position, txid)

    def tables(self) -> Sequence[TableSchema]:
        """See `Source.tables`; a log that is a copy knows them by the numbers in `definitions`."""
        return [definition.table for definition in self.definitions]

    # Groups

    def start(self, resume: Resume) -> None:
        """See `Source.start`."""
        identity, log = self.identify(), "" if self._origin is None else self._origin.log
        self._pair = (resume.scn, resume.seq)
        self._position = position = SourceCheckpoint(
            uuid=identity.uuid,
            scn=resume.scn,
            seq=resume.seq if resume.scn else None,
            txid=resume.txid,
            log=log if resume.scn else None,
            snapshots={name: snapshot.generation for name, snapshot in resume.snapshots.items()} if resume.scn else {},
        )
        is_after_frame = resume.position is not None and resume.seq > 0
        self._awaited_us = resume.captured_us if is_after_frame else None
        # One `_seq` back, so that the log's last group comes again: `_new` sees whether upstream still has that very
        # group.
        try:
            self._read_after(replace(position, seq=resume.seq - 1, snapshots={}) if is_after_frame else position)
        except PositionPurged:
            if not is_after_frame:
                raise self._purged() from None
            self._read_on()
        self._upstream.watch()

    def _read_after(self, position: SourceCheckpoint) -> None:
        """Have groups received by a thread, from one connection: after the next one upstream may be another."""
        stream = self._stream = self._client.stream(self.physical, position, follow=True)
        if self._origin is not None and stream.log != self._origin.log:
            raise ServiceUnavailable(f"{self.physical}: the relay at {self._config.url} serves another log now")
        channel = self._channel = Channel(self._bell, self._config.buffer_bytes_max)
        self._receiver = threading.Thread(
            target=_receive, args=(stream, channel), daemon=True, name=f"databus-copy-{self.physical}"
        )
        self._receiver.start()

    def _let_go(self) -> None:
        self._channel.close()
        if self._stream is not None:
            self._stream.interrupt()
        if self._receiver is not None:
            self._receiver.join(_JOIN_S_MAX)
        self._stream = self._receiver = None

    def _new(self, groups: list[FrameGroup]) -> list[FrameGroup]:
        """Of what has arrived, what is behind the log's end."""
        if self._awaited_us is None:
            return groups
        for number, group in enumerate(groups, 1):
            if group.commit.last > self._pair:
                # The group that was awaited did not come: upstream has other ones in its place.
                self._read_on()
                return []
            if group.commit.last == self._pair and group.commit.capture_us == self._awaited_us:
                self._awaited_us = None
                return groups[number:]
        return []

    def _read_on(self) -> None:
        """Upstream has not that very frame any more, or not the group before it: read on by the position alone."""
        self._awaited_us = None
        self._let_go()
        try:
            self._read_after(self._position)
        except PositionPurged:
            raise self._purged() from None

    def poll(self, wait_ms: int) -> Group | None:
        """See `Source.poll`."""
        if not self._arrived and not self._take(wait_ms / 1e3):
            return None
        return self._group(self._arrived.popleft())

    def _take(self, wait_s: float) -> bool:
        """Wait until something has arrived; whether it did in time."""
        deadline = time.monotonic() + wait_s
        while not self._arrived:
            with self._bell:
                while not len(self._channel):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or not self._bell.wait(left_s):
                        return False
            match self._channel.take():
                case Arrived(groups):
                    self._arrived.extend(self._new(groups))
                case Ended(error):
                    raise error or ServiceUnavailable(
                        f"{self.physical}: the relay at {self._config.url} has ended the stream"
                    )
        return True

    def _purged(self) -> PositionPurged:
        return PositionPurged(
            f"{self.physical}: the relay at {self._config.url} no longer holds what follows SCN {self._pair[0]}. What "
            f"this log holds is served. To begin a new copy, stop this relay, move its folder {self.physical!r} away, "
            f"and start it again; consumers that stand before that then have to start over",
            physical=self.physical,
        )

    def _group(self, group: FrameGroup) -> Group:
        for frame in group.frames:
            if frame.header.fingerprint not in self._known:
                self._know(frame.header.fingerprint)
        header = group.commit
        commit = Commit.from_header(header)
        is_snapshot = bool(header.flags & SNAPSHOT)
        control = None if group.control is None else self._control(group.control)
        before, self._pair, self._commit_us = self._pair, commit.pair, commit.commit_us
        if group.frames and header.first <= before:
            return self._rest(group, commit, before)
        is_gone = control is not None and control.kind is ControlKind.DROP
        encoded = EncodedGroup(
            buffers=group.pieces,
            bytes_total=sum(map(len, group.pieces)),
            commit_bytes=header.frame_bytes,
            rows=header.rows,
            first=header.first,
            commit=commit,
            needs_sync=False,  # upstream has fsynced what would not come out the same again
            schemas=tuple(
                (frame.header.source_id, 0 if is_gone and frame.header.kind == CONTROL else frame.header.fingerprint)
                for frame in group.frames
            ),
        )
        return Group(commit, (), control, snapshot=is_snapshot, encoded=encoded)

    def _rest(self, group: FrameGroup, commit: Commit, before: Pair) -> Group:
        """What is new in a group of which a part is here: upstream has lost its log's end with its machine, and has
        captured it again in other groups.
        """
        rows = []
        for frame in group.rows:
            batch = frame.batch
            scns, seqs = (batch.column(name).to_numpy() for name in (COMMIT_VERSION, SEQ))
            done = int(np.count_nonzero((scns < before[0]) | ((scns == before[0]) & (seqs <= before[1]))))
            if done < batch.num_rows:
                rows.append(Rows(self._known[frame.header.fingerprint], batch.slice(done)))
        control = None if group.control is None else self._control(group.control)
        is_new = control is not None and control.pair > before
        return Group(commit, tuple(rows), control if is_new else None, snapshot=bool(group.commit.flags & SNAPSHOT))

    def _control(self, frame: Frame) -> Control:
        header = frame.header
        return Control(frame.control_kind, self._known[header.fingerprint], *header.first, frame.control)

    def _know(self, fingerprint: int) -> None:
        """Have the definitions that the log upstream has by now: a frame uses one that is new."""
        for is_renewed in (False, True):
            # First without a request: the thread that watches upstream may have brought them.
            if is_renewed:
                self._upstream.renew_definitions()
            if self._definitions_seen is not self.definitions:
                self._definitions_seen = self.definitions
                self._known = {definition.table.fingerprint: definition.table for definition in self._definitions_seen}
            if fingerprint in self._known:
                return
        raise ServiceUnavailable(
            f"{self.physical}: the relay at {self._config.url} does not know the definition {fingerprint:016x} of its "
            f"own frames"
        )

    # What else there is

    def durable(self, position: Mapping[str, Any]) -> None:
        """See `Source.durable`: the log upstream has a retention of its own."""
        del position

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        """See `Source.request_snapshot`: asked of the relay upstream, with the token that it knows us by."""
        self._asked_upstream(lambda: self._client.request_snapshot(self.physical, sources, where))

    def cancel_snapshot(self, sources: Sequence[str]) -> None:
        """See `CancelsSnapshots`: asked of the relay upstream too."""
        self._asked_upstream(lambda: self._client.cancel_snapshot(self.physical, sources))

    def _asked_upstream(self, ask: Callable[[], object]) -> None:
        try:
            ask()
        except (AccessDenied, RightMissing) as error:
            raise type(error)(
                f"{self.physical} is copied from the relay at {self._config.url}, which does not let this relay ask "
                f"for snapshots; ask there: {error}"
            ) from error

    def lag(self) -> SourceLag:
        """See `Source.lag`: behind the database, so with what the relay upstream is behind."""
        standing = self._upstream.standing
        if standing is None or standing.lag_ms is None:
            return SourceLag()
        if self._pair >= standing.published:
            return SourceLag(standing.lag_ms)
        age_ms = self._clock.now_ns() / 1e6 - self._commit_us / 1e3 if self._commit_us else None
        return SourceLag(None if age_ms is None else max(age_ms, standing.lag_ms))

    def close(self) -> None:
        """See `Source.close`."""
        self._upstream.close()
        self._client.close()
        self._let_go()


def _receive(stream: FrameStream, channel: Channel) -> None:
    """Hand on what a stream gives, checked, and how it ended."""
    error: BaseException | None = None
    try:
        for groups in stream:
            if not channel.put(Arrived(groups), sum(len(piece) for group in groups for piece in group.pieces)):
                return
    except BaseException as raised:  # noqa: BLE001 - it is raised again where it is taken
        error = raised
    finally:
        stream.close()
    channel.put(Ended(error))
