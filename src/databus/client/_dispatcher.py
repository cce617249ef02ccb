"""The dispatcher: which callback comes next. A pure state machine: no sockets, no clocks, no threads.

    dispatcher.feed(window, is_due=...)
    while (call := dispatcher.next()) is not None:
        ... perform it ...
        dispatcher.done(call, result)    or    dispatcher.failed(call, error)

It keeps, for each physical source, what was last saved and what was reached since. Whatever fails, the source goes back
to what was last saved (`ROLLBACK`) and is read again from there (`REPLAY`); a checkpoint is saved (`SAVE`) only after
every callback of the windows before it has returned, and `on_checkpoint` too.

With `parks`, what fails more than `retries_max` times is not given up at once: it comes again from what was saved, and
`comes_apart` says of each window up to there that its changes are to be given to `feed_lone` one by one. `outcome` says
what became of the last one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Any, Final, NamedTuple

from databus.client._consumer import AnyWindow, Consumer, Result
from databus.client._lone_window import LoneWindow
from databus.client._window import Changes
from databus.core import (
    Checkpoint,
    DatabusError,
    FatalError,
    GroupRefused,
    LimitExceeded,
    Pair,
    SourceCheckpoint,
    TransientError,
)


class CallKind(IntEnum):
    """What is to be done: a callback of the consumer, or one of the client's own acts. An int: it is hashed often."""

    START_CONSUMPTION = auto()
    START_BOOTSTRAP = auto()
    PARK = auto()  # the client's: make dead letters durable, before anything behind them is done
    START_WINDOW = auto()
    CONTROL = auto()
    START_SOURCE = auto()
    DATA_EVENTS = auto()
    END_SOURCE = auto()
    END_WINDOW = auto()
    STOP_BOOTSTRAP = auto()
    CHECKPOINT = auto()
    SAVE = auto()  # the client's: keep the checkpoint
    ROLLBACK = auto()
    REPLAY = auto()  # the client's: read this source again from `argument`, after a back-off of `attempt`
    ERROR = auto()
    LEAVE = auto()  # the client's: stop reading this source
    STOP_CONSUMPTION = auto()


_INSIDE: Final = frozenset(
    {CallKind.START_WINDOW, CallKind.CONTROL, CallKind.START_SOURCE, CallKind.DATA_EVENTS, CallKind.END_SOURCE}
)
OF_A_WINDOW: Final = _INSIDE | {CallKind.PARK, CallKind.END_WINDOW}
_OF_ROWS: Final = OF_A_WINDOW - {CallKind.PARK, CallKind.CONTROL} | {CallKind.CHECKPOINT}
_SUCCESS: Final = Result.SUCCESS


class Call(NamedTuple):
    """One thing to do."""

    kind: CallKind
    physical: str = ""
    argument: Any = None
    """What the callback is given, the checkpoint to save, or the position to go back to."""
    window: AnyWindow | None = None
    attempt: int = 0


def callbacks_of(consumer: Consumer) -> dict[CallKind, Callable[[Call], Result | None]]:
    """How the calls that are the consumer's are made."""
    return {
        CallKind.START_CONSUMPTION: lambda _: consumer.on_start_consumption(),
        CallKind.START_BOOTSTRAP: lambda call: consumer.on_start_bootstrap(call.argument),
        CallKind.STOP_BOOTSTRAP: lambda call: consumer.on_stop_bootstrap(call.argument),
        CallKind.START_WINDOW: lambda call: consumer.on_start_window(call.argument),
        CallKind.CONTROL: lambda call: consumer.on_control(call.argument),
        CallKind.START_SOURCE: lambda call: consumer.on_start_source(call.argument.source, call.argument.table),
        CallKind.DATA_EVENTS: lambda call: consumer.on_data_events(call.argument),
        CallKind.END_SOURCE: lambda call: consumer.on_end_source(call.argument.source, call.argument.table),
        CallKind.END_WINDOW: lambda call: consumer.on_end_window(call.argument),
        CallKind.CHECKPOINT: lambda call: consumer.on_checkpoint(call.argument),
        CallKind.ROLLBACK: lambda call: consumer.on_rollback(call.physical, call.argument),
        CallKind.ERROR: lambda call: consumer.on_error(call.argument, call.physical or None),
        CallKind.STOP_CONSUMPTION: lambda _: consumer.on_stop_consumption(),
    }


