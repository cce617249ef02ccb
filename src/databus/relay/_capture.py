"""Capture: one thread for each physical source that moves its changes into its log, and survives what goes wrong.

    INITIALIZING ──► RUNNING ◄──► PAUSED
         ▲              ├─── FatalError, InputError, a defect ───┐
         │       TransientError                                  ▼
         └──────── ERROR_RETRY                           SUSPENDED_ON_ERROR ──(unpause)──► INITIALIZING

and SHUTDOWN at the end. Each round opens the source, starts it at the log's end and moves groups until something
happens. An error of one source touches no other. The log stays open between rounds, so consumers are served what it
holds while the database is away. Large groups are encoded and written by a second thread: see `_group_writer`.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from databus.core import (
    UNREAD_TABLES,
    Backoff,
    Clock,
    DatabusError,
    DiskFull,
    Identity,
    ServiceUnavailable,
    SourceChanged,
    SystemClock,
    TransientError,
    UnsupportedFeature,
    crash_point,
)
from databus.log import Guard, Log, LogConfig, LogOrigin, SegmentHeader, segment_numbers, segment_path
from databus.operate import logger_of
from databus.relay._capture_state import Counters, State, Status, check_not_suspended
from databus.relay._config import CaptureConfig
from databus.relay._copying import LogCopy, set_aside
from databus.relay._group_writer import Draft, GroupWriter
from databus.relay._lag import LagWatch
from databus.relay._missing_tables import MissingTables
from databus.sources import CancelsSnapshots, Source, SourceConfig, SourceLag
from databus.wire import Commit, EncodedGroup, Group, encode_group

OpenSource = Callable[[str, SourceConfig], Source]

_UPKEEP_NS: Final = 1_000_000_000  # lag and retention are looked at once a second
_DURABLE_NS: Final = 50_000_000  # and what may be trimmed at the source, twenty times
_STOP_S_MAX: Final = 30.0
_BEHIND_BYTES_MIN: Final = 256 << 10  # of a group's columns: a smaller one is written sooner than another thread wakes


class Capture:
    """One physical source and its log. `start` once, `stop` once; everything else from any thread."""

    def __init__(
        self,
        physical: str,
        config: SourceConfig,
        folder: Path,
        *,
        open_source: OpenSource,
        options: CaptureConfig,
        log_config: LogConfig,
        published: Callable[[], None],
        log_ended: Callable[[], None],
        copy: LogCopy,
        guard: Callable[[], Guard | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self.physical = physical
        self.counters = Counters()
        self.missing_tables = MissingTables(config)
        self.log: Log | None = None
        self.config = config
        self._lag_watch = LagWatch()
        self._folder = folder
        self._open_source = open_source
        self._options = options
        self._log_config = log_config
        self._published = published
        self._log_ended = log_ended
        self.copy = copy
        self._clock = clock or SystemClock()
        self._guard = guard  # what its log keeps beyond the retention
        self._logger = logger_of("databus.relay").bind(physical=physical)
        self._thread = threading.Thread(target=self._run, name=f"capture-{physical}", daemon=True)
        self._changed = threading.Condition()
        self._status = Status(State.INITIALIZING)
        self._is_stopping = False
        self._is_paused = self._is_changed = False
        self._wishes = 0  # counts requests of operators; a new one ends a wait
        self._looks_wanted = self._looks_taken = 0
        self._source: Source | None = None
        self._last_commit: Commit | None = None
        self._writer = GroupWriter(f"write-{physical}", self._write)
        self._acknowledged: Any = None  # the position that was last reported to the source as durable
        self._next_upkeep_ns = self._next_durable_ns = 0
        self._started_ns = 0
        self._quiet_since_ns = 0
        self._backoff = Backoff(options.retry_ms_min, options.retry_ms_max)

    # What the server and the operator see and do

    @property
    def status(self) -> Status:
        """What it is doing; while it begins, with what its source says of that, and whether it is to pause then."""
        status = self._status
        if status.state is not State.INITIALIZING:
            return status
        doing = getattr(self._source, "doing", "")
        pausing = "; to pause as soon as it has started" if self._is_paused else ""
        return replace(status, message=f"{status.message}{f': {doing}' if doing else ''}{pausing}")

    @property
    def lag(self) -> SourceLag:
        """How far it is behind now, whether or not its source can be asked. A source that begins has not looked yet."""
        status, log = self._status, self.log
        has_failed = status.state in (State.ERROR_RETRY, State.SUSPENDED_ON_ERROR)
        committed_us = log.head().published.ts_us if has_failed and log is not None else 0
        return self._lag_watch.now(
            self._clock.monotonic_ns(),
            is_looking=status.state in (State.RUNNING, State.PAUSED),
            committed_ms=max(self._clock.now_ns() / 1e6 - committed_us / 1e3, 0.0) if committed_us else None,
        )

    @property
    def is_pause_pending(self) -> bool:
        """Whether a pause was requested, and capture has not stopped yet."""
        return self._is_paused and self._status.state is not State.PAUSED

    @property
    def reading(self) -> list[str]:
        """The tables whose snapshots have begun and not ended; `*` stands for those that wait to be read."""
        last = self._last_commit
        return [] if last is None else sorted([*last.snapshots, *([UNREAD_TABLES] if last.has_unread else [])])

    @property
    def progress(self) -> list[dict[str, Any]]:
        """How far the tables are that are being read, from a source that says it."""
        ask = getattr(self._source, "progress", None)
        return [] if ask is None else [part.to_json() for part in ask()]

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End in good order: the group at hand is finished, the log closed. Waits half a minute at most. Callable
        before `start` too.
        """
        self.ask_to_stop()
        if self._thread.ident is None:
            return
        self._thread.join(_STOP_S_MAX)
        if self._thread.is_alive():
            self._logger.error("capture does not stop", waited_s=_STOP_S_MAX)

    def ask_to_stop(self) -> None:
        """Begin to stop, without waiting for it."""
        with self._wishing():
            self._is_stopping = True

    def pause(self) -> Status:
        """Take no more changes until `unpause`; the source keeps them meanwhile. Returns the status before."""
        with self._wishing() as before:
            self._is_paused = True
        return before

    def change(self, config: SourceConfig) -> None:
        """Go on with other options, where the log ends. Who is served it is served on."""
        with self._wishing():
            self.config, self.missing_tables, self._is_changed = config, MissingTables(config), True

    def unpause(self) -> Status:
        """Go on after `pause`, or try again at once after an error, one that stopped the source included. Returns the
        status before.
        """
        with self._wishing() as before:
            self._is_paused = False
        return before

    @contextmanager
    def _wishing(self) -> Iterator[Status]:
        """Make a request of an operator, who sees this status; it ends a wait."""
        with self._changed:
            yield self._status
            self._wishes += 1
            self._changed.notify_all()

    def wait_until_changed(self, before: Status, wait_s: float) -> None:
        """Wait until the status is another than `before`, and not that of a source that begins; at most so long."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._status is not before and self._status.state is not State.INITIALIZING, wait_s
            )

    def snapshot(self, tables: Sequence[str], where: str | None = None) -> None:
        """Read tables (`db.table`) again, or the rows of them that fit a condition. Raises as `_connected`."""
        self._connected().request_snapshot(tables, where)

    def cancel_snapshot(self, tables: Sequence[str]) -> None:
        """Cancel the reading of tables. Raises as `_connected`, and `UnsupportedFeature` where the source cannot."""
        source = self._connected()
        if not isinstance(source, CancelsSnapshots):
            raise UnsupportedFeature(
                f"{self.physical}: a source of type {self.config.type} reads no tables that it could stop at"
            )
        source.cancel_snapshot(tables)

    def _connected(self) -> Source:
        """The source, once it runs. Raises `SourceSuspended` while it is suspended, and `ServiceUnavailable` while it
        is not connected, or has not started.
        """
        source = self._source
        check_not_suspended(self.physical, self._status, self.config)
        if source is None or self._status.state is State.INITIALIZING:
            raise ServiceUnavailable(f"{self.physical}: not connected now ({self.describe()}); ask again when it is")
        return source

    def look(self, wait_s: float) -> bool:
        """Have the lag measured once nothing more comes from the source; returns whether it was, within so long."""
        with self._changed:
            self._looks_wanted += 1
            mine = self._looks_wanted
            self._changed.wait_for(lambda: self._looks_taken >= mine or self._status.state is not State.RUNNING, wait_s)
            return self._looks_taken >= mine

    def wait_until_settled(self, wait_s: float) -> bool:
        """Wait until it runs, or has met the first error; returns whether that happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._status.state is not State.INITIALIZING, wait_s)

    def describe(self) -> str:
        """State and message as one line for people."""
        status = self.status
        return ": ".join(part for part in (status.state.name, status.error, status.message) if part)

    # The thread

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._round()
        finally:
            self._let_go()
            try:
                if self.log is not None:
                    self.log.close()
            finally:
                self._writer.close()
                self._note(State.SHUTDOWN)

    def _round(self) -> None:
        """Open, start, move; returns when it is time for another round or for the end."""
        try:
            source, log = self._open()
            self._follow(source, log)
            self._let_go()
        except TransientError as error:
            self._let_go()
            self._retry(error)
        except Exception as error:  # noqa: BLE001 - shown and logged; the other sources go on whatever this one did
            self._let_go()
            self._suspend(error)

    def _open(self) -> tuple[Source, Log]:
        self._begin("connecting")
        self._is_changed = False
        source = self._source = self.copy.takes(self._open_source(self.physical, self.config))
        self._open_what_is_held()
        origin = self.copy.origin(self.log, self._set_aside_and_begin)
        identity = source.identify()
        self._begin(f"opening the log of {identity.description}")
        log = self._open_log(identity, origin)
        self._begin(f"asking {identity.description} for its tables")
        self.copy.register(log, source)
        resume = log.resume()
        self._last_commit = log.last_commit
        self._begin(f"starting {identity.description} after SCN {resume.scn}")
        source.start(resume)
        self._logger.info("capture started", identity=identity.description, scn=resume.scn, log=log.uuid)
        self.missing_tables.warn(log, self._logger)
        self._acknowledged = None
        self._started_ns = self._quiet_since_ns = self._clock.monotonic_ns()
        return source, log

    def _begin(self, step: str) -> None:
        """Say what is being done before it runs, for whoever asks why it does not; an error is shown until it runs."""
        if self._status.state is not State.ERROR_RETRY:
            self._note(State.INITIALIZING, step)

    def _open_what_is_held(self) -> None:
        """Open a log that there is already: consumers may read it, though the database be away or another one now."""
        if self.log is None and (identity := held_identity(self._folder)) is not None:
            self._open_log(identity)

    def _set_aside_and_begin(self, log: Log) -> None:
        self.log = None
        set_aside(log)
        self._log_ended()

    def _open_log(self, identity: Identity, origin: LogOrigin | None = None) -> Log:
        if self.log is None:
            self.log = Log.open(
                self._folder,
                physical=self.physical,
                identity=identity,
                config=self._log_config,
                clock=self._clock,
                ids=self.config.ids,
                contains=getattr(self._source, "contains", None),  # a source need not have it
                origin=origin,
            )
            self.log.retention.guard = self._guard  # nothing has gone yet: that takes an append
            self.log.subscribe(self._published)
            self._last_commit = self.log.last_commit
            self._quiet_since_ns = self._clock.monotonic_ns()
        check_identity(self.log, identity)
        return self.log

    def _follow(self, source: Source, log: Log) -> None:
        while not self._is_stopping and not self._is_changed:
            if self._is_paused:
                self._rest(source, log)
                continue
            if self._status.state is not State.RUNNING:
                self._note(State.RUNNING)
            group = source.poll(self._options.poll_ms)
            if group is None:
                self._settle(log)
                self._look(source)
            else:
                self.copy.register(log)
                self._append(group, log)
                self._backoff.reset()
            self._look_around(source, log)

    def _look(self, source: Source) -> None:
        """Measure the lag for whoever wants to know it as it is now."""
        wanted = self._looks_wanted
        if wanted == self._looks_taken:
            return
        self._measure(source)
        with self._changed:
            self._looks_taken = wanted
            self._changed.notify_all()

    def _measure(self, source: Source) -> None:
        self._lag_watch.measured(source.lag(), self._clock.monotonic_ns())

    def _rest(self, source: Source, log: Log) -> None:
        self._settle(log)
        self._note(State.PAUSED)
        with self._changed:
            wait_s = min(_UPKEEP_NS / 1e9, self._options.progress_ms / 1e3)
            self._changed.wait_for(lambda: self._is_stopping or not self._is_paused or self._is_changed, wait_s)
        self._look_around(source, log)

    def _append(self, group: Group, log: Log) -> None:
        """Have one group encoded and appended after those before it."""
        draft = Draft(group)
        if draft.bytes >= _BEHIND_BYTES_MIN:
            try:
                self._writer.put(draft)
            except DiskFull:
                self._write_until_done([*self._writer.take_back(), draft], log)
            return
        self._settle(log)
        self._write_until_done([draft], log)

    def _settle(self, log: Log) -> None:
        """Wait until nothing is being written. Raises what went wrong with it."""
        try:
            self._writer.wait()
        except DiskFull:
            self._write_until_done(self._writer.take_back(), log)

    def _write_until_done(self, drafts: Sequence[Draft], log: Log) -> None:
        """While there is no room, say so and try again with the same group. None after it goes first, nor at a stop."""
        for draft in drafts:
            while True:
                if self._is_stopping:
                    return
                try:
                    self._write(draft)
                except DiskFull as error:
                    self._retry(error)
                    log.retain()
                    continue
                break
            if self._status.state is not State.RUNNING:
                self._note(State.RUNNING)

    def _write(self, draft: Draft) -> None:
        log = self.log
        assert log is not None  # noqa: S101 - what is written was read after the log was opened
        if draft.encoded is None:
            draft.encoded = encode_group(draft.group, log.schemas, self._clock.now_ns() // 1000)
        log.append_encoded(draft.encoded)
        self._count(draft.group, draft.encoded)

    def _count(self, group: Group, encoded: EncodedGroup) -> None:
        self._last_commit = group.commit
        self._quiet_since_ns = self._clock.monotonic_ns()
        counters = self.counters
        counters.groups += 1
        counters.rows += encoded.rows
        counters.bytes += encoded.bytes_total
        counters.controls += group.control is not None
        counters.snapshot_rows += encoded.rows if group.snapshot else 0

    def _look_around(self, source: Source, log: Log) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._started_ns >= self._options.retry_ms_max * 1_000_000:
            self._backoff.reset()  # it has run well, though nothing came
        if now_ns >= self._next_durable_ns:
            self._next_durable_ns = now_ns + _DURABLE_NS
            self._tell_durable(source, log)
        if now_ns >= self._next_upkeep_ns:
            self._next_upkeep_ns = now_ns + _UPKEEP_NS
            self._measure(source)
            self.copy.register(log)
            log.retain()
        if now_ns - self._quiet_since_ns >= self._options.progress_ms * 1_000_000:
            self._progress(log)

    def _tell_durable(self, source: Source, log: Log) -> None:
        position = log.durable()
        if position is None or position == self._acknowledged:
            return
        crash_point("capture.before_durable")
        source.durable(position)
        self._acknowledged = position
        crash_point("capture.after_durable")

    def _progress(self, log: Log) -> None:
        """Write the last commit frame again: nothing has happened up to now, and everybody may know it."""
        self._settle(log)
        self._quiet_since_ns = self._clock.monotonic_ns()
        last = self._last_commit
        if last is not None and not last.continues and not self.copy.is_one:
            self._append(Group(last), log)
            self.counters.progress += 1

    def _let_go(self) -> None:
        """Close the source and drop an unfinished transaction; it will come again, whole."""
        error = self._writer.failure
        lost = self._writer.take_back()
        if lost:
            self._logger.warning("groups were not written and come again", groups=len(lost), error=repr(error))
        source, self._source = self._source, None
        if source is not None:
            try:
                source.close()
            except Exception:
                self._logger.exception("the source did not close cleanly")
        if self.log is not None:
            try:
                self.log.cut_back()
                self._last_commit = self.log.last_commit
            except DatabusError:
                self._last_commit = None  # what is behind it is not known
                self._logger.exception("the log could not be cut back to its last published group")

    def _retry(self, error: TransientError) -> None:
        """Show the error and wait, longer each time, or until an operator requests something."""
        self.counters.errors += 1
        self.counters.restarts += not isinstance(error, DiskFull)
        wait_ms = self._backoff.next_ms()
        if self._status.message != str(error):
            self._logger.warning("capture waits", error=type(error).__name__, message=str(error), retry_ms=int(wait_ms))
        self._note(State.ERROR_RETRY, str(error), type(error).__name__)
        self._wait_for_a_wish(wait_ms / 1e3)

    def _suspend(self, error: Exception) -> None:
        self.counters.errors += 1
        if isinstance(error, DatabusError):
            self._logger.error("capture stopped", error=type(error).__name__, message=str(error))
        else:
            self._logger.error("capture stopped by a defect", exc_info=error)
        self._note(State.SUSPENDED_ON_ERROR, str(error) or repr(error), type(error).__name__)
        self._wait_for_a_wish(None)

    def _wait_for_a_wish(self, wait_s: float | None) -> None:
        """Wait so long, or until an operator requests something; meanwhile consumers see that the relay is alive."""
        seen, beat_s = self._wishes, self._options.progress_ms / 1e3
        until = None if wait_s is None else time.monotonic() + wait_s
        while True:
            left_s = beat_s if until is None else until - time.monotonic()
            if left_s <= 0:
                return
            with self._changed:
                if self._changed.wait_for(lambda: self._is_stopping or self._wishes != seen, min(left_s, beat_s)):
                    return
            self._beat()

    def _beat(self) -> None:
        """Write the last commit frame again, where one can be written, while nothing is read from the source."""
        log, last, now_ns = self.log, self._last_commit, self._clock.monotonic_ns()
        is_due = now_ns - self._quiet_since_ns >= self._options.progress_ms * 1_000_000
        if log is None or last is None or last.continues or self.copy.is_one or not is_due:
            return
        self._quiet_since_ns = now_ns
        try:
            log.append(Group(last))
        except DatabusError as error:
            self._logger.warning("no commit frame for idle consumers", error=type(error).__name__, message=str(error))
        else:
            self.counters.progress += 1

    def _note(self, state: State, message: str = "", error: str = "") -> None:
        if (state, message) == (self._status.state, self._status.message):
            return
        with self._changed:
            self._status = Status(state, message, error, self._clock.now_ns() // 1000)
            self._changed.notify_all()


def held_identity(folder: Path) -> Identity | None:
    """Which database the log in `folder` is of; None where there is none."""
    numbers = segment_numbers(folder)
    return SegmentHeader.load(segment_path(folder, numbers[0])).identity if numbers else None


def check_identity(log: Log, now: Identity) -> None:
    """Raise `SourceChanged` unless this is the physical source that the log belongs to."""
    known = log.identity
    if known.uuid != now.uuid:
        raise SourceChanged(
            f"{log.physical}: {log.folder} is the log of {known.description} ({known.uuid}), and the database is now "
            f"{now.description} ({now.uuid}). What the log holds is served. Put the former back; or stop the "
            f"relay, move that folder away and start it again: all tables are read then, and consumers of the former "
            f"log have to start over"
        )
    if known.scheme != now.scheme:
        raise SourceChanged(
            f"{log.physical}: its SCNs were made by the scheme {known.scheme!r} and now are by {now.scheme!r}; "
            f"a scheme never changes inside a timeline. For a new log, stop the relay, move that folder away and start "
            f"it again: all tables are read then, and consumers of the former log have to start over"
        )
