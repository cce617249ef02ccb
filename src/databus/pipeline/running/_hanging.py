"""Outputs that do not answer: none waits for another, so somebody has to look at them from outside."""

import time
from collections.abc import Callable
from typing import Any

from databus.operate import logger_of
from databus.pipeline.graph import PipelineConfig
from databus.pipeline.running._queries import Queries
from databus.pipeline.telling import Reminders


class Hanging:
    """Used by one thread. say: is told of each output that does not answer any longer, or again."""

    def __init__(self, queries: Queries, config: Callable[[], PipelineConfig], say: Callable[..., None]) -> None:
        self._queries = queries
        self._config = config
        self._say = say
        self._hanging: set[str] = set()
        self._reminders = Reminders()
        self._logger: Any = logger_of("databus.pipeline").bind(pipeline=config().name)

    def look(self) -> None:
        """Say which outputs do not answer any longer, or again; queries that were to end by themselves are given up."""
        limit_s = self._config().sections.run.write_ms_max / 1e3
        busy_s: dict[str, float] = {}
        for handle in self._queries.all_handles:
            busy_s[handle.name] = max(handle.busy_s, busy_s.get(handle.name, 0.0))
        overdue = self._queries.overdue_names
        for name, seconds in busy_s.items():
            hangs = seconds > limit_s or name in overdue
            if hangs and self._reminders.is_due(name, ""):
                self._logger.error("an output does not answer", output=name, seconds=round(seconds))
            if hangs and name not in self._hanging:
                self._hanging.add(name)
                self._say("hanging", output=name, since_us=time.time_ns() // 1000 - round(seconds * 1e6))
            elif not hangs and name in self._hanging:
                self._hanging.discard(name)
                self._reminders.end(name)
                self._logger.info("an output answers again", output=name)
                self._say("answered", output=name)
        for each in self._queries.left:
            if each.once and self._hanging.intersection(each.outputs):
                why = f"did not answer within run.write_ms_max={limit_s * 1e3:.0f}; what it was given comes again"
                self._queries.give_up(each, f"{', '.join(each.outputs)}: {why} at the next start")