class ConsumerFailed(FatalError):
    """A consumer failed again and again at the same place, or said that it cannot go on."""


class Lone(Enum):
    """What became of a change that was delivered by itself. PUT_OFF: `on_checkpoint` does not say that it is safe."""

    NONE = auto()
    TAKEN = auto()
    PUT_OFF = auto()


def is_of_target(error: BaseException) -> bool:
    """Whether a callback's error says that its target does not answer, or is another's: no row is to blame."""
    return isinstance(error, TransientError | GroupRefused | ConnectionError | TimeoutError)


@dataclass(slots=True)
class _SourceProgress:
    """One physical source."""

    saved: SourceCheckpoint
    reached: AnyWindow | None = None
    """The last window that is done and not saved."""
    is_open: bool = False
    is_due: bool = False
    is_spoilt: bool = False  # a callback failed for good: take back what is not saved
    worst: Result = Result.SUCCESS
    failures: int = 0
    failed_at: Pair | None = None
    apart_until: Pair | None = None
    """Up to where windows come apart."""
    is_inside_apart: bool = False
    """Parts of a transaction did, and the others will."""
    is_start_unsaved: bool = False
    looks_back: bool = False  # its windows come from a bootstrap service
    error: BaseException | None = field(default=None)


class Dispatcher:
    """See the module's first lines. retries_max: how often one place is replayed before its source is given up."""

    def __init__(self, checkpoint: Checkpoint, *, retries_max: int, parks: bool = False) -> None:
        self._checkpoint = checkpoint
        self._retries_max = retries_max
        self._parks = parks
        self.outcome: Lone | BaseException = Lone.NONE
        self._sources: dict[str, _SourceProgress] = {}
        self._pending: deque[Call] = deque()
        self._is_started = False
        self._is_ending = False
        self.is_stopping = False
        self.error: BaseException | None = None

    # what happens outside

    def start(self) -> None:
        """Begin."""
        self._pending.append(Call(CallKind.START_CONSUMPTION))

    def started(self, physical: str, position: SourceCheckpoint) -> None:
        """A source is read from `position` on; saved at once if nothing was, so that a crash does not move `latest`."""
        if physical in self._sources:
            return
        progress = self._sources[physical] = _SourceProgress(position)
        if self._checkpoint.sources.get(physical) != position:
            progress.is_start_unsaved = True
            self._pending.append(Call(CallKind.SAVE, physical, position))

    def feed(self, window: AnyWindow, *, is_due: bool, parks: bool = False) -> None:
        """The next window of its physical source. is_due: a checkpoint should be saved at its end. parks: dead letters
        are to be made durable before.
        """
        progress = self._sources[window.physical]
        if progress.error is not None:
            return
        progress.is_due = is_due
        if parks:
            self._pending.append(Call(CallKind.PARK, window.physical, None, window))
        if window.look_back is not None and not progress.looks_back:
            progress.looks_back = True
            self._pending.append(Call(CallKind.START_BOOTSTRAP, window.physical, window.physical, window))
        if not (window.is_empty and not progress.is_open):
            self._pending.extend(_calls_of(window, is_open=progress.is_open))
        elif not parks:
            self._pass_over(window, progress)
        if progress.looks_back and window.is_consistent and window.look_back != "every":
            progress.looks_back = False
            self._pending.append(Call(CallKind.STOP_BOOTSTRAP, window.physical, window.physical, window))

    def comes_apart(self, window: AnyWindow) -> bool:
        """Whether the changes of a window are to be delivered one by one: it has failed, or is of a transaction that
        has.
        """
        progress = self._sources[window.physical]
        until = progress.apart_until
        if until is None or not (progress.is_inside_apart or window.position.pair <= until):
            progress.apart_until = None
            return False
        progress.is_inside_apart = window.continues
        return True

    def feed_lone(self, window: LoneWindow) -> None:
        """A change by itself. It moves no place, so nothing is saved."""
        self.outcome = Lone.NONE
        if self._sources[window.physical].error is None:
            self._pending.extend(_calls_of(window, is_open=False))
            self._pending.append(Call(CallKind.CHECKPOINT, window.physical, window.position, window))

    def due(self, physical: str) -> None:
        """A checkpoint is due, and no window comes to end with it."""
        progress = self._sources.get(physical)
        if progress is not None:
            progress.is_due = True
            self._checkpoint_if_due(physical, progress)
            if progress.is_start_unsaved and progress.reached is None and progress.error is None:
                self._pending.append(Call(CallKind.SAVE, physical, progress.saved))

    def interrupted(self, physical: str, *, is_begun: bool = False) -> None:
        """The rest of an open window does not come; it will come anew from its beginning. is_begun: so it is with one
        that is not open yet.
        """
        progress = self._sources.get(physical)
        if progress is not None and (progress.is_open or is_begun):
            self._roll_back(physical, progress, attempt=0)

    def lost(self, physical: str, error: BaseException) -> None:
        """The source cannot be read any more, by an error that somebody must decide about."""
        progress = self._sources.setdefault(physical, _SourceProgress(self._saved_of(physical)))
        if progress.error is None:
            self._drop_pending(physical)
            if not progress.is_open:
                self._push_checkpoint(physical, progress)
            self._give_up(physical, progress, error)

    def ended(self, physical: str) -> None:
        """The source has been read to the end that was asked for."""
        self.due(physical)

    def stop(self) -> None:
        """End: save what was reached, take back what was begun."""
        self._pending.clear()
        self._is_ending = self.is_stopping = True
        for physical, progress in self._sources.items():
            if progress.is_open or progress.is_spoilt:
                progress.is_open, progress.is_spoilt, progress.reached = False, False, None
                self._pending.append(Call(CallKind.ROLLBACK, physical, progress.saved))
            elif progress.error is None:
                self.due(physical)
        if self._is_started:
            self._pending.append(Call(CallKind.STOP_CONSUMPTION))

    # what the caller asks for and tells

    def is_open(self, physical: str) -> bool:
        """Whether a window of this source has begun and not ended."""
        return physical in self._sources and self._sources[physical].is_open

    def is_unsaved(self, physical: str) -> bool:
        """Whether something was reached that is not saved, the start included."""
        progress = self._sources.get(physical)
        return progress is not None and (progress.reached is not None or progress.is_start_unsaved)

    def is_start_saved(self, physical: str) -> bool:
        """Whether a crash would find where this source began; before that no window of it may be given to anybody."""
        return physical in self._sources and not self._sources[physical].is_start_unsaved

    @property
    def checkpoint(self) -> Checkpoint:
        """What was last saved."""
        return self._checkpoint

    def place(self, physical: str) -> SourceCheckpoint:
        """Up to where everything is done, saved or not."""
        progress = self._sources[physical]
        return progress.saved if progress.reached is None else progress.reached.position

    def next(self) -> Call | None:
        """What to do now; None if nothing."""
        if not self._pending:
            return None
        call = self._pending.popleft()
        if call.kind is CallKind.START_WINDOW:
            self._sources[call.physical].is_open = True
        elif call.kind in (CallKind.CHECKPOINT, CallKind.SAVE):  # of the other sources, what is saved by now
            return call._replace(argument=self._checkpoint.advanced(call.physical, call.argument))
        return call

    def done(self, call: Call, result: Result = Result.SUCCESS) -> None:
        """The call returned."""
        if result is _SUCCESS and call.kind in _INSIDE and self._pending:
            return  # nine calls of ten
        if call.kind is CallKind.ERROR and result >= Result.ERROR:
            self._stop_with(call.argument)
        elif result >= Result.ERROR_FATAL:
            self._end_fatally(call)
        elif result >= Result.ERROR:
            self.failed(call, ConsumerFailed(f"{_name_of(call)} returned ERROR"))
        else:
            self._note_done(call, result)

    def _note_done(self, call: Call, result: Result) -> None:
        if call.kind is CallKind.PARK:
            progress = self._sources[call.physical]
            if call.window is not None and call.window.is_empty and not progress.is_open:
                self._pass_over(call.window, progress)
        elif call.kind in OF_A_WINDOW:
            self._note_window(call, result)
        elif call.kind is CallKind.CHECKPOINT and isinstance(call.window, LoneWindow):
            self.outcome = Lone.TAKEN if result < Result.SKIP_CHECKPOINT else Lone.PUT_OFF
        elif call.kind is CallKind.CHECKPOINT:
            self._note_past(call.window, self._sources[call.physical])
            if result < Result.SKIP_CHECKPOINT:
                position = call.argument.sources[call.physical]
                self._pending.appendleft(Call(CallKind.SAVE, call.physical, position, call.window))
        elif call.kind is CallKind.SAVE:
            self._note_saved(call)
        elif call.kind is CallKind.START_CONSUMPTION:
            self._is_started = True

    def failed(self, call: Call, error: BaseException) -> None:
        """The call raised."""
        if call.kind in (CallKind.START_CONSUMPTION, CallKind.STOP_CONSUMPTION, CallKind.ERROR):
            self._stop_with(error)
            return
        progress = self._sources[call.physical]
        if call.kind is CallKind.SAVE:
            self._note_unsaved(call.physical, progress, error)
        elif call.kind is CallKind.ROLLBACK or (call.kind is CallKind.PARK and isinstance(error, LimitExceeded)):
            self._drop_pending(call.physical)
            self._give_up(call.physical, progress, error)
        elif isinstance(call.window, LoneWindow) and self._is_its_own(call, call.window, error):
            self._drop_pending(call.physical)
            progress.is_open, progress.worst = False, Result.SUCCESS
            self.outcome = error
            self._pending.append(Call(CallKind.ROLLBACK, call.physical, call.window.before))
        else:
            self._note_failure(call, progress, error)

    # states

    def _is_its_own(self, call: Call, window: LoneWindow, error: BaseException) -> bool:
        """Whether a change that came by itself is to blame for its failure. A letter stays one, whoever is to blame."""
        return not self._is_ending and (window.is_letter or (call.kind in _OF_ROWS and not is_of_target(error)))

    def _pass_over(self, window: AnyWindow, progress: _SourceProgress) -> None:
        """Nothing is in a window but its place."""
        if window.continues:
            return
        progress.reached = window
        progress.is_due |= progress.failed_at is not None
        self._checkpoint_if_due(window.physical, progress)

    def _note_past(self, window: AnyWindow | None, progress: _SourceProgress) -> None:
        """What failed is done. Not before `on_checkpoint` says so: it may be where what was kept back is written."""
        if progress.failed_at is not None and window is not None and window.position.pair >= progress.failed_at:
            progress.failed_at, progress.failures = None, 0

    def _note_window(self, call: Call, result: Result) -> None:
        progress = self._sources[call.physical]
        progress.worst = max(progress.worst, result)
        if call.kind is not CallKind.END_WINDOW:
            if not self._pending and call.window is not None and call.window.continues:
                self._end_part(call.window, progress)
            return
        progress.is_open = False
        worst, progress.worst = progress.worst, Result.SUCCESS
        if isinstance(call.window, LoneWindow):
            return
        progress.reached = call.window
        # what failed is saved as soon as it is done, so that it does not come again for what fails behind it
        progress.is_due |= worst is Result.CHECKPOINT or progress.failed_at is not None
        if worst < Result.SKIP_CHECKPOINT:
            self._checkpoint_if_due(call.physical, progress)
        else:
            self._note_past(call.window, progress)

    def _end_part(self, window: AnyWindow, progress: _SourceProgress) -> None:
        if progress.worst is Result.CHECKPOINT:
            progress.worst = Result.SUCCESS
            self._pending.append(Call(CallKind.CHECKPOINT, window.physical, window.position, window))

    def _checkpoint_if_due(self, physical: str, progress: _SourceProgress) -> None:
        if progress.is_due and not progress.is_open and progress.reached is not None and progress.error is None:
            progress.is_due = False
            self._push_checkpoint(physical, progress)

    def _push_checkpoint(self, physical: str, progress: _SourceProgress) -> None:
        if progress.reached is not None:
            self._pending.append(Call(CallKind.CHECKPOINT, physical, progress.reached.position, progress.reached))

    def _note_saved(self, call: Call) -> None:
        progress = self._sources[call.physical]
        position = call.argument.sources[call.physical]
        self._checkpoint = self._checkpoint.advanced(call.physical, position)
        progress.saved, progress.reached, progress.is_start_unsaved = position, None, False

    def _note_unsaved(self, physical: str, progress: _SourceProgress, error: BaseException) -> None:
        """What was reached stays unsaved and is tried again when it is due, for as long as it takes: waiting may be
        enough, unless the store says otherwise.
        """
        if isinstance(error, DatabusError) and not isinstance(error, TransientError):
            self._give_up(physical, progress, error)
        elif self._is_ending:
            self.error = self.error or error

    def _note_failure(self, call: Call, progress: _SourceProgress, error: BaseException) -> None:
        if self._is_ending:
            self.error = self.error or error
        progress.failures += 1
        if call.window is not None:
            failed_at = call.window.position.pair
            progress.failed_at = failed_at if progress.failed_at is None else max(failed_at, progress.failed_at)
        if progress.failures > self._retries_max and self._goes_apart(call, progress, error):
            progress.apart_until, progress.is_inside_apart, progress.failures = progress.failed_at, False, 0
            self._roll_back(call.physical, progress, 0)
        elif progress.failures > self._retries_max:
            failure = (
                f"{call.physical}: {_name_of(call)} failed {progress.failures} times, retries_max={self._retries_max}"
            )
            at = "" if call.window is None else f", last at SCN {call.window.scn}"
            failed = ConsumerFailed(f"{failure}{at}: {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._drop_pending(call.physical)
            progress.is_open, progress.reached = True, None
            self._give_up(call.physical, progress, failed)
        else:
            self._roll_back(call.physical, progress, progress.failures)

    def _goes_apart(self, call: Call, progress: _SourceProgress, error: BaseException) -> bool:
        """Whether it is worth looking which rows failed: not where no row is to blame, and not a second time."""
        is_new = progress.apart_until is None and not self._is_ending
        return self._parks and is_new and call.kind in _OF_ROWS and not is_of_target(error)

    def _roll_back(self, physical: str, progress: _SourceProgress, attempt: int) -> None:
        self._drop_pending(physical)
        progress.is_open, progress.reached, progress.worst = False, None, Result.SUCCESS
        progress.is_inside_apart = progress.looks_back = False
        if self._is_ending:
            self._pending.appendleft(Call(CallKind.ROLLBACK, physical, progress.saved))
            return
        self._pending.append(Call(CallKind.ROLLBACK, physical, progress.saved))
        self._pending.append(Call(CallKind.REPLAY, physical, progress.saved, attempt=attempt))

    def _give_up(self, physical: str, progress: _SourceProgress, error: BaseException) -> None:
        progress.error = error
        if progress.is_open:
            self._pending.append(Call(CallKind.ROLLBACK, physical, progress.saved))
        progress.is_open = False
        self._pending.append(Call(CallKind.LEAVE, physical))
        self._pending.append(Call(CallKind.ERROR, physical, error))

    def _end_fatally(self, call: Call) -> None:
        if call.physical:
            self._sources[call.physical].is_spoilt = True
        self._stop_with(ConsumerFailed(f"{_name_of(call)} returned ERROR_FATAL"))

    def _stop_with(self, error: BaseException) -> None:
        self.error = self.error or error
        self.is_stopping = True
        self._pending.clear()

    def _drop_pending(self, physical: str) -> None:
        self._pending = deque(call for call in self._pending if call.physical != physical)

    def _saved_of(self, physical: str) -> SourceCheckpoint:
        return self._checkpoint.sources.get(physical, SourceCheckpoint())


def _calls_of(window: AnyWindow, *, is_open: bool) -> Iterator[Call]:
    physical = window.physical
    if not is_open:
        yield Call(CallKind.START_WINDOW, physical, window, window)
    if window.has_control:
        yield Call(CallKind.CONTROL, physical, window.control, window)
    last: Changes | None = None
    for changes in window.changes():
        if last is None or last.source != changes.source or last.table is not changes.table:
            if last is not None:
                yield Call(CallKind.END_SOURCE, physical, last, window)
            yield Call(CallKind.START_SOURCE, physical, changes, window)
        yield Call(CallKind.DATA_EVENTS, physical, changes, window)
        last = changes
    if last is not None:
        yield Call(CallKind.END_SOURCE, physical, last, window)
    if not window.continues:
        yield Call(CallKind.END_WINDOW, physical, window, window)


def _name_of(call: Call) -> str:
    return {CallKind.SAVE: "saving the checkpoint", CallKind.PARK: "keeping dead letters"}.get(
        call.kind, f"on_{call.kind.name.lower()}"
    )
