"""Being a member of a group: a thread that calls the coordinator as long as the member lives. The shell of `Member`.

Whoever delivers asks `deliverable` before each window, and reports what it has opened, done and closed. The thread
never waits for a consumer: a body that takes long keeps its partitions.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from databus.client._member import GroupCall, Hold, Member
from databus.core import (
    Backoff,
    Barrier,
    Checkpoint,
    Clock,
    InputError,
    ServiceUnavailable,
    SystemClock,
    TransientError,
)
from databus.link import CoordinatorClient, GroupAnswer, RelayClient
from databus.operate import logger_of

_ANSWER_MS_MAX: Final = 5_000
_LEAVE_MS_MAX: Final = 5_000
_RETRY_FIRST_MS: Final = 50
_logger: Final = logger_of("databus.client")


class Membership:
    """One member of a group, and the thread that speaks for it. bell: rung when something may be otherwise than before.

    error: what ended it, if something did: `GroupDiffers`, `GroupStateLost`...; nothing is deliverable any more.
    """

    def __init__(
        self,
        relay: RelayClient,
        name: str,
        prepare: Callable[[], Mapping[str, Any]],
        bell: threading.Condition,
        clock: Clock | None = None,
    ) -> None:
        """prepare: what the group agrees on, which its thread asks for before the first call; it may ask the relay."""
        self.name = name
        self.error: BaseException | None = None
        self._pid = os.getpid()
        self._bell = bell
        self._clock = clock or SystemClock()
        self._coordinator = CoordinatorClient(relay)
        self._prepare = prepare
        self._member: Member = Member({})
        self._progress: dict[Hold, Callable[[], Checkpoint]] = {}
        self._is_silent = False
        self._is_waiting = False  # a call, for its answer
        self._is_over = False
        self._has_news = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"databus-group-{name}")

    def start(self) -> None:
        """Join the group. Callable twice."""
        if self._thread.ident is None:
            self._thread.start()

    # what delivers asks and reports; any thread

    def deliverable(self) -> dict[int, Hold]:
        """What may be delivered now."""
        if os.getpid() != self._pid:
            raise InputError(f"{self.name}: this was made before the process was forked; make another in the child")
        with self._bell:
            return {} if self.error else self._member.deliverable(self._clock.boot_ns())

    def may_deliver(self, hold: Hold) -> bool:
        """Whether this may be delivered now."""
        return self.deliverable().get(hold.partition) is hold

    def is_valid(self, hold: Hold) -> bool:
        """Whether what has begun of it may go on: also where it is to be given back."""
        member = self._member
        return member.is_held(hold) and not self.error and member.is_valid(self._clock.boot_ns())

    def lease_left_s(self) -> float | None:
        """For how long what is deliverable stays so if no answer comes; None where nothing is."""
        until = self._member.lease_until_ns
        return None if until is None else max(until - self._clock.boot_ns(), 0) / 1e9

    def take_news(self) -> bool:
        """Whether something came since this was asked last."""
        with self._bell:
            news, self._has_news = self._has_news, False
            return news

    @property
    def has_news(self) -> bool:
        """Whether `take_news` has something to say."""
        return self._has_news

    def opened(self, hold: Hold, begin: Checkpoint, progress: Callable[[], Checkpoint] | None = None) -> None:
        """See `Member.opened`. progress: asked before each call for how far the consumer has come."""
        with self._bell:
            self._member.opened(hold, begin)
            if progress is not None:
                self._progress[hold] = progress

    def progressed(self, hold: Hold, checkpoint: Checkpoint) -> None:
        """See `Member.progressed`."""
        with self._bell:
            self._member.progressed(hold, checkpoint)
            self._hurry()

    def closed(self, hold: Hold, checkpoint: Checkpoint) -> None:
        """See `Member.closed`. checkpoint: how far the consumer has come."""
        with self._bell:
            self._progress.pop(hold, None)
            self._member.progressed(hold, checkpoint)
            self._member.closed(hold)
            self._hurry()

    def dropped(self, hold: Hold) -> None:
        """See `Member.dropped`."""
        with self._bell:
            self._member.dropped(hold)
            self._hurry()

    def comes_to(self, hold: Hold, barrier: Barrier) -> None:
        """The next window deals keys anew, so that its source waits behind it for the other partitions."""
        with self._bell:
            hold.barriers[barrier.physical] = barrier

    def leave(self, wait_ms: int = _LEAVE_MS_MAX) -> None:
        """Save, give everything back, and end; what is open is left to the end of the lease. Callable twice."""
        deadline = time.monotonic() + wait_ms / 1e3
        with self._bell:
            self._member.leave()
            self._hurry()
            self._bell.notify_all()
        self.join(max(deadline - time.monotonic(), 0.0))
        self.cancel()

    def join(self, seconds_max: float) -> None:
        """Wait until it has ended."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds_max)

    def cancel(self) -> None:
        """Call no more, and say nothing. Callable twice."""
        with self._bell:
            self._is_over = True
            self._bell.notify_all()
        self._coordinator.close()

    def _hurry(self) -> None:
        """Have what is urgent said now, also if a call waits for its answer: the newer one ends it."""
        if self._member.is_urgent:
            self._bell.notify_all()
            if self._is_waiting:
                self._coordinator.interrupt()

    # the thread

    def _run(self) -> None:
        try:
            self._make_calls()
        except BaseException as error:  # noqa: BLE001 - it is raised where windows are asked for, or they would wait for ever
            self._end_with(error)

    def _make_calls(self) -> None:
        backoff = Backoff(_RETRY_FIRST_MS, _ANSWER_MS_MAX)
        while (terms := self._terms(backoff)) is None:
            pass
        self._member.terms = terms
        pause_s = 0.0
        while True:
            with self._bell:
                self._wait(pause_s)
                if self._is_over or self._member.has_left or self.error is not None:
                    return
                for hold, progress in self._progress.items():
                    self._member.progressed(hold, progress())
                call = self._member.next_call(self._clock.boot_ns(), waits=True)
                self._is_waiting = "wait_ms" in call.body
                limit_ms = self._limit_ms()
            pause_s = 0.0
            try:
                answer = self._coordinator.call(self.name, call.body, limit_ms=limit_ms)
            except TransientError as error:
                with self._bell:
                    was_interrupted = self._is_waiting and self._member.is_urgent
                    self._is_waiting = False
                    self._member.unanswered(call)
                if not was_interrupted:
                    pause_s = min(backoff.next_ms(), self._member.period_ms) / 1e3
                    self._note_silence(error)
            else:
                backoff.reset()
                self._note_silence(None)
                self._take(call, answer)

    def _note_silence(self, error: TransientError | None) -> None:
        """Say once that the coordinator does not answer, and once that it does again."""
        if error is not None and not self._is_silent:
            _logger.warning(
                "the group's coordinator does not answer; it is asked again", group=self.name, error=str(error)
            )
        elif error is None and self._is_silent:
            _logger.info("the group's coordinator answers again", group=self.name)
        self._is_silent = error is not None

    def _terms(self, backoff: Backoff) -> Mapping[str, Any] | None:
        """What the group agrees on; None where the relay does not answer."""
        with self._bell:
            if self._is_over or self._member.is_leaving:
                raise ServiceUnavailable("it was closed before the relay had answered")
        try:
            return self._prepare()
        except TransientError as error:
            pause_s = backoff.next_ms() / 1e3
            _logger.warning(
                "waiting for the relay", group=self.name, error=str(error), again_in_ms=round(pause_s * 1e3)
            )
            with self._bell:
                self._bell.wait(pause_s)
            return None

    def _wait(self, pause_s: float) -> None:
        """Until the next call is due. pause_s: no call before, also if one is urgent: the last one failed."""
        not_before = time.monotonic() + pause_s
        while not self._is_over and self.error is None:
            now_ns = self._clock.boot_ns()
            wait_s = max((self._member.due_ns(now_ns) - now_ns) / 1e9, not_before - time.monotonic())
            if wait_s <= 0:
                return
            self._bell.wait(wait_s)

    def _limit_ms(self) -> int:
        """How long an answer may take: a call that is lost must be followed by others within the lease."""
        lease_ms = self._member.lease_ms
        return _ANSWER_MS_MAX if lease_ms is None else min(_ANSWER_MS_MAX, max(lease_ms // 4, 200))

    def _take(self, call: GroupCall, answer: GroupAnswer) -> None:
        with self._bell:
            self._is_waiting = False
            if not answer.error:
                self._member.answered(call, answer.content)
            elif answer.error == "Fenced":
                _logger.warning(
                    "partitions are held by another member", group=self.name, fenced=answer.content["fenced"]
                )
                self._member.fenced(call, answer.content["fenced"])
            elif answer.error == "StaleCall":
                self._member.overtaken(call, int(answer.content.get("last", 0)))
            else:
                self._end_with(answer.to_error())
            self._has_news = True
            self._bell.notify_all()

    def _end_with(self, error: BaseException) -> None:
        with self._bell:
            self.error = error
            self._has_news = True
            self._bell.notify_all()
