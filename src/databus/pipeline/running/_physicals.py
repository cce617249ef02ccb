"""The physical sources of a pipeline: those of its file, or those of a relay elsewhere, now and later."""

import threading
from collections.abc import Callable
from typing import Final

from databus.core import Clock, DatabusError, ServiceUnavailable, SystemClock, TransientError
from databus.pipeline.graph import PipelineConfig
from databus.pipeline.running._own_relay import states_of
from databus.pipeline.telling import in_background

_ASK_S: Final = 0.2
_LOOK_AGAIN_S: Final = 5.0


class Physicals:
    """relay_url: where the relay answers now; None without a relay."""

    def __init__(
        self,
        config: PipelineConfig,
        relay_url: Callable[[], str | None],
        is_stopping: threading.Event,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._relay_url = relay_url
        self._is_stopping = is_stopping
        self._clock = clock or SystemClock()

    def wait(self, is_enough: Callable[[list[str]], bool]) -> list[str]:
        """The physical sources; of a relay elsewhere once `is_enough` says so, or all that it has after `start_ms_max`.

        Raises `TransientError` if the relay does not answer within `start_ms_max`, or has none.
        """
        if self._config.sources or self._relay_url() is None:
            return list(self._config.sources)
        deadline = self._clock.monotonic_s() + self._config.sections.run.start_ms_max / 1e3
        while True:
            try:
                names = self._asked()
            except TransientError:
                if self._clock.monotonic_s() > deadline:
                    raise
                names = []
            is_late = self._clock.monotonic_s() > deadline
            if names and (is_late or is_enough(names)):
                return names
            if is_late:
                raise self._none_named()
            if self._clock.wait(self._is_stopping, _ASK_S):  # nothing signals that a relay has come
                return []

    def watch(self, known: list[str], on_new: Callable[[list[str]], None]) -> None:
        """Call `on_new` with all of them whenever the relay has more, from a thread of its own until the run stops."""
        if not self._config.sources and self._relay_url() is not None:
            in_background("new-sources", lambda: self._watch(known, on_new))

    def _watch(self, known: list[str], on_new: Callable[[list[str]], None]) -> None:
        while not self._clock.wait(self._is_stopping, _LOOK_AGAIN_S):  # a relay only answers; it does not notify
            try:
                names = self._asked()
            except DatabusError:
                continue  # the queries report that the relay is away
            if not set(known).issuperset(names):
                known = sorted({*known, *names})
                on_new(known)

    def _none_named(self) -> ServiceUnavailable:
        url, ms_max = self._relay_url() or "", self._config.sections.run.start_ms_max
        try:
            states = [
                f"{state['name']} is {state['status']}: {state['message']}"
                for state in states_of(url, self._config.access)
            ]
        except DatabusError as error:
            states = [str(error)]
        return ServiceUnavailable(
            f"the relay at {url} has named no table of any source within run.start_ms_max={ms_max} "
            f"({'; '.join(state.rstrip(': ') for state in states) or 'it has no sources'}). See to its sources: "
            f"`databus sources --relay {url}`; or name another relay in relay.url, or raise run.start_ms_max"
        )

    def _asked(self) -> list[str]:
        url = self._relay_url()
        return [] if url is None else self._config.physicals_at(url)
