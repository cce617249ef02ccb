"""The log of one physical source: append-only segments, one published end, its own checkpoint. Start with `Log.append`.

One thread appends; a thread of the log's own fsyncs behind it; any thread reads through cursors. Readers see whole
transactions only: up to the last commit frame that ends one, and where snapshots are concerned only what is fsynced,
because a snapshot would not come out the same again.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from databus.core import (
    BUS_SEQ_MIN,
    Clock,
    Contains,
    Corrupt,
    DiskFull,
    Identity,
    SourceChanged,
    SourceCheckpoint,
    SystemClock,
    crash_point,
    is_armed,
    timeline_of,
)
from databus.disk import FolderLock, disk_full, is_no_room, make_folder, sync_folder, write_all
from databus.log import _locate
from databus.log._config import LogConfig, LogHead
from databus.log._cursor import Cursor
from databus.log._index import SparseIndex
from databus.log._mark import Mark, MarkFile
from databus.log._opening import begin, check_known, create_segment, renewed
from databus.log._recover import Forces, Recovered, cut_segments, recover
from databus.log._resume import Resume
from databus.log._schemas import SchemaStore
from databus.log._segment import End, Segment, SegmentFile, SegmentHeader, segment_numbers, segment_path
from databus.log._view import LogView
from databus.wire import Commit, EncodedGroup, Group, encode_group

_FREE_CHECKED_EVERY_BYTES: Final = 1 << 20


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
        found: Recovered,
    ) -> None:
        self.folder = folder
        self.config = config
        self._clock = clock
        self._folder_lock = lock
        self._mark = mark
        self._view = view
        self._forces = Forces(found.in_force, {})
        view.schemas.set_in_force(found.in_force)
        self._changed = threading.Condition()  # guards all below; notified when there is something to sync, or was
        self._sync_lock = threading.Lock()  # one fsync, or cutting back, at a time; taken before `_changed`
        self._retain_lock = threading.Lock()  # one retention at a time, so that segments go in order
        self._file = SegmentFile(view.segments[-1].path, os.O_RDWR)
        self._offset = found.offset  # in that file, behind the last group
        self._tail = found.end  # the end of the last group appended
        self._committed = found.end  # of the last whole transaction appended
        self._durable = found.end  # of the last whole transaction fsynced
        self._durable_forces = self._forces.published()
        self._snapshot_place: tuple[int, int] | None = None  # behind the last snapshot group that is not fsynced
        self._unsynced_bytes = 0
        self._is_sync_urgent = False
        self._is_retention_due = False
        self._is_untold = False  # published, and the subscribers do not know yet
        self._is_stopping = False
        self._failure: str | None = None
        self._free_check_left = 0
        self._rows = self._groups = self._appended_bytes = 0
        self._callbacks: tuple[Callable[[], None], ...] = ()
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
    ) -> Self:
        """Own the log in `folder`: make it, or recover it and cut it back to its published end.

        ids: by table, ids to give instead of the next free ones. contains: see `databus.core.Contains`. Raises
        `Held` naming the owner; `SourceChanged` if the log is of another database; `Corrupt` naming the place if
        something durable is damaged; `Unsupported` if another version of databus wrote it; `DiskFull`.
        """
        config, clock = config or LogConfig(), clock or SystemClock()
        make_folder(folder)
        lock = FolderLock.take(folder)
        mark = MarkFile(folder)
        try:
            schemas = SchemaStore.load(folder, physical, ids or {})
            found = recover(folder, mark.read())
            if found is None:
                found = begin(folder, physical, identity, clock, schemas)
            check_known(folder, found, physical, identity, schemas)
            found = renewed(folder, found, clock, schemas)
            view = LogView(
                uuid=found.segments[-1].header.log,
                physical=physical,
                identity=identity,
                schemas=schemas,
                segments=found.segments,
                offset=found.offset,
                published=found.end,
                index_bytes_every=config.index_bytes_every,
                contains=contains,
            )
            log = cls(folder, config, clock, lock, mark, view, found)
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
        return timeline_of(self._committed.commit.scn)

    def resume(self) -> Resume:
        """Where the source goes on: after the last whole transaction."""
        commit = self._committed.commit
        return Resume(
            position=None if self._committed.commit_offset < 0 else commit.position,
            scn=commit.scn,
            seq=commit.seq,
            txid=commit.txid,
            timeline=timeline_of(commit.scn),
            schemas=self.schemas.in_force(),
            snapshots=commit.snapshots,
            log_id=f"{self.uuid} at {self.folder}",
            folder=self.folder / "source",
        )

    @property
    def last_commit(self) -> Commit | None:
        """The commit of the last whole transaction, to be written again when nothing happens; None in a new log."""
        return None if self._committed.commit_offset < 0 else self._committed.commit

    def append(self, group: Group) -> None:
        """Encode a group and append it; see `append_encoded`."""
        self.append_encoded(encode_group(group, self.schemas, self._clock.now_ns() // 1000))

    def append_encoded(self, encoded: EncodedGroup) -> None:
        """Append a group, and publish it if it ends a transaction and nothing before it waits for an fsync.

        On `DiskFull` nothing of the group is in the log, and the same one may be appended again; so with `Unavailable`,
        where the next segment cannot be begun for another reason that may pass. Raises `SourceChanged`
        for a transaction whose SCN is not above the last, ValueError for a group that no source may yield.
        """
        crash_point("log.append.before")
        try:
            with self._changed:
                self._check_usable()
                self._check_order(encoded)
                self._make_room(encoded.bytes_total)
                self._write(encoded)
                crash_point("log.append.after")
                self._note(encoded)
                if self._unsynced_bytes >= self.config.unsynced_bytes_max:
                    self._changed.wait_for(
                        lambda: self._unsynced_bytes < self.config.unsynced_bytes_max or self._failure is not None
                    )
        finally:
            self._tell()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise Corrupt(self._failure)
        if self._is_stopping:
            raise ValueError(f"{self.folder}: this log is closed")

    def _check_order(self, encoded: EncodedGroup) -> None:
        tail, commit, first = self._tail.commit, encoded.commit, encoded.first
        if encoded.is_commit_alone:
            is_next = commit.pair >= tail.pair
        else:
            is_next = first > tail.pair and (
                first[0] > tail.scn or tail.continues or first[1] >= BUS_SEQ_MIN or self._tail.commit_offset < 0
            )
        if not is_next:
            raise SourceChanged(
                f"{self.physical}: transaction {commit.txid} at SCN {first[0]}, `_seq` {first[1]} comes after SCN "
                f"{tail.scn}, `_seq` {tail.seq} in the log. SCNs only grow; the database was reset or restored, or it "
                f"is another one. Start a new log in another folder, or raise the timeline"
            )
        if tail.continues and commit.scn != tail.scn:
            raise ValueError(f"{self.physical}: SCN {commit.scn} inside the transaction at SCN {tail.scn}")
        if commit.continues and first[0] != commit.scn:
            raise ValueError(f"{self.physical}: a part of SCN {commit.scn} in one group with SCN {first[0]}")

    def _make_room(self, size: int) -> None:
        """Have a segment to write to, and room on the disk as far as that can be known."""
        if self._free_check_left <= 0:
            free_bytes = _free_bytes(self.folder)
            if free_bytes - size < self.config.free_bytes_min:
                raise DiskFull(
                    f"{self.folder}: {free_bytes} bytes are free on this disk, and {size} more would leave less than "
                    f"free_bytes_min={self.config.free_bytes_min}; nothing was written. Capture goes on when there is "
                    f"room: free some, or lower retention_bytes_max"
                )
            self._free_check_left = _FREE_CHECKED_EVERY_BYTES
        self._free_check_left -= size
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
            self._free_check_left = 0
            self._take_back(offset)
            if is_no_room(error):
                raise disk_full(self._file.path, error) from error
            raise Corrupt(f"{self._file.path} at {offset}: {error.strerror}; nothing was half-written") from error

    def _take_back(self, offset: int) -> None:
        try:
            os.ftruncate(self._file.fd, offset)
        except OSError as error:
            self._failure = (
                f"{self._file.path} at {offset}: a write failed, and so did taking it back: {error.strerror}"
            )

    def _note(self, encoded: EncodedGroup) -> None:
        """What has been written is part of the log now."""
        tail, commit, offset = self._tail, encoded.commit, self._offset
        number = self._view.segments[-1].number
        self._view.open_index.note(
            offset, tail.commit.pair, tail.max_commit_us, tail.commit_offset if tail.segment == number else -1
        )
        self._offset = end = offset + encoded.bytes_total
        max_commit_us = max(tail.max_commit_us, commit.commit_us)
        self._tail = End(number, end, end - encoded.commit_bytes, commit, max_commit_us)
        self._forces.use(encoded.schemas)
        if encoded.has_snapshot:
            self._snapshot_place = self._tail.place
            self._is_sync_urgent = True
        if not commit.continues:
            self._committed = self._tail
            if self._forces.undo:
                self._forces.publish()
                self.schemas.set_in_force(self._forces.in_force)
            if self._snapshot_place is None:
                self._publish(self._tail)
        self._rows += encoded.rows
        self._groups += 1
        self._appended_bytes += encoded.bytes_total
        was_synced = self._unsynced_bytes == 0
        self._unsynced_bytes += encoded.bytes_total
        if was_synced or self._is_sync_urgent or self._unsynced_bytes >= self.config.fsync_bytes:
            self._changed.notify_all()

    def _publish(self, end: End) -> None:
        if end.place > self._view.published.place:
            self._view.published = end
            self._is_untold = True

    def _tell(self) -> None:
        """Call the subscribers if something was published; with no lock held, for they may read at once."""
        if self._is_untold:
            self._is_untold = False
            for callback in self._callbacks:
                callback()

    def _roll(self) -> None:
        """End the open segment, durably, and begin the next.

        Raises `DiskFull` or `Unavailable`, with the open segment as it was and none after it; see `create_segment`.
        """
        crash_point("log.roll.before_new_segment")
        view = self._view
        old = view.segments[-1]
        self._fdatasync(self._file)
        header = SegmentHeader(
            log=view.uuid,
            physical=view.physical,
            identity=view.identity,
            number=old.number + 1,
            timeline=timeline_of(self._tail.commit.scn),
            created_us=self._clock.now_ns() // 1000,
            before=self._tail,
            published=self._committed,
            previous_bytes=self._offset,
            in_force=self._forces.in_force,
            undo=self._forces.undo,
        )
        try:
            new, file = create_segment(self.folder, header, self.schemas)
        except Corrupt as error:
            self._failure = str(error)
            raise
        crash_point("log.roll.after_new_segment")
        index = view.open_index.whole(old.first_offset)
        old.sealed_bytes = self._offset
        self._file, self._offset = file, new.first_offset
        view.open_index = SparseIndex(new.number, view.index_bytes_every, new.first_offset)
        view.segments = (*view.segments, new)
        self._note_synced(self._tail, self._committed, self._forces.published(), 0)
        self._is_retention_due = True
        if index is not None:
            view.keep_index(old, index, save=True)

    def _fdatasync(self, file: SegmentFile) -> None:
        """Raises `Corrupt`, now and at each later call: what a failed fsync was to write may be lost for good."""
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
            raise Corrupt(self._failure) from error

    def _note_synced(self, tail: End, committed: End, forces: Mapping[int, int], unsynced_bytes: int) -> None:
        """Everything up to `tail` is on the disk.

        committed: the last whole transaction in that. forces: the schemas in force there.
        """
        if committed.place > self._durable.place:
            self._durable, self._durable_forces = committed, forces
        self._unsynced_bytes = unsynced_bytes
        if self._snapshot_place is not None and (self._snapshot_place <= tail.place or tail.place == self._tail.place):
            self._snapshot_place = None
        self._publish(self._committed if self._snapshot_place is None else self._durable)
        self._changed.notify_all()

    def sync(self) -> None:
        """Fsync everything appended so far, and publish what waited for that."""
        with self._sync_lock:
            with self._changed:
                self._check_usable()
                file, tail, committed, forces = self._file, self._tail, self._committed, self._forces.published()
                appended_bytes = self._appended_bytes
                self._is_sync_urgent = False
            crash_point("log.fsync.before")
            self._fdatasync(file)
            crash_point("log.fsync.after")
            with self._changed:
                left_bytes = min(self._unsynced_bytes, self._appended_bytes - appended_bytes)
                self._note_synced(tail, committed, forces, left_bytes)
            self._write_mark()
        self._tell()

    def _write_mark(self) -> None:
        """Say up to where the log is on the disk. Failing is allowed: the last mark stays a lower bound."""
        with self._changed:
            end, forces = self._durable, self._durable_forces
        if end.commit_offset >= 0:
            with suppress(OSError):
                self._mark.write(Mark(self.uuid, *end.place, end.commit_offset, end.max_commit_us, forces))

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
            except Exception as error:  # noqa: BLE001 - it is told to whoever appends next
                with self._changed:
                    self._failure = self._failure or f"{self.folder}: the log's thread stopped: {error!r}"
                    self._changed.notify_all()
                return

    def cut_back(self) -> None:
        """Drop what was appended of a transaction whose last part has not come."""
        with self._sync_lock:
            with self._changed:
                self._check_usable()
                if self._tail is not self._committed:
                    self._cut_back()
            self._write_mark()
        self._tell()

    def _cut_back(self) -> None:
        view = self._view
        with view.reopening():
            try:
                kept, offset = cut_segments(view.segments, self._committed)
                file = SegmentFile(kept[-1].path, os.O_RDWR)
            except OSError as error:
                self._failure = f"{self.folder}: the log could not be cut back: {error}; restart, and it is done then"
                raise Corrupt(self._failure) from error
            for segment in view.segments[len(kept) :]:
                view.forget(segment)
            if kept[-1] is view.segments[-1]:
                view.open_index.cut_back(offset)
            else:
                view.forget(kept[-1])  # its index: it is not sealed any more
                view.open_index = SparseIndex(kept[-1].number, view.index_bytes_every, offset)
            view.segments = kept
        self._file, self._offset, self._tail = file, offset, self._committed
        self._forces.cut_back()
        # all that is left is on the disk now, a snapshot that waited for it included
        self._note_synced(self._tail, self._tail, self._forces.published(), 0)

    def durable(self) -> Mapping[str, Any] | None:
        """The source's own position after the last whole transaction that is fsynced; None before the first."""
        end = self._durable
        return None if end.commit_offset < 0 else end.commit.position

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at each publish, from the thread that appends or the log's own. Returns how to stop that."""
        with self._changed:
            self._callbacks = (*self._callbacks, callback)

        def unsubscribe() -> None:
            with self._changed:
                self._callbacks = tuple(each for each in self._callbacks if each is not callback)

        return unsubscribe

    def head(self) -> LogHead:
        """What the log holds now."""
        view = self._view
        with self._changed:
            segments = view.segments
            return LogHead(
                oldest=view.checkpoint(segments[0].header.before.commit),
                published=view.checkpoint(view.published.commit),
                bytes=sum(segment.sealed_bytes or 0 for segment in segments[:-1]) + self._offset,
                segments=len(segments),
                rows=self._rows,
                groups=self._groups,
                appended_bytes=self._appended_bytes,
                unsynced_bytes=self._unsynced_bytes,
                is_inside_transaction=self._tail.commit.continues,
            )

    def retain(self) -> None:
        """Remove the oldest segments that are beyond the retention, never the last published group or what follows."""
        with self._retain_lock:
            with self._changed:
                expired = self._expired()
                self._view.segments = self._view.segments[len(expired) :]
                self._changed.notify_all()
            if expired:
                with self._sync_lock:
                    self._write_mark()  # so that it does not name one of these
            for segment in expired:
                self._view.forget(segment)
            if expired:
                self._remove_up_to(expired[-1].number)

    def _remove_up_to(self, number: int) -> None:
        """Remove the files of the segments up to this one from the front, with those that an earlier attempt left: one
        that stays would be the far side of a hole.
        """
        for each in segment_numbers(self.folder):
            if each <= number:
                segment_path(self.folder, each).unlink(missing_ok=True)
                crash_point("log.retention.between_unlinks")
        sync_folder(self.folder)

    def _expired(self) -> tuple[Segment, ...]:
        segments, config = self._view.segments, self.config
        needed = min(self._view.published.segment, self._durable.segment)
        bytes_left = sum(segment.sealed_bytes or 0 for segment in segments[:-1]) + self._offset
        ended_before_us = self._clock.now_ns() // 1000 - config.retention_ms_max * 1000
        count = 0
        for segment, following in pairwise(segments):
            is_old = following.header.created_us < ended_before_us
            if segment.number >= needed or not (is_old or bytes_left > config.retention_bytes_max):
                break
            bytes_left -= segment.sealed_bytes or 0
            count += 1
        return segments[:count]

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

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

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
        """After `position`. Raises `PositionForeign`, `PositionPurged`, `Unavailable` while it is ahead of the log."""
        return _locate.locate(self._view, position)


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize
