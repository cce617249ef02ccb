"""Entries of `tables:`, or of a source's own list, that nothing fits. They are no error, since a table may come later,
but most are misspelt.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from databus.core import ConfigError, short_name
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
        self._sentences: Mapping[str, str] = {}

    def reasons(self, log: Log | None) -> Sequence[str]:
        """`no table fits main.ordrs yet; did you mean main.orders?`, for each entry, 20 at most; none without a log."""
        return [*self._now(log)] if log is not None else []

    def warn(self, log: Log, logger: Any) -> None:
        """Say them in the log."""
        for sentence, option in self._now(log).items():
            logger.warning(sentence, hint=f"correct `{option}`, unless it comes later")

    def _now(self, log: Log) -> Mapping[str, str]:
        captured = list(log.schemas.ids())
        if len(captured) != self._counted:
            self._sentences = self.sentences(captured)
            self._counted = len(captured)
        return self._sentences

    def sentences(self, captured: list[str]) -> dict[str, str]:
        """The sentences where these tables are captured, each with the option that it is about."""
        missing = list(self._config.unmatched(captured).items())[:_ENTRIES_MAX]
        there = self._there(captured) if missing else []
        return {
            f"no {option.removesuffix('s')} fits {entry} yet{_near(entry, there)}": option for entry, option in missing
        }

    def _there(self, captured: list[str]) -> list[str]:
        """The tables that are known without asking a server."""
        try:
            return sorted({*captured, *(self._config.tables_here(Path()) or ())})
        except ConfigError:
            return captured  # the database's file is away, which capture says


def _near(entry: str, there: list[str]) -> str:
    tables = {name: name for name in there} | {short_name(name): name for name in there}
    near = difflib.get_close_matches(entry, tables, _NEAR_MAX, _NEAR_RATIO)
    names = list(dict.fromkeys(tables[name] for name in near))
    return f"; did you mean {' or '.join(names)}?" if names else ""
