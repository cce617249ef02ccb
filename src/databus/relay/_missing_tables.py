"""Entries of `tables:` that no table fits. They are no error, since a table may come later, but most are misspelt."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from databus.core import ConfigError
from databus.log import Log
from databus.sources import SourceConfig

_NEAR_MAX: Final = 3
_NEAR_RATIO: Final = 0.75  # `main.` in common is not enough
_ENTRIES_MAX: Final = 20


class MissingTables:
    """The sentences about one physical source's entries, made again when a table was added to its log."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._counted = -1
        self._said: tuple[str, ...] = ()

    def said(self, log: Log | None) -> Sequence[str]:
        """`no table fits main.ordrs yet; did you mean main.orders?`, for each entry, 20 at most; none without a log."""
        if log is None:
            return ()
        captured = list(log.schemas.ids())
        if len(captured) != self._counted:
            self._said = tuple(self._sentences(captured))
            self._counted = len(captured)
        return self._said

    def warn(self, log: Log, logger: Any) -> None:
        """Say them in the log."""
        for sentence in self.said(log):
            logger.warning(sentence, hint="correct `tables`, unless it comes later")

    def _sentences(self, captured: list[str]) -> list[str]:
        missing = [entry for entry in self._config.tables if not self._fits(entry, captured)][:_ENTRIES_MAX]
        there = self._there(captured) if missing else []
        return [f"no table fits {entry} yet{_near(entry, there)}" for entry in missing]

    def _fits(self, entry: str, captured: list[str]) -> bool:
        alone = self._config.model_copy(update={"tables": [entry], "exclude": []})
        return any(alone.selects(table) for table in captured)

    def _there(self, captured: list[str]) -> list[str]:
        """The tables that are known without asking a server."""
        try:
            return sorted({*captured, *(self._config.tables_here(Path()) or ())})
        except ConfigError:
            return captured  # the database's file is away, which capture says


def _near(entry: str, there: list[str]) -> str:
    tables = {name: name for name in there} | {name.rpartition(".")[2]: name for name in there}
    near = difflib.get_close_matches(entry, tables, _NEAR_MAX, _NEAR_RATIO)
    names = list(dict.fromkeys(tables[each] for each in near))
    return f"; did you mean {' or '.join(names)}?" if names else ""
