"""The client: reads a relay's sources and calls a consumer back, or many of a group.

    client = Client("http://127.0.0.1:11115", MyConsumer(), checkpoints=FileCheckpoints("state/copy.json"))
    client.run()

A thread for each physical source reads; one calls the consumer: the one that called `run`, or one of the client's own
after `start`.
"""

import _thread
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self

from databus.client._checkpoints import Checkpoints, MemoryCheckpoints
from databus.client._client_config import ClientConfig, ClientState, SourceStatus
from databus.client._consumer import Consumer
from databus.client._consumer_loop import ConsumerLoop
from databus.client._group_run import Factory, GroupRun, PartitionPart
from databus.client._group_subscription import group_terms, terms_in
from databus.client._letter_folder import LetterFolder, letters_in
from databus.client._membership import Membership
from databus.client._subscription import WantedSource, filtered, wanted_of
from databus.core import (
    Backoff,
    Checkpoint,
    Clock,
    ConfigError,
    InputError,
    ServiceUnavailable,
    SystemClock,
    TransientError,
    import_pandas,
    join_seeing_signals,
    wait_seeing_signals,
)
from databus.disk import Location
from databus.filters import Columns
from databus.link import RelayClient, Start
from databus.operate import logger_of

_STOP_MS_MAX: Final = 30_000
_logger = logger_of("databus.client")


