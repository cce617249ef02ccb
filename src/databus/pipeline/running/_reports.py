"""Reports to the relay how far each output is, so that the relay shows pipelines beside its consumers.

A thread of its own reads the ledgers once a second, and reports what is new. No batch waits for it. If the relay does
not answer, or has no groups, it does not show them; the pipeline is not affected.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from databus.core import Checkpoint, ConfigError, DatabusError, SourceCheckpoint, TooManyRequests, TransientError
from databus.link import CoordinatorClient, RelayClient
from databus.operate import logger_of
from databus.pipeline.engine import OutputHandle, RunSettings
from databus.places import Position, patterns_in

_EVERY_S: Final = 1.0
_AGAIN_S: Final = 60.0
"""When an unchanged report is repeated, since the relay forgets unused names, and a refused one is tried again."""
_ANSWER_MS_MAX: Final = 1_000
_END_S_MAX: Final = 2.0
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class _LastReport:
    """The last report of an output."""

    report: Mapping[str, Any]
    at_s: float
    """When it was sent, by the monotonic clock."""
    is_refused: bool

    def is_enough(self, report: Mapping[str, Any], now_s: float) -> bool:
        """Whether no report is due now."""
        return now_s - self.at_s < _AGAIN_S and (self.is_refused or report == self.report)


class Reports:
    """Reports from now on, until `end`. handles: the outputs of now."""

    def __init__(self, settings: RunSettings, handles: Callable[[], Iterable[OutputHandle]]) -> None:
        self._settings = settings
        self._clock = settings.clock
        self._handles = handles
        self._wants_end = threading.Event()
        self._last: dict[str, _LastReport] = {}
        self._failed: set[str] = set()  # what the log has a message of: outputs, and the relay as ""
        self._url: str | None = None
        self._coordinator: CoordinatorClient | None = None
        self._logger = logger_of("databus.pipeline").bind(pipeline=settings.config.name)
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Report a last time, and end; waits `_END_S_MAX` at most."""
        self._wants_end.set()
        self._thread.join(_END_S_MAX)

    def _run(self) -> None:
        while not self._clock.wait(self._wants_end, _EVERY_S):
            self._report_all()
        self._report_all()
        if self._coordinator is not None:
            self._coordinator.close()

    def _report_all(self) -> None:
        for handle in list(self._handles()):
            report = report_of({} if handle.ledger is None else handle.ledger.positions)
            last = self._last.get(handle.name)
            if report is None or (last is not None and last.is_enough(report, self._clock.monotonic_s())):
                continue
            # Only with the first report: a guard that ended must not begin again.
            begins = {"guard": handle.guards} if handle.guards and (last is None or last.is_refused) else {}
            try:
                self._report(handle.name, {**report, **begins})
            except DatabusError as error:
                is_away = isinstance(error, TransientError) and not isinstance(error, TooManyRequests)
                self._note("" if is_away else handle.name, error)
                if is_away:
                    return  # each other output would wait for the same timeout
                self._last[handle.name] = _LastReport(report, self._clock.monotonic_s(), is_refused=True)
            else:
                self._last[handle.name] = _LastReport(report, self._clock.monotonic_s(), is_refused=False)
                self._failed -= {"", handle.name}

    def _report(self, output: str, report: Mapping[str, Any]) -> None:
        url = self._settings.relay()
        if url is None:
            return
        if self._coordinator is None or url != self._url:
            self._url = url
            self._coordinator = CoordinatorClient(RelayClient(url, access=self._settings.config.access))
        name = f"{self._settings.config.name}.{output}"
        answer = self._coordinator.call(name, report, limit_ms=_ANSWER_MS_MAX, part="/report")
        if answer.error:
            raise answer.to_error()

    def _note(self, what: str, error: DatabusError) -> None:
        """Log once that the relay does not take a report."""
        self._coordinator = None  # the relay may name another coordinator by now
        if what in self._failed:
            return
        self._failed.add(what)
        is_expected = not what or isinstance(error, ConfigError) or error.http_status == _NOT_FOUND
        log = self._logger.info if is_expected else self._logger.warning
        log("the relay does not show how far outputs are", output=what or None, message=str(error))


def report_of(positions: Mapping[str, Position]) -> Mapping[str, Any] | None:
    """The report of an output with these positions; None if nothing was written. In each physical source the output is
    as far as its last table.
    """
    last: dict[str, SourceCheckpoint] = {}
    sources: set[str] = set()
    for physical, position in positions.items():
        places = [position.at, *position.places.values()]
        known = [place for place in places if place is not None]
        if known:
            last[physical] = min(known, key=lambda place: place.pair)
            sources.update(patterns_in(position.tables) if position.at is not None else position.places)
    return {"checkpoint": Checkpoint(last).to_json(), "sources": sorted(sources)} if last else None
