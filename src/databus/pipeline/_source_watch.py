"""What the pipeline's own relay meets at its sources, told beside what the queries do: without it, a wrong password
looks like a quiet database.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from databus.core import Stop, TryAgain, Unavailable

_LOOK_S: Final = 0.5
_WELL: Final = frozenset({"INITIALIZING", "RUNNING", "SHUTDOWN"})
_CODES: Final = {"SUSPENDED_ON_ERROR": Stop.exit_code, "ERROR_RETRY": Unavailable.exit_code}


class SourceWatch:
    """Looks at the sources' states and tells each change once. states: asks for them. tell: is told, by our thread."""

    def __init__(
        self, states: Callable[[], list[Mapping[str, Any]]], tell: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._states = states
        self._tell = tell
        self._told: dict[str, tuple[str, str]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source-watch", daemon=True)
        self._logger = structlog.get_logger("databus.pipeline")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; callable twice."""
        self._stopping.set()

    def exit_code(self) -> int:
        """The worst of what keeps sources from being captured now, as an exit code; 0 where nothing does."""
        return _worst(self._asked())

    def exit_code_without_logs(self) -> int:
        """The same where nothing was ever captured, so that there is nothing to read; else 0."""
        states = self._asked()
        return 0 if any(each["SCN"] is not None for each in states) else _worst(states)

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            for state in self._asked():
                self._look(state)

    def _asked(self) -> list[Mapping[str, Any]]:
        try:
            return self._states()
        except TryAgain:  # it is being restarted, which is told elsewhere
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
        told = {"source": name, "status": state["status"], "message": now[1]}
        log = self._logger.info if now[0] in _WELL else self._logger.warning
        log("source", **told)
        self._tell(told)


def _worst(states: Sequence[Mapping[str, Any]]) -> int:
    return max((_CODES.get(str(each["state"]), 0) for each in states), default=0)
