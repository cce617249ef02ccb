"""`databus tail --stats`: how much comes, and how late, a line a second."""

import threading
import time
from typing import TYPE_CHECKING, Final

import typer

from databus.cli._tail_bounds import Begin, End

if TYPE_CHECKING:
    from databus.client import Subscription, Window

_EVERY_S: Final = 1.0


class Stats:
    """What has come since the last line. lag: from the commit to here, of the last change; rows that a snapshot has
    read have none.
    """

    def __init__(self, begin: Begin, end: End, *, is_json: bool) -> None:
        self._begin, self._end = begin, end
        self._is_json = is_json
        self._lock = threading.Lock()
        self._rows = self._rows_total = self._transactions = 0
        self._lag_ms: float | None = None
        self._since = time.monotonic()

    def follow(self, following: "Subscription") -> None:
        """Print them until there is no more to follow."""
        ended = threading.Event()

        def say_often() -> None:
            try:
                while not ended.wait(_EVERY_S):
                    typer.echo(self._line())
            except OSError:  # nobody reads it
                following.close()

        saying = threading.Thread(target=say_often, name="stats", daemon=True)
        saying.start()
        try:
            for batch in following.batches():
                self._add([window for window in batch.windows if self._is_counted(window)])
        finally:
            ended.set()
            saying.join()
        typer.echo(self._line())

    def _is_counted(self, window: "Window") -> bool:
        first_us, last_us = self._begin.since_us, self._end.at_us
        return (first_us is None or window.commit_us >= first_us) and (last_us is None or window.commit_us <= last_us)

    def _add(self, windows: "list[Window]") -> None:
        with self._lock:
            self._rows += sum(map(len, windows))
            self._transactions += sum(not window.continues and not window.is_empty for window in windows)
            logged_us = [window.commit_us for window in windows if not window.is_snapshot]
            if logged_us:
                self._lag_ms = max(time.time() * 1e3 - logged_us[-1] / 1e3, 0.0)

    def _line(self) -> str:
        from databus.formats import json_line

        with self._lock:
            seconds = max(time.monotonic() - self._since, 1e-3)
            self._rows_total += self._rows
            rows_per_s, transactions_per_s = self._rows / seconds, self._transactions / seconds
            lag_ms, total = self._lag_ms, self._rows_total
            self._rows = self._transactions = 0
            self._lag_ms, self._since = None, time.monotonic()
        if self._is_json:
            told = {"rowsPerS": round(rows_per_s), "transactionsPerS": round(transactions_per_s)}
            return json_line({**told, "lagMs": None if lag_ms is None else round(lag_ms), "rows": total})
        lag = "lag -" if lag_ms is None else f"lag {lag_ms / 1e3:.3f} s"
        return f"{rows_per_s:,.0f} rows/s  {transactions_per_s:,.0f} transactions/s  {lag}  {total:,} rows"
