"""What the pipeline's own relay meets at its sources, told beside what the queries do: without it, a wrong password
looks like a quiet database.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from databus.core import FatalError, InputError, ServiceUnavailable, TransientError
from databus.operate import logger_of

_LOOK_S: Final = 0.5
_WELL: Final = frozenset({"INITIALIZING", "RUNNING", "SHUTDOWN"})
_IS_ASKED_FOR: Final = frozenset({*_WELL, "PAUSED"})
"""Nothing has to be done about a source in these."""
_CODES: Final = {"SUSPENDED_ON_ERROR": FatalError.exit_code, "ERROR_RETRY": ServiceUnavailable.exit_code}


States = Sequence[Mapping[str, Any]]


class SourceWatch:
    """Looks at the sources' states twice a second, and when it is asked for an exit code. states: asks for them.

    tell: is told each change for the worse or back, once, before an exit code that comes of it is given; by the thread
    that looks. show: is given all states twice a second, and the reason why there are none where the relay does not
    answer; by our thread.
    """

    def __init__(
        self,
        states: Callable[[], States],
        tell: Callable[[Mapping[str, Any]], None],
        show: Callable[[States, str], None] | None = None,
    ) -> None:
        self._states = states
        self._tell = tell
        self._show = show
        self._told: dict[str, tuple[str, str]] = {}
        self._looking = threading.Lock()
        self._why_none = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source-watch", daemon=True)
        self._logger = logger_of("databus.pipeline")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; callable twice."""
        self._stopping.set()

    def exit_code(self) -> int:
        """The worst of what keeps sources from being captured now, as an exit code; 0 where nothing does."""
        return _worst(self._looked())

    def exit_code_without_logs(self) -> int:
        """The same where nothing was ever captured, so that there is nothing to read; else 0."""
        states = self._looked()
        return 0 if any(each["SCN"] is not None for each in states) else _worst(states)

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            states = self._looked()
            if self._show is not None:
                self._show(states, self._why_none)

    def _looked(self) -> States:
        """The states, of which all that is new has been told."""
        with self._looking:
            states = self._asked()
            for state in states:
                self._look(state)
            return states

    def _asked(self) -> States:
        self._why_none = ""
        try:
            return self._states()
        except (TransientError, InputError) as error:  # it is being restarted, which is told elsewhere, or refuses us
            self._why_none = str(error)
            return []

    def _look(self, state: Mapping[str, Any]) -> None:
        name, now = str(state["name"]), (str(state["state"]), str(state["message"] or ""))
        before = self._told.get(name)
        if now == before or (now[0] in _WELL and before is None) or now[0] == "INITIALIZING":
            return
        if now[0] in _WELL:
            del self._told[name]
        else:
            self._told[name] = now
        told = {"source": name, "status": state["status"], "message": now[1], "is_well": now[0] in _IS_ASKED_FOR}
        log = self._logger.info if now[0] in _WELL else self._logger.warning
        log("source", **told)
        self._tell(told)


def _worst(states: States) -> int:
    return max((_CODES.get(str(each["state"]), 0) for each in states), default=0)
