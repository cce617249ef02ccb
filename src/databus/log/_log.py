"""The log of one physical source: append-only segments, one published end, its own checkpoint. Start with `Log.append`.

One thread appends; a thread of the log's own fsyncs behind it; any thread reads through cursors. Readers see whole
transactions only: up to the last commit frame that ends one, and where snapshots are concerned only what is fsynced,
because a snapshot would not come out the same again.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from databus.core import (
    Clock,
    Contains,
    CorruptData,
    Identity,
    SourceCheckpoint,
    SystemClock,
    crash_point,
    is_armed,
    timeline_of,
)
from databus.disk import FolderLock, disk_full, is_no_room, make_folder, write_all
from databus.log import _locate
from databus.log._config import LogConfig, LogHead
from databus.log._cursor import Cursor
from databus.log._ends import Appended, Ends
from databus.log._index import SparseIndex
from databus.log._mark import LogMark, MarkFile
from databus.log._opening import create_segment, found_or_begun
from databus.log._origin import LogOrigin
from databus.log._recover import Recovered, cut_segments
from databus.log._resume import Resume
from databus.log._retention import Retention, Room, remove_up_to
from databus.log._schemas import SchemaStore
from databus.log._segment import End, SegmentFile, SegmentHeader
from databus.log._view import LogView
from databus.wire import Commit, EncodedGroup, Group, encode_group


class Log:
    """See this module's first lines. Made by `open`; `close` when done. Also a context manager."""

    def __init__(
        self,
        folder: Path,
        config: LogConfig,
        clock: Clock,
        lock: FolderLock,
        mark: MarkFile,
        view: LogView,
        recovered: Recovered,
    ) -> None:
        self.folder = folder
        self.config = config
        self._clock = clock
        self._folder_lock = lock
        self._mark = mark
        self._view = view
        self._ends = Ends(recovered.end, recovered.in_force)
        view.schemas.set_in_force(recovered.in_force)
        self._changed = threading.Condition()  # guards all below; notified when there is something to sync, or was
        self._sync_lock = threading.Lock()  # one fsync, or cutting back, at a time; taken before `_changed`
        self._retain_lock = threading.Lock()  # one retention at a time, so that segments go in order
        self._file = SegmentFile(view.segments[-1].path, os.O_RDWR)
        self._offset = recovered.offset  # in that file, behind the last group
        self._unsynced_bytes = 0
        self._is_sync_urgent = False
        self._is_retention_due = False
        self._is_stopping = False
        self._failure: str | None = None
        self._room = Room(folder, config.free_bytes_min)
        self._rows = self._groups = self._appended_bytes = 0
        self._subscribers = Subscribers()
        self.retention = Retention(self._room)
        self._thread = threading.Thread(target=self._run, name=f"databus-log-{view.physical}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        physical: str,
        identity: Identity,
        config: LogConfig | None = None,
        clock: Clock | None = None,
        ids: Mapping[str, int] | None = None,
        contains: Contains | None = None,
        origin: LogOrigin | None = None,
    ) -> Self:
        """Own the log in `folder`: make it, or recover it and cut it back to its published end.

        ids: by table, ids to give instead of the next free ones. contains: see `databus.core.Contains`. origin: which
        log this one is a copy of, for a new one. Raises
        `LockHeld` naming the owner; `SourceChanged` if the log is of another database; `CorruptData` naming the place
        if something durable is damaged; `UnsupportedFeature` if another version of databus wrote it; `DiskFull`.
        """
        config, clock = config or LogConfig(), clock or SystemClock()
        make_folder(folder)
        lock = FolderLock.take(folder)
        mark = MarkFile(folder)
        try:
            schemas = SchemaStore.load(folder, physical, ids or {})
            recovered = found_or_begun(folder, mark.read(), physical, identity, clock, schemas, origin)
            view = LogView(
                uuid=recovered.segments[-1].header.log,
                physical=physical,
                identity=identity,
                schemas=schemas,
                segments=recovered.segments,
                offset=recovered.offset,
                published=recovered.end,
                index_bytes_every=config.index_bytes_every,
                contains=contains,
            )
            log = cls(folder, config, clock, lock, mark, view, recovered)
        except BaseException:
            mark.close()
            lock.release()
            raise
        log._write_mark()
        return log

    @property
    def uuid(self) -> str:
        """This log's own identity, in every segment and in checkpoints that only make sense here."""
        return self._view.uuid

    @property
    def physical(self) -> str:
        """The physical source's name."""
        return self._view.physical

    @property
    def identity(self) -> Identity:
        """Which database this is the log of."""
        return self._view.identity

    @property
    def schemas(self) -> SchemaStore:
        """Every definition that this log ever used."""
        return self._view.schemas

    @property
    def timeline(self) -> int:
        """The timeline of the log's last transaction."""
        return timeline_of(self._ends.committed.commit.scn)

    def resume(self) -> Resume:
        """Where the source goes on: after the last whole transaction."""
        return Resume.after(self._ends.committed, self._view, self.folder)

    @property
    def last_commit(self) -> Commit | None:
        """The commit of the last whole transaction, to be written again when nothing happens; None in a new log."""
        return None if self._ends.committed.commit_offset < 0 else self._ends.committed.commit

    def append(self, group: Group) -> None:
        """Encode a group and append it; see `append_encoded`."""
        self.append_encoded(encode_group(group, self.schemas, self._clock.now_ns() // 1000))

    def append_encoded(self, encoded: EncodedGroup) -> None:
        """Append a group, and publish it if it ends a transaction and nothing before it waits for an fsync.

        After `DiskFull`, or `ServiceUnavailable` where the next segment cannot be begun, nothing of the group is in the
        log, and the same one may be appended again. Raises `SourceChanged` for a transaction whose SCN is not above the
        last, ValueError for a group that no source may yield.
        """
        crash_point("log.append.before")
        try:
            with self._changed:
                self._check_usable()
                self._ends.check_next(self.physical, encoded)
                self._make_room(encoded.bytes_total)
                self._write(encoded)
                crash_point("log.append.after")
                self._note(encoded)
                if self._unsynced_bytes >= self.config.unsynced_bytes_max:  # a slow disk slows capture down
                    self._changed.wait_for(
                        lambda: self._unsynced_bytes < self.config.unsynced_bytes_max or self._failure is not None
                    )
        finally:
            self._subscribers.tell()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise CorruptData(self._failure)
        if self._is_stopping:
            raise ValueError(f"{self.folder}: this log is closed")

    def _make_room(self, size: int) -> None:
        """Have a segment to write to, and room on the disk as far as that can be known."""
        self._room.check(size)
        is_empty = self._offset == self._view.segments[-1].first_offset
        if self._offset + size > self.config.segment_bytes_max and not is_empty:
            self._roll()

    def _write(self, encoded: EncodedGroup) -> None:
        fd, offset = self._file.fd, self._offset
        if is_armed("log.append.torn"):
            whole = b"".join(bytes(buffer) for buffer in encoded.buffers)
            os.pwrite(fd, whole[: len(whole) // 2], offset)
            os.fsync(fd)
        crash_point("log.append.torn")
        try:
            write_all(fd, encoded.buffers, offset)
        except OSError as error:
            self._room.forget()
            self._take_back(offset)
            if is_no_room(error):
                raise disk_full(self._file.path, error) from error
            raise CorruptData(f"{self._file.path} at {offset}: {error.strerror}; nothing was half-written") from error

    def _take_back(self, offset: int) -> None:
        try:
            os.ftruncate(self._file.fd, offset)
        except OSError as error:
            self._failure = (
                f"{self._file.path} at {offset}: a write failed, and so did taking it back: {error.strerror}"
            )

    def _note(self, encoded: EncodedGroup) -> None:
        """What has been written is part of the log now."""
        tail, commit, offset = self._ends.tail, encoded.commit, self._offset
        number = self._view.segments[-1].number
        self._view.open_index.note(
            offset, tail.commit.pair, tail.max_commit_us, tail.commit_offset if tail.segment == number else -1
        )
        self._offset = end = offset + encoded.bytes_total
        max_commit_us = max(tail.max_commit_us, commit.commit_us)
        now_at = End(number, end, end - encoded.commit_bytes, commit, max_commit_us)
        if self._ends.append(now_at, encoded):
            self.schemas.set_in_force(self._ends.forces.in_force)
        self._is_sync_urgent |= encoded.needs_sync
        self._publish()
        self._rows += encoded.rows
        self._groups += 1
        self._appended_bytes += encoded.bytes_total
        was_synced = self._unsynced_bytes == 0
        self._unsynced_bytes += encoded.bytes_total
        if was_synced or self._is_sync_urgent or self._unsynced_bytes >= self.config.fsync_bytes:
            self._changed.notify_all()

    def _publish(self) -> None:
        """Show readers what they may see now."""
        if self._view.published is not self._ends.published:
            self._view.published = self._ends.published
            self._subscribers.note()

    def _roll(self) -> None:
        """End the open segment, durably, and begin the next.

        Raises `DiskFull` or `ServiceUnavailable`, the open segment as it was and none after it: see `create_segment`.
        """
        crash_point("log.roll.before_new_segment")
        view = self._view
        old = view.segments[-1]
        self._fdatasync(self._file)  # before there is a next one: recovery reads the newest segment only
        header = SegmentHeader(
            log=view.uuid,
            physical=view.physical,
            identity=view.identity,
            number=old.number + 1,
            timeline=timeline_of(self._ends.tail.commit.scn),
            created_us=self._clock.now_ns() // 1000,
            before=self._ends.tail,
            published=self._ends.committed,
            previous_bytes=self._offset,
            in_force=self._ends.forces.in_force,
            undo=self._ends.forces.undo,
        )
        try:
            new, file = create_segment(self.folder, header, self.schemas)
        except CorruptData as error:
            self._failure = str(error)
            raise
        crash_point("log.roll.after_new_segment")
        index = view.open_index.whole(old.first_offset)
        old.sealed_bytes = self._offset
        self._file, self._offset = file, new.first_offset
        view.open_index = SparseIndex(new.number, view.index_bytes_every, new.first_offset)
        view.segments = (*view.segments, new)
        self._note_synced(self._ends.appended(), 0)
        self._is_retention_due = True
        if index is not None:
            view.keep_index(old, index, save=True)

    def _fdatasync(self, file: SegmentFile) -> None:
        """Raises `CorruptData`, now and at each later call: what a failed fsync was to write may be lost for good."""
        try:
            os.fdatasync(file.fd)
        except OSError as error:
            with self._changed:
                self._failure = (
                    f"{file.path}: fsync failed: {error.strerror}; what was written since the last one may be lost. "
                    f"Check the disk and restart: the log is cut back to what is whole, and the source is asked for "
                    f"the rest"
                )
                self._changed.notify_all()
            raise CorruptData(self._failure) from error

    def _note_synced(self, appended: Appended, unsynced_bytes: int) -> None:
        """So much is on the disk; this many bytes behind it are not."""
        self._ends.synced(appended)
        self._unsynced_bytes = unsynced_bytes
        self._publish()
        self._changed.notify_all()

    def sync(self) -> None:
        """Fsync everything appended so far, and publish what waited for that."""
        with self._sync_lock:
            with self._changed:
                self._check_usable()
                file, appended = self._file, self._ends.appended()
                appended_bytes = self._appended_bytes
                self._is_sync_urgent = False
            crash_point("log.fsync.before")
            self._fdatasync(file)  # without `_changed`, so that appending goes on
            crash_point("log.fsync.after")
            with self._changed:
                left_bytes = min(self._unsynced_bytes, self._appended_bytes - appended_bytes)  # a roll syncs, too
                self._note_synced(appended, left_bytes)
            self._write_mark()
        self._subscribers.tell()

    def _write_mark(self) -> None:
        """Say up to where the log is on the disk. Failing is allowed: the last mark stays a lower bound."""
        with self._changed:
            end, forces = self._ends.durable, self._ends.durable_forces
        if end.commit_offset >= 0:
            with suppress(OSError):
                self._mark.write(LogMark(self.uuid, *end.place, end.commit_offset, end.max_commit_us, forces))

    def _run(self) -> None:
        """The log's own thread: fsync behind the appends, and retention when a segment has ended."""
        config = self.config
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsynced_bytes > 0 or self._is_retention_due or self._is_stopping)
                self._changed.wait_for(
                    lambda: self._is_sync_urgent or self._unsynced_bytes >= config.fsync_bytes or self._is_stopping,
                    config.fsync_interval_ms / 1e3,
                )
                if self._is_stopping or self._failure is not None:
                    return
            try:
                self.sync()
                if self._is_retention_due:
                    self._is_retention_due = False
                    self.retain()
            except Exception as error:  # noqa: BLE001 - the next `append` raises it
                with self._changed:
                    self._failure = self._failure or f"{self.folder}: the log's thread stopped: {error!r}"
                    self._changed.notify_all()
                return

    def cut_back(self) -> None:
        """Drop what was appended of a transaction whose last part has not come."""
        with self._sync_lock:
            with self._changed:
                self._check_usable()
                if self._ends.tail is not self._ends.committed:
                    self._cut_back()
            self._write_mark()
        self._subscribers.tell()

    def _cut_back(self) -> None:
        view = self._view
        with view.reopening():
            try:
                kept, offset = cut_segments(view.segments, self._ends.committed)
                file = SegmentFile(kept[-1].path, os.O_RDWR)
            except OSError as error:
                self._failure = f"{self.folder}: the log could not be cut back: {error}; restart, and it is done then"
                raise CorruptData(self._failure) from error
            for segment in view.segments[len(kept) :]:
                view.forget(segment)
            if kept[-1] is view.segments[-1]:
                view.open_index.cut_back(offset)
            else:
                view.forget(kept[-1])  # its index: it is not sealed any more
                view.open_index = SparseIndex(kept[-1].number, view.index_bytes_every, offset)
            view.segments = kept
        self._file, self._offset = file, offset
        self._ends.cut_back()
        # all that is left is on the disk now, a snapshot that waited for it included
        self._note_synced(self._ends.appended(), 0)

    def durable(self) -> Mapping[str, Any] | None:
        """The source's own position after the last whole transaction that is fsynced; None before the first."""
        end = self._ends.durable
        return None if end.commit_offset < 0 else end.commit.position

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at each publish, from the thread that appends or the log's own. Returns how to stop that."""
        return self._subscribers.add(callback)

    def head(self) -> LogHead:
        """What the log holds now."""
        view = self._view
        with self._changed:
            segments = view.segments
            return LogHead(
                oldest=view.checkpoint(segments[0].header.before.commit),
                published=view.checkpoint(view.published.commit),
                bytes=self._bytes(),
                segments=len(segments),
                rows=self._rows,
                groups=self._groups,
                appended_bytes=self._appended_bytes,
                unsynced_bytes=self._unsynced_bytes,
                is_inside_transaction=self._ends.tail.commit.continues,
            )

    def _bytes(self) -> int:
        return sum(segment.sealed_bytes or 0 for segment in self._view.segments[:-1]) + self._offset

    def retain(self) -> None:
        """Remove the oldest segments that are beyond the retention, never the last published group or what follows."""
        with self._retain_lock:
            with self._changed:
                view, ends = self._view, self._ends
                gone = self.retention.expired(
                    view.segments,
                    config=self.config,
                    needed=min(ends.published.segment, ends.durable.segment),
                    bytes_total=self._bytes(),
                    now_us=self._clock.now_ns() // 1000,
                )
                view.segments = view.segments[len(gone) :]
                self._changed.notify_all()
            if gone:
                with self._sync_lock:
                    self._write_mark()  # so that it does not name one of these
            for segment in gone:
                view.forget(segment)
            if gone:
                remove_up_to(self.folder, gone[-1].number)

    def close(self) -> None:
        """Fsync, stop the log's thread, and let go of the folder; callable twice."""
        with self._changed:
            if self._is_stopping:
                return
            failure = self._failure
        try:
            if failure is None:
                self.sync()
        finally:
            with self._changed:
                self._is_stopping = True
                self._changed.notify_all()
            self._thread.join()
            self._mark.close()
            self._folder_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def as_origin(self, start: str) -> LogOrigin:
        """What a copy of this log has to know that begins at `beginning`, `earliest` or `latest`.

        Raises `PositionPurged` if retention has removed the beginning.
        """
        if start == "beginning":
            _locate.beginning(self._view)
        with self._changed:
            oldest = self._view.segments[0].header
            latest = self._ends.published, self._ends.forces.published()
        place = latest if start == "latest" else (oldest.before, oldest.in_force)
        return LogOrigin(self.uuid, self.identity, self.schemas.all(), *place)

    def beginning(self) -> Cursor:
        """Before the very first frame of the log. Raises `PositionPurged` if retention has removed that."""
        return _locate.beginning(self._view)

    def earliest(self) -> Cursor:
        """Before the oldest frame that the log holds."""
        return _locate.earliest(self._view)

    def latest(self) -> Cursor:
        """At the published end."""
        return _locate.latest(self._view)

    def at_time(self, time_us: int) -> Cursor:
        """Before the first group at which the latest commit time so far is `time_us` or more; see `beginning`."""
        return _locate.at_time(self._view, time_us)

    def locate(self, position: SourceCheckpoint) -> Cursor:
        """After `position`. Raises `PositionForeign`, `PositionPurged`, `ServiceUnavailable` if ahead of the log."""
        return _locate.locate(self._view, position)


class Subscribers:
    """Callbacks, and whether something was published that they do not know yet. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callable[[], None], ...] = ()
        self._has_news = False

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` from now on. Returns how to stop that."""
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

        def remove() -> None:
            with self._lock:
                self._callbacks = tuple(other for other in self._callbacks if other is not callback)

        return remove

    def note(self) -> None:
        """Something was published."""
        self._has_news = True

    def tell(self) -> None:
        """Call them if something was published; with no lock held, for they may read at once."""
        if self._has_news:
            self._has_news = False
            for callback in self._callbacks:
                callback()
