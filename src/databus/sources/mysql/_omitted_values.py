"""Warnings about the omitted values of rows that were too large: one for each table, later again with the count."""

import time
from collections.abc import Mapping
from typing import Final, Protocol

from databus.sources.mysql.rows import Omitter

_EVERY_S: Final = 600.0


class WarningLogger(Protocol):
    """A logger that warns."""

    def warning(self, event: str, **values: object) -> object:
        """Say it."""
        ...


class OmissionReport:
    """Warnings about the values that `omitter` took, none if there is none."""

    def __init__(self, logger: WarningLogger, omitter: Omitter | None) -> None:
        self._logger = logger
        self._omitter = omitter
        self._reported: dict[str, int] = {}
        self._due_s: dict[str, float] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The values lost so far, by table."""
        return {} if self._omitter is None else self._omitter.counts()

    def tell(self, *, is_last: bool = False) -> None:
        """Warn of each table with more omitted values than reported, at most once in ten minutes unless `is_last`."""
        if self._omitter is None:
            return
        now_s = time.monotonic()
        for table, count in self._omitter.counts().items():
            if count == self._reported.get(table) or (not is_last and now_s < self._due_s.get(table, now_s)):
                continue
            self._reported[table], self._due_s[table] = count, now_s + _EVERY_S
            self._logger.warning(
                "values were left out of rows above row_bytes_max",
                table=table,
                values=count,
                row_bytes_max=self._omitter.row_bytes_max,
                mend="raise row_bytes_max, or leave the column out with `columns`",
            )
