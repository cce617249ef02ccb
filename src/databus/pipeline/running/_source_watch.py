"""Watches the states of the relay's sources. Without it, a wrong password looks like a quiet database.

The relay may be the pipeline's own or a service elsewhere.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from databus.core import Clock, FatalError, InputError, ServiceUnavailable, SystemClock, TransientError
from databus.operate import logger_of
from databus.pipeline.telling import Reminders

_LOOK_S: Final = 0.5
_WELL: Final = frozenset({"INITIALIZING", "RUNNING", "SHUTDOWN"})
_NOTHING_TO_DO: Final = frozenset({*_WELL, "PAUSED"})
"""States in which an operator has nothing to do."""
_CODES: Final = {"SUSPENDED_ON_ERROR": FatalError.exit_code, "ERROR_RETRY": ServiceUnavailable.exit_code}


States = Sequence[Mapping[str, Any]]


class SourceWatch:
    """Looks at the sources' states twice a second, and whenever it is asked for an exit code.

    states: asks the relay. report: called once with each change for the worse or back, by the thread that looks, before
    an exit code says the same. shows: called with all states at each look, and with the error if the relay does not
    answer.
    """

    def __init__(
        self,
        states: Callable[[], States],
        report: Callable[[Mapping[str, Any]], None],
        shows: Sequence[Callable[[States, str], None]] = (),
        clock: Clock | None = None,
    ) -> None:
        self._states = states
        self._report = report
        self._shows = shows
        self._clock = clock or SystemClock()
        self._reported: dict[str, tuple[str, str]] = {}  # by source in trouble: state and message
        self._looking = threading.Lock()
        self._showing = threading.Lock()
        self._reminders = Reminders(self._clock)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source-watch", daemon=True)
        self._logger = logger_of("databus.pipeline")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a look that is under way shows nothing any more. Callable twice."""
        with self._showing:
            self._stopping.set()

    def uncaptured(self) -> States:
        """The sources that cannot be captured now, the worst last."""
        return _uncaptured(self._looked())

    def uncaptured_without_logs(self) -> States:
        """The same if nothing was ever captured of any source, so that there is nothing to read; else none."""
        states = self._looked()
        return () if any(state["SCN"] is not None for state in states) else _uncaptured(states)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            self._looked()
            is_over = self._clock.wait(self._stopping, _LOOK_S)

    def _looked(self) -> States:
        """The states; changes are reported before."""
        with self._looking:
            states, why_none = self._asked()
            for state in states:
                self._look(state)
            with self._showing:
                if not self._stopping.is_set():  # a relay that the run stops is not in trouble
                    self._look_at_relay(why_none)
                    for show in self._shows:
                        show(states, why_none)
            return states

    def _asked(self) -> tuple[States, str]:
        try:
            return self._states(), ""
        except (TransientError, InputError) as error:  # it is away, restarting, or refuses the token
            return [], str(error)

    def _look_at_relay(self, why_none: str) -> None:
        if why_none and self._reminders.is_due("", why_none):
            self._logger.warning("the relay does not answer", message=why_none)
        elif not why_none and self._reminders.end(""):
            self._logger.info("the relay answers again")

    def _look(self, state: Mapping[str, Any]) -> None:
        name, now = str(state["name"]), (str(state["state"]), str(state["message"] or ""))
        before = self._reported.get(name)
        event = {"source": name, "status": state["status"], "message": now[1], "is_well": is_well(state)}
        if not event["is_well"] and self._reminders.is_due(name, str(now)):
            self._logger.warning("source", **event)
        if now == before or (now[0] in _WELL and before is None) or now[0] == "INITIALIZING":
            return
        if now[0] in _WELL:
            del self._reported[name]
        else:
            self._reported[name] = now
        if event["is_well"]:
            self._reminders.end(name)
            self._logger.info("source", **event)
        self._report(event)


def is_well(state: Mapping[str, Any]) -> bool:
    """Whether an operator has nothing to do about a source, by the relay's state of it."""
    return state["state"] in _NOTHING_TO_DO


def exit_code_of(states: States) -> int:
    """The exit code of the worst error of these sources; 0 if they are captured."""
    return max((_CODES.get(str(state["state"]), 0) for state in states), default=0)


def _uncaptured(states: States) -> States:
    return sorted((state for state in states if exit_code_of([state])), key=lambda state: exit_code_of([state]))
