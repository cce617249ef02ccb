"""The client: reads a relay's sources and calls a consumer back. The shell around `Dispatcher`.

    client = Client("http://127.0.0.1:11115", MyConsumer(), checkpoints=FileCheckpoints("state/copy.json"))
    client.run()

A thread for each physical source reads; one calls the consumer: the one that called `run`, or one of the client's own
after `start`.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from databus.client._checkpoints import Checkpoints, MemoryCheckpoints
from databus.client._client_config import ClientConfig, ClientState, SourceStatus
from databus.client._consumer import AnyWindow, Consumer, Result
from databus.client._dispatcher import Call, Dispatcher, Kind, callbacks_of
from databus.client._followed_source import FollowedSource
from databus.client._lane import Lane
from databus.client._saving import Saving
from databus.client._sigterm import ends_on_sigterm
from databus.client._subscription import Wanted, filtered, wanted_of
from databus.core import (
    Checkpoint,
    Clock,
    ConfigError,
    DatabusError,
    ServiceUnavailable,
    SystemClock,
    TransientError,
    crash_point,
    join_seeing_signals,
    place_in_user_code,
    wait_seeing_signals,
)
from databus.filters import Columns
from databus.link import Backoff, Channel, ReaderState, RelayClient, Start
from databus.operate import logger_of

_STOP_MS_MAX: Final = 30_000
_logger = logger_of("databus.client")


class Client:
    """A consumer and the sources that it follows. Call `run`, or `start` and later `stop`; `with` stops it at its end.

    SIGTERM ends `run` and `join` in the main thread as `stop` does, unless the program has a handler of its own.

    relay: an address, several of relays of one database, or a `RelayClient`, which takes files for TLS too. token,
    token_file: what a relay with a token wants to be shown; without them the environment variable DATABUS_TOKEN is
    looked at. name: how the relay's statistics and metrics call this client; by it they still show where it stood when
    it has vanished.
    sources: names and patterns (`shop/main.*`, `orders`); None for all, with those whose database the relay could not
    reach so far.
    start: where a physical source begins of which no checkpoint was saved: `beginning`, `earliest`, `latest`,
    or a time such as `datetime.now(UTC) - timedelta(hours=1)`: all that was committed then or later comes, perhaps
    with a little from before.
    where, columns, filters: which rows and columns come, as `windows` takes them.
    """

    def __init__(
        self,
        relay: RelayClient | str | Sequence[str],
        consumer: Consumer,
        *,
        sources: Sequence[str] | None = None,
        start: Start = "beginning",
        checkpoints: Checkpoints | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        name: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        where: str | None = None,
        columns: Columns | None = None,
        filters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if not isinstance(relay, RelayClient):
            relay = RelayClient(relay, token=token, token_file=token_file, name=name)
        elif (token, token_file, name) != (None, None, None):
            raise ConfigError("a RelayClient has its token and its name already; give them to it, not to the Client")
        self._relay = filtered(relay, where, columns, filters).clone()
        self._consumer = consumer
        self._names = sources
        self._start_at = start
        self._store = checkpoints or MemoryCheckpoints()
        self._config = config or ClientConfig()
        self._clock = clock or SystemClock()
        self._bell = threading.Condition()
        self._wants_stop = False
        self._wants_pause = False
        self._sources: dict[str, FollowedSource] = {}
        self._order: list[FollowedSource] = []
        self._knows_starts = False
        self._next_look = 0.0
        self._saving = Saving(self._config.retry_first_ms, self._config.retry_ms_max)
        self._dispatcher = Dispatcher(Checkpoint(), retries_max=self._config.retries_max)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.state = ClientState.NEW
        self._acts: dict[Kind, Callable[[Call], Any]] = {
            **callbacks_of(consumer),
            Kind.START_WINDOW: self._start_window,
            Kind.END_WINDOW: self._end_window,
            Kind.SAVE: self._save,
            Kind.REPLAY: self._replay,
            Kind.ERROR: self._ask_on_error,
            Kind.LEAVE: self._leave,
        }

    # life

    def run(self) -> None:
        """Consume until `stop`, in this thread. Raises the error that ended it, if one did."""
        if self.state is not ClientState.NEW:
            raise RuntimeError(f"this client is {self.state}; make a new one")
        self.state = ClientState.RUNNING
        try:
            with ends_on_sigterm(self._end):
                self._run()
        except BaseException as error:
            self._error = error
            self.state = ClientState.FAILED
            raise
        self.state = ClientState.STOPPED

    def start(self) -> None:
        """Consume in a thread of the client's own; `stop` raises what it ended with."""
        self._thread = threading.Thread(target=self._run_aside, daemon=True, name="databus-client")
        self._thread.start()

    def _run_aside(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - raised again by `stop` and `join`
            _logger.error("client failed", error=type(error).__name__, message=str(error))  # noqa: TRY400 - see `stop`

    def stop(self, wait_ms: int = _STOP_MS_MAX) -> None:
        """Stop after the callbacks of the current window; from any thread, a callback's too. Callable twice.

        Waits up to `wait_ms` for a client that was started with `start`, and raises what it ended with.
        """
        self._end()
        self.join(wait_ms)

    def _end(self) -> None:
        with self._bell:
            self._wants_stop = True
            self._bell.notify_all()
        self._relay.close()

    def join(self, wait_ms: int | None = None) -> None:
        """Wait until it has ended, after `start`. Raises what it ended with, `ServiceUnavailable` if it goes on."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        with ends_on_sigterm(self._end):
            join_seeing_signals(self._thread, None if wait_ms is None else wait_ms / 1e3)
        if self._thread.is_alive():
            raise ServiceUnavailable(f"the client is still in a callback after {wait_ms} ms")
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def pause(self) -> None:
        """Make no more calls after those of the current window. What has been received waits, within its bound."""
        with self._bell:
            self._wants_pause = True
            self._bell.notify_all()

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._bell:
            self._wants_pause = False
            self._bell.notify_all()

    # what others may look at

    @property
    def checkpoint(self) -> Checkpoint:
        """What was last saved."""
        return self._dispatcher.checkpoint

    def status(self) -> dict[str, SourceStatus]:
        """Each physical source as it is now; from any thread."""
        saved, now_ms = self._dispatcher.checkpoint.sources, self._clock.now_ns() / 1e6
        return {name: each.status(saved.get(name), now_ms) for name, each in list(self._sources.items())}

    # the loop

    def _run(self) -> None:
        saved = self._store.open() or Checkpoint()
        self._dispatcher = Dispatcher(saved, retries_max=self._config.retries_max)
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
        """Learn what the relay has, however long it is away, and begin to read."""
        follow = self._config.follow
        backoff = Backoff(follow.backoff_first_ms, follow.backoff_ms_max)
        deadline = time.monotonic() + follow.outage_ms_max / 1e3
        while not self._wants_stop:
            try:
                wanted = wanted_of(self._relay, self._names)
                break
            except TransientError as error:
                if time.monotonic() > deadline:
                    raise
                wait_ms = backoff.next_ms()
                _logger.warning("waiting for the relay", error=str(error), again_in_ms=round(wait_ms))
                with self._bell:
                    wait_seeing_signals(self._bell, lambda: self._wants_stop, wait_ms / 1e3)
        else:
            return
        for each in wanted:
            start = saved.sources.get(each.physical) or each.begins_at(self._start_at)
            source = FollowedSource(each, self._lane(each, start))
            self._sources[each.physical] = source
            self._order.append(source)

    def _lane(self, wanted: Wanted, start: Start) -> Lane:
        channel = Channel(self._bell, self._config.follow.buffer_bytes_max)
        return Lane(
            self._relay,
            wanted.physical,
            start,
            channel,
            sources=wanted.sources,
            until=None,
            config=self._config.follow,
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
            source = self._pick()
            if source is None:
                if all(each.is_left for each in self._order):
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
        return next((each for each in self._order if self._dispatcher.is_open(each.wanted.physical)), None)

    def _ready(self) -> FollowedSource | None:
        """The source that has something to do and may do it."""
        waiting = [each for each in self._order if self._has_work(each)]
        if not self._knows_starts:  # a checkpoint that lacked one would begin it at a later `latest`
            unknown = [each for each in self._order if not each.is_known and not each.is_left]
            self._knows_starts = not unknown
            waiting = [each for each in waiting if each in unknown] if unknown else waiting
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
        if self._config.batch_rows_max and lane.windows:
            lane.windows.appendleft(window)  # type: ignore[arg-type]
            window = lane.joined(self._config.batch_rows_max)
        now = time.monotonic()
        is_due = now - source.checkpointed_at >= self._config.checkpoint_ms / 1e3 and self._saving.may_try
        if is_due:
            source.checkpointed_at = now
        source.windows += 1
        source.rows += len(window)
        window.stand_beside(self._dispatcher.checkpoint.sources)  # of the others what is saved, as in `on_checkpoint`
        self._dispatcher.feed(window, is_due=is_due)
        self._perform()
        source.last = window

    def _perform(self) -> None:
        """Make the calls that the dispatcher wants, one after the other."""
        dispatcher, acts, success = self._dispatcher, self._acts, Result.SUCCESS
        while (call := dispatcher.next()) is not None:
            try:
                result = acts[call.kind](call)
                if result is None:
                    result = success
                elif not isinstance(result, Result):
                    raise TypeError(f"a callback returned {result!r}; expected a Result or None")  # noqa: TRY301
            except Exception as error:  # noqa: BLE001 - any failure of a consumer's is rolled back, counted and told
                self._note(call, error)
                dispatcher.failed(call, error)
            else:
                dispatcher.done(call, result)

    def _note(self, call: Call, error: Exception) -> None:
        if call.kind is not Kind.SAVE:  # of which `Saving` speaks
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
        try:
            self._store.save(call.argument)
        except Exception as error:
            self._saving.failed(error)
            raise
        self._saving.succeeded()

    def _replay(self, call: Call) -> None:
        source = self._sources[call.physical]
        self._close_lane(source)
        backoff = Backoff(self._config.retry_first_ms, self._config.retry_ms_max)
        pause_ms = 0.0
        for _ in range(call.attempt):
            pause_ms = backoff.next_ms()
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
        return [each for each in self._order if not each.is_left and is_unsaved(each.wanted.physical)]

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
        due = [each for each in self._unsaved() if now - each.checkpointed_at >= period]
        self._checkpoint_all(due)
        return bool(due)

    def _wait(self) -> None:
        """Until something arrives, a checkpoint is due or a replay begins."""
        if self._checkpoint_due():
            return
        now = time.monotonic()
        period = self._config.checkpoint_ms / 1e3
        until = [max(each.checkpointed_at + period, now + self._saving.wait_s) for each in self._unsaved()]
        until += [each.replay_at for each in self._order if each.replay_from is not None]
        with self._bell:
            wait_seeing_signals(self._bell, self._is_woken, min(until) - now if until else None)

    def _is_woken(self) -> bool:
        return self._wants_stop or self._wants_pause or self._ready() is not None