class Client:
    """A consumer and the sources that it follows. Call `run`, or `start` and later `stop`; `with` stops it at its end.

    SIGTERM ends `run` and `join` in the main thread as `stop` does, unless the program has a handler of its own.

    relay: an address, several of relays of one database, or a `RelayClient`, which takes files for TLS too. token,
    token_file: what a relay with a token wants to be shown; without them the environment variable DATABUS_TOKEN is
    looked at.
    consumer: what is called back; of a group with several partitions, what makes one for each: `f(partition)`.
    name: the relay keeps the checkpoints under this name, and its processes share the partitions; `start` counts only
    when it is used for the first time. With `checkpoints`, it is only how statistics and metrics call this client.
    partitions: among how many parts the keys are dealt; decided at the first time too. Each that is held has a consumer
    and a thread of its own. guard: the relay keeps its log for this name beyond its retention, up to a bound.
    sources: names and patterns (`shop/main.*`, `orders`); None for all, with those whose database the relay could not
    reach so far.
    start: where a physical source begins of which no checkpoint was saved: `beginning`, `earliest`, `latest`,
    or a time such as `datetime.now(UTC) - timedelta(hours=1)`: all that was committed then or later comes, perhaps
    with a little from before.
    where, columns, filters: which rows and columns come, as `windows` takes them.
    on_failure: what becomes of a change that fails more than `retries_max` times. It stops the client (`stop`), or is
    kept as a dead letter, and what follows of its key too, until somebody has it replayed or drops it (`park`).
    dead_letters: the folder for those, here or in an object store; all members of a group have the same.
    """

    def __init__(
        self,
        relay: RelayClient | str | Sequence[str],
        consumer: Consumer | Factory,
        *,
        sources: Sequence[str] | None = None,
        start: Start = "beginning",
        checkpoints: Checkpoints | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        name: str | None = None,
        partitions: int = 1,
        guard: bool = False,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        where: str | None = None,
        columns: Columns | None = None,
        filters: Mapping[str, Mapping[str, Any]] | None = None,
        on_failure: Literal["stop", "park"] = "stop",
        dead_letters: str | Path | Location | None = None,
    ) -> None:
        is_group = name is not None and checkpoints is None
        if not isinstance(relay, RelayClient):
            relay = RelayClient(relay, token=token, token_file=token_file, name=name)
        elif (token, token_file) != (None, None) or (name is not None and not is_group):
            raise ConfigError("a RelayClient has its token and its name already; give them to it, not to the Client")
        self._relay = filtered(relay, where, columns, filters)
        self._asked = self._relay.clone()
        self._names = sources
        self._start_at = start
        self._config = config or ClientConfig()
        self._clock = clock or SystemClock()
        self._letters = self._letter_folder(on_failure, dead_letters, name or "")
        self._bell = threading.Condition()
        self._wants_stop = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._state = ClientState.NEW
        self._loop: ConsumerLoop | None = None
        self._group: GroupRun | None = None
        if is_group and name is not None:
            membership_of = partial(self._membership, name, partitions, guard)
            self._group = GroupRun(membership_of, consumer, self._loop_of, self._config)
        elif partitions == 1 and not guard and isinstance(consumer, Consumer):
            store = checkpoints or MemoryCheckpoints()
            self._loop = ConsumerLoop(
                self._relay,
                consumer,
                store,
                self._learn_wanted,
                start,
                self._config,
                self._clock,
                letters=self._letters,
            )
        else:
            raise InputError(
                "partitions, guard, and what makes consumers instead of one, are for a group, which has a name and no "
                "checkpoints of its own"
            )

    # life

    def run(self) -> None:
        """Consume until `stop`, in this thread. Raises the error that ended it, if one did."""
        if self._state is not ClientState.NEW:
            raise RuntimeError(f"this client is {self.state}; make a new one")
        self._state = ClientState.RUNNING
        try:
            with ends_on_sigterm(self.end):
                self._run()
        except BaseException as error:
            self._error = error
            self._state = ClientState.FAILED
            raise
        self._state = ClientState.STOPPED

    def _run(self) -> None:
        import_pandas()
        if self._loop is not None:
            self._loop.run()
        elif self._group is not None:
            self._group.run(self._learn_wanted())

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
        self.end()
        self.join(wait_ms)

    def end(self) -> None:
        """Have it stop as `stop` does, without waiting."""
        with self._bell:
            self._wants_stop = True
            self._bell.notify_all()
        self._asked.close()
        for part in (self._loop, self._group):
            if part is not None:
                part.end()

    def join(self, wait_ms: int | None = None) -> None:
        """Wait until it has ended, after `start`. Raises what it ended with, `ServiceUnavailable` if it goes on."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        with ends_on_sigterm(self.end):
            join_seeing_signals(self._thread, None if wait_ms is None else wait_ms / 1e3)
        if self._thread.is_alive():
            raise ServiceUnavailable(f"the client is still in a callback after {wait_ms} ms")
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pause(self) -> None:
        """Make no more calls after those of the current window. What has been received waits, within its bound."""
        self._set_pause(is_paused=True)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._set_pause(is_paused=False)

    def _set_pause(self, *, is_paused: bool) -> None:
        for part in (self._loop, self._group):
            if part is not None:
                part.pause(is_paused=is_paused)

    # what others may look at

    @property
    def state(self) -> ClientState:
        """Where it is in its life."""
        is_running = self._state is ClientState.RUNNING and self._loop is not None
        return self._loop.state if is_running and self._loop is not None else self._state

    @property
    def checkpoint(self) -> Checkpoint:
        """What was last saved; of a group, of the one partition that is held."""
        if self._group is not None:
            return self._group.checkpoint
        return self._loop.checkpoint if self._loop is not None else Checkpoint()

    def status(self) -> dict[str, SourceStatus]:
        """Each physical source as it is now; from any thread. Of a group with several partitions, each of them, as
        `3/8 shop`.
        """
        part = self._loop or self._group
        return {} if part is None else part.status()

    # what it is made of

    def _letter_folder(self, on_failure: str, place: str | Path | Location | None, name: str) -> LetterFolder | None:
        if on_failure not in ("stop", "park"):
            raise ConfigError(f"on_failure: is stop or park, not {on_failure!r}")
        if on_failure == "stop" and place is not None:
            raise ConfigError('dead_letters: has no meaning without on_failure="park"')
        if on_failure == "stop":
            return None
        if place is None:
            raise ConfigError('on_failure="park" needs dead_letters=FOLDER, where the changes are kept that fail')
        return LetterFolder(letters_in(place, self._config.dead_letters_max), name)

    def _learn_wanted(self) -> list[WantedSource]:
        """What the relay has, however long it is away; nothing if the client is to end before."""
        follow = self._config.follow
        backoff = Backoff(follow.backoff_first_ms, follow.backoff_ms_max, total_ms=follow.outage_ms_max)
        while not self._wants_stop:
            try:
                return wanted_of(self._asked, self._names)
            except TransientError as error:
                if backoff.is_over:
                    raise
                wait_ms = backoff.next_ms()
                _logger.warning("waiting for the relay", error=str(error), again_in_ms=round(wait_ms))
                with self._bell:
                    wait_seeing_signals(self._bell, lambda: self._wants_stop, wait_ms / 1e3)
        return []

    def _membership(
        self, name: str, partitions: int, guard: bool, wanted: Sequence[WantedSource], bell: threading.Condition
    ) -> Membership:
        terms = group_terms(self._names, self._relay.filters, self._start_at, None, partitions, guard=guard)
        return Membership(
            self._relay, name, lambda: terms_in(terms, [source.physical for source in wanted]), bell, self._clock
        )

    def _loop_of(self, part: PartitionPart) -> ConsumerLoop:
        """The loop of one partition."""
        return ConsumerLoop(
            self._relay,
            part.consumer,
            part,
            lambda: part.wanted,
            self._start_at,
            self._config,
            self._clock,
            part,
            self._letters,
        )


@contextmanager
def ends_on_sigterm(end: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM call `end` while the block runs in the main thread, unless the program handles it itself."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def handle(_number: int, _frame: Any) -> None:
        # In a thread, and not by `threading`: the main thread may hold any lock where it was interrupted.
        _thread.start_new_thread(end, ())

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
