"""The loop of a client: one thread that calls one consumer back. The shell around `Dispatcher`."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from databus.client._checkpoints import Checkpoints
from databus.client._client_config import ClientConfig, ClientState, SourceStatus
from databus.client._consumer import AnyWindow, Consumer, Result
from databus.client._dispatcher import OF_A_WINDOW, Call, CallKind, Dispatcher, callbacks_of
from databus.client._followed_source import FollowedSource, Saving
from databus.client._group_run import PartitionPart
from databus.client._lane import Lane
from databus.client._letter_folder import LetterFolder
from databus.client._lone_window import CutWindow, LoneWindow
from databus.client._parked import LOOK_S
from databus.client._subscription import WantedSource
from databus.core import (
    Backoff,
    Checkpoint,
    Clock,
    DatabusError,
    ServiceUnavailable,
    SourceCheckpoint,
    crash_point,
    place_in_user_code,
    wait_seeing_signals,
)
from databus.link import Channel, ReaderState, RelayClient, Start
from databus.operate import logger_of

if TYPE_CHECKING:
    from databus.client._parking import ClientParking

_OF_PLACES: Final = OF_A_WINDOW | {CallKind.CHECKPOINT}
_logger: Final = logger_of("databus.client")


class ConsumerLoop:
    """A consumer and the sources that it follows, from `run` to `end`.

    learn_wanted: what is followed; nothing if it is to end before that is known. part: of a group, the partition that
    it runs. letters: where rows go that fail; None where they stop it.
    """

    def __init__(
        self,
        relay: RelayClient,
        consumer: Consumer,
        store: Checkpoints,
        learn_wanted: Callable[[], list[WantedSource]],
        start: Start,
        config: ClientConfig,
        clock: Clock,
        part: PartitionPart | None = None,
        letters: LetterFolder | None = None,
    ) -> None:
        self._relay = relay.clone()
        self._consumer = consumer
        self._learn_wanted = learn_wanted
        self._start_at = start
        self._store = store
        self._config = config
        self._clock = clock
        self._part = part
        self._letters = letters
        self._bell = threading.Condition()
        self._wants_stop = False
        self._wants_pause = False
        self._sources: dict[str, FollowedSource] = {}
        self._order: list[FollowedSource] = []
        self._knows_starts = False
        self._next_look = 0.0
        self._saving = Saving(config.retry_first_ms, config.retry_ms_max)
        self._dispatcher = Dispatcher(Checkpoint(), retries_max=config.retries_max)
        self.state = ClientState.RUNNING
        self._acts: dict[CallKind, Callable[[Call], Any]] = {
            **callbacks_of(consumer),
            CallKind.PARK: self._park,
            CallKind.START_WINDOW: self._start_window,
            CallKind.END_WINDOW: self._end_window,
            CallKind.SAVE: self._save,
            CallKind.REPLAY: self._replay,
            CallKind.ERROR: self._ask_on_error,
            CallKind.LEAVE: self._leave,
        }

    # from any thread

    def end(self) -> None:
        """Have it end after the callbacks of the current window."""
        with self._bell:
            self._wants_stop = True
            self._bell.notify_all()
        self._relay.close()

    def pause(self, *, is_paused: bool) -> None:
        """Have it make no more calls after those of the current window, or go on."""
        with self._bell:
            self._wants_pause = is_paused
            self._bell.notify_all()

    @property
    def checkpoint(self) -> Checkpoint:
        """What was last saved."""
        return self._dispatcher.checkpoint

    def status(self) -> dict[str, SourceStatus]:
        """Each physical source as it is now."""
        saved, now_ms = self._dispatcher.checkpoint.sources, self._clock.now_ns() / 1e6
        return {name: source.status(saved.get(name), now_ms) for name, source in list(self._sources.items())}

    # the loop

    def run(self) -> None:
        """Until `end`, or until nothing is left to read. Raises the error that ended it, if one did."""
        saved = self._store.open() or Checkpoint()
        has_letters = self._letters is not None
        self._dispatcher = Dispatcher(saved, retries_max=self._config.retries_max, parks=has_letters)
        try:
            self._dispatcher.start()
            self._perform()
            if not self._dispatcher.is_stopping:
                self._connect(saved)
                self._loop()
        finally:
            try:
                self._dispatcher.stop()
                self._perform()
            finally:
                for source in self._order:
                    if source.lane is not None:
                        source.lane.reader.close()
                self._relay.close()
                self._store.close()
        if self._dispatcher.error is not None:
            raise self._dispatcher.error

    def _connect(self, saved: Checkpoint) -> None:
        if self._letters is not None:
            self._letters.open()  # now: who had this partition before has written the last ones
        for wanted in self._learn_wanted():
            start = saved.sources.get(wanted.physical) or wanted.begins_at(self._start_at)
            source = FollowedSource(wanted, self._lane(wanted, start), self._parking(wanted.physical))
            self._sources[wanted.physical] = source
            self._order.append(source)

    def _parking(self, physical: str) -> "ClientParking | None":
        if self._letters is None:
            return None
        from databus.client._parking import ClientParking  # it loads what only those need who park

        hold = None if self._part is None else self._part.hold
        partition, writer = (None, "") if hold is None else (hold.partition, f"{hold.partition!r} {hold.fence}")
        in_a_row_max = self._config.refused_in_a_row_max
        return ClientParking(self._letters, physical, partition, writer, in_a_row_max)

    def _lane(self, wanted: WantedSource, start: Start) -> Lane:
        channel = Channel(self._bell, self._config.follow.buffer_bytes_max)
        if self._part is not None and isinstance(start, SourceCheckpoint):
            return self._part.lane(self._relay, wanted, start, channel, self._config.follow)
        return Lane(
            self._relay, wanted.physical, start, channel, sources=wanted.sources, until=None, config=self._config.follow
        )

    def _loop(self) -> None:
        while not self._wants_stop and not self._dispatcher.is_stopping:
            if self._wants_pause:
                self._rest(ClientState.PAUSED)
                continue
            if self._saving.has_failed_for_ms(self._config.unsaved_ms_max) and self._inside() is None:
                self._rest(ClientState.WAITING)
                continue
            self._restart_due()
            if self._replay_letter():
                continue
            source = self._pick()
            if source is None:
                if all(source.is_left for source in self._order):
                    return
                self._wait()
            else:
                self._step(source)
                self._perform()
                if time.monotonic() >= self._next_look and self._inside() is None:
                    self._checkpoint_due()

    def _pick(self) -> FollowedSource | None:
        """The next source that has something, in turn; while one has an open window, that one."""
        source = self._ready()
        if source is None or len(self._order) == 1:
            return source
        inside = self._inside()
        if inside is not None and inside is not source:
            self._dispatcher.interrupted(inside.wanted.physical)  # nobody waits for a relay that is away
            self._perform()
        self._order.remove(source)
        self._order.append(source)
        return source

    def _inside(self) -> FollowedSource | None:
        """The source of which a window is open."""
        return next((source for source in self._order if self._dispatcher.is_open(source.wanted.physical)), None)

    def _ready(self) -> FollowedSource | None:
        """The source that has something to do and may do it."""
        waiting = [source for source in self._order if self._has_work(source)]
        if not self._knows_starts:  # a checkpoint that lacked one would begin it at a later `latest`
            unknown = [source for source in self._order if not source.is_known and not source.is_left]
            self._knows_starts = not unknown
            waiting = [source for source in waiting if source in unknown] if unknown else waiting
        inside = self._inside()
        if inside is None or inside in waiting or not waiting:
            return inside if inside in waiting else next(iter(waiting), None)
        is_away = inside.lane is None or inside.lane.reader.state is ReaderState.WAITING
        return waiting[0] if is_away else None

    def _has_work(self, source: FollowedSource) -> bool:
        """Whether there is something to do with it; its windows wait until a crash would find where it began."""
        if source.lane is None or not source.lane.has_work:
            return False
        return not source.is_known or self._dispatcher.is_start_saved(source.wanted.physical)

    def _step(self, source: FollowedSource) -> None:
        lane, physical = source.lane, source.wanted.physical
        if lane is None:
            return
        if lane.windows:
            try:
                self._deliver(source, lane)
            except DatabusError as error:  # rows that cannot be opened: `CorruptData`
                self._dispatcher.lost(physical, error)
            return
        if lane.is_ended:
            self._dispatcher.lost(physical, lane.error or ServiceUnavailable(f"{physical}: the reader ended"))
            return
        lane.advance()
        if lane.start is not None and not source.is_known:
            source.is_known = True
            self._dispatcher.started(physical, lane.start)
        if lane.is_restarted:
            lane.is_restarted = False
            self._dispatcher.interrupted(physical)

    def _deliver(self, source: FollowedSource, lane: Lane) -> None:
        window: AnyWindow = lane.windows.popleft()
        physical, parking = source.wanted.physical, source.parking
        if isinstance(window, LoneWindow):
            self._deliver_lone(source, window)
            return
        is_rest = isinstance(window, CutWindow)  # of one whose changes were delivered one by one
        if parking is not None and not is_rest and self._dispatcher.comes_apart(window):
            lane.windows.extendleft(reversed(parking.apart(window, self._dispatcher.place(physical))))  # type: ignore[arg-type]  # it came from there
            return
        if self._config.batch_rows_max and lane.windows and not is_rest:
            lane.windows.appendleft(window)  # type: ignore[arg-type]  # it came from there
            window = lane.joined(self._config.batch_rows_max)
        if parking is not None and not is_rest:
            window = parking.cut(window, self._saved(physical))
        now = time.monotonic()
        is_due = now - source.checkpointed_at >= self._config.checkpoint_ms / 1e3 and self._saving.may_try
        if is_due:
            source.checkpointed_at = now
        self._count(source, window)
        self._dispatcher.feed(window, is_due=is_due, parks=parking is not None and parking.is_unwritten)
        self._perform()
        source.last = window

    def _count(self, source: FollowedSource, window: AnyWindow) -> None:
        source.windows += 1
        source.rows += len(window)
        window.stand_beside(self._dispatcher.checkpoint.sources)  # of the others what is saved, as in `on_checkpoint`

    # rows that fail

    def _deliver_lone(self, source: FollowedSource, window: LoneWindow) -> None:
        """Deliver a change by itself, unless it is parked."""
        parking, physical = source.parking, source.wanted.physical
        if parking is None or parking.holds(window):
            return
        self._count(source, window)
        self._dispatcher.feed_lone(window)
        self._perform()
        failed = parking.note(window, self._dispatcher.outcome, self._saved(physical))
        if failed is not None:
            self._dispatcher.lost(physical, failed)

    def _saved(self, physical: str) -> SourceCheckpoint:
        return self._dispatcher.checkpoint.sources.get(physical, SourceCheckpoint())

    def _replay_letter(self) -> bool:
        """Deliver the next dead letter that is to be replayed; whether there was one."""
        if self._letters is None or self._inside() is not None:
            return False
        for source in self._order:
            parking, lane = source.parking, source.lane
            if parking is None or lane is None or not self._dispatcher.is_start_saved(source.wanted.physical):
                continue
            if lane.windows and isinstance(lane.windows[0], LoneWindow | CutWindow):
                continue  # a window is coming apart
            window = parking.next_letter(self._dispatcher.place(source.wanted.physical))
            if window is not None:
                self._deliver_lone(source, window)
                return True
        return False

    def _park(self, call: Call) -> None:
        """Make letters durable. They are nobody's if the lease ended meanwhile: the rows come to the next holder."""
        parking, part = self._sources[call.physical].parking, self._part
        if parking is None:
            return
        made = parking.write()
        if part is not None and not part.may_make(call):
            parking.take_back(made)
            raise ServiceUnavailable("the lease ended while dead letters were written")

    def _perform(self) -> None:
        """Make the calls that the dispatcher wants, one after the other."""
        dispatcher, acts, success, part = self._dispatcher, self._acts, Result.SUCCESS, self._part
        while (call := dispatcher.next()) is not None:
            if part is not None and not part.may_make(call):
                dispatcher.interrupted(call.physical, is_begun=call.kind is CallKind.PARK)
                continue
            try:
                result = acts[call.kind](call)
                if result is None:
                    result = success
                elif not isinstance(result, Result):
                    raise TypeError(f"a callback returned {result!r}; expected a Result or None")  # noqa: TRY301 - told as one
            except Exception as error:  # noqa: BLE001 - any failure of a consumer's is rolled back, counted and told
                self._note(call, error)
                if part is not None and part.has_failed(error) and call.kind in _OF_PLACES:
                    self.end()  # it is another's, or comes again from where its target stands: no failure to be counted
                    dispatcher.interrupted(call.physical, is_begun=True)
                else:
                    dispatcher.failed(call, error)
            else:
                dispatcher.done(call, result)
        if part is not None:
            part.called_at = None

    def _note(self, call: Call, error: Exception) -> None:
        if call.kind is not CallKind.SAVE:  # of which `Saving` speaks
            _logger.warning(
                "callback failed",
                call=call.kind.name.lower(),
                physical=call.physical or None,
                scn=None if call.window is None else call.window.scn,
                error=type(error).__name__,
                message=str(error),
                at=place_in_user_code(error) or None,
                exc_info=error,
            )
        if call.physical in self._sources:
            self._sources[call.physical].failures += 1
            self._sources[call.physical].last_error = error

    # the client's own acts

    def _start_window(self, call: Call) -> Result | None:
        crash_point("client.window.before_callback")
        return self._consumer.on_start_window(call.argument)

    def _end_window(self, call: Call) -> Result | None:
        result = self._consumer.on_end_window(call.argument)
        parking = self._sources[call.physical].parking
        if parking is not None:
            parking.note_window(call.argument)
        crash_point("client.window.after_callback")
        return result

    def _ask_on_error(self, call: Call) -> Result:
        result = self._consumer.on_error(call.argument, call.physical or None)
        if result is None:  # a consumer that only logs has not decided to lose a source
            return Result.ERROR_FATAL
        if result in (Result.SUCCESS, Result.CHECKPOINT, Result.SKIP_CHECKPOINT):
            _logger.error("a source is left behind, as on_error says", physical=call.physical, error=str(call.argument))
        return result

    def _save(self, call: Call) -> None:
        parking = self._sources[call.physical].parking if call.physical in self._sources else None
        try:
            if parking is not None:
                parking.forget_overtaken()
            self._store.save(call.argument)
        except Exception as error:
            self._saving.failed(error)
            raise
        self._saving.succeeded()
        if parking is not None:
            parking.note_saved()

    def _replay(self, call: Call) -> None:
        source = self._sources[call.physical]
        self._close_lane(source)
        if source.parking is not None:
            source.parking.roll_back()
        pause_ms = Backoff(self._config.retry_first_ms, self._config.retry_ms_max).after(call.attempt)
        source.replay_from = call.argument
        source.replay_at = time.monotonic() + pause_ms / 1e3

    def _leave(self, call: Call) -> None:
        source = self._sources[call.physical]
        source.is_left = True
        self._close_lane(source)

    def _close_lane(self, source: FollowedSource) -> None:
        if source.lane is not None:
            source.lane.reader.close()
            source.lane = None

    def _restart_due(self) -> None:
        now = time.monotonic()
        for source in self._order:
            if source.replay_from is not None and now >= source.replay_at:
                source.lane = self._lane(source.wanted, source.replay_from)
                source.replay_from = None

    def _unsaved(self) -> list[FollowedSource]:
        is_unsaved = self._dispatcher.is_unsaved
        return [source for source in self._order if not source.is_left and is_unsaved(source.wanted.physical)]

    def _rest(self, state: ClientState) -> None:
        """Save what is done, and call nobody until it may go on, or until it is time to try and save again."""
        self._checkpoint_all(self._unsaved())
        if state is ClientState.WAITING and not self._saving.has_failed:
            self.state = ClientState.RUNNING
            return
        self.state = state
        retry_s = self._config.retry_first_ms / 1e3
        timeout = max(self._saving.wait_s, retry_s) if self._saving.has_failed else None
        with self._bell:
            paused = self._wants_pause
            wait_seeing_signals(self._bell, lambda: self._wants_stop or self._wants_pause is not paused, timeout)
        self.state = state if self._wants_pause else ClientState.RUNNING

    def _checkpoint_all(self, sources: list[FollowedSource]) -> None:
        for source in sources:
            if not self._saving.may_try:
                return
            source.checkpointed_at = time.monotonic()
            self._dispatcher.due(source.wanted.physical)
            self._perform()
        if not self._unsaved():
            self._saving.succeeded()

    def _checkpoint_due(self) -> bool:
        """Save what is due of sources of which nothing comes that could end with it; whether there was any."""
        now, period = time.monotonic(), self._config.checkpoint_ms / 1e3
        self._next_look = now + period
        if not self._saving.may_try:
            return False
        due = [source for source in self._unsaved() if now - source.checkpointed_at >= period]
        self._checkpoint_all(due)
        return bool(due)

    def _wait(self) -> None:
        """Until something arrives, a checkpoint is due or a replay begins."""
        if self._checkpoint_due():
            return
        now = time.monotonic()
        period = self._config.checkpoint_ms / 1e3
        until = [max(source.checkpointed_at + period, now + self._saving.wait_s) for source in self._unsaved()]
        until += [source.replay_at for source in self._order if source.replay_from is not None]
        if any(source.parking is not None and source.parking.has_letters for source in self._order):
            until.append(now + LOOK_S)
        with self._bell:
            wait_seeing_signals(self._bell, self._is_woken, min(until) - now if until else None)

    def _is_woken(self) -> bool:
        return self._wants_stop or self._wants_pause or self._ready() is not None
