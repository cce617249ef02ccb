"""The status of a pipeline: a file in its state folder, and what the relay still has for each output.

    {"v": 1, "pipeline": "shop", "pid": 4711, "written_us": ..., "relay": "http://127.0.0.1:4000", "doing": "",
     "outputs": {"copy": {"state": "running", "rows": 12, ...}}}

`databus run` writes the file; `databus status` and the endpoints of a run answer with what `read_status` reads.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from databus.core import (
    Clock,
    CorruptData,
    DatabusError,
    PositionForeign,
    PositionPurged,
    SourceCheckpoint,
    SystemClock,
    TransientError,
)
from databus.disk import replace_file
from databus.operate import hide_in_text, logger_of

if TYPE_CHECKING:
    from databus.link import Access, RelayClient

FILE: Final = "status.json"
_VERSION: Final = 1
_ROWS_COUNTED_MAX: Final = 10_000_000
_ANSWER_MS_MAX: Final = 10_000
_EVERY_S: Final = 1.0
_LAST_S_MAX: Final = 1.0

_logger = logger_of("databus.pipeline")


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Write the status file. Raises `DiskFull` or `ServiceUnavailable`."""
    text = json.dumps({"v": _VERSION, "written_us": time.time_ns() // 1000, **status}, default=str)
    replace_file(folder / FILE, [text.encode()], durable=False)


def read_status(folder: Path) -> dict[str, Any] | None:
    """The status file of the last run; None if there was none. Raises `CorruptData`."""
    try:
        value = json.loads((folder / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptData(
            f"{folder / FILE}: is not JSON: {error}; it is written again while the pipeline runs"
        ) from error
    if not isinstance(value, dict) or value.get("v") != _VERSION:
        raise CorruptData(f"{folder / FILE}: is not a status of this version of databus")
    return value


class StatusFile:
    """Writes the answer of `status` once a second, in a thread of its own, until it is stopped."""

    def __init__(self, folder: Path, status: Callable[[], Mapping[str, Any]]) -> None:
        self._folder = folder
        self._status = status
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status-file", daemon=True)
        self._is_in_trouble = False

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write a last time; waits `_LAST_S_MAX` at most, in case the disk hangs. Callable twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_S_MAX)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(_EVERY_S)
            try:
                write_status(self._folder, self._status())
                self._is_in_trouble = False
            except TransientError as error:
                if not self._is_in_trouble:
                    _logger.warning("the pipeline's status could not be written", message=str(error))
                self._is_in_trouble = True


def with_backlog(
    outputs: Mapping[str, Any], relay: str | None, access: "Access", *, clock: Clock | None = None
) -> dict[str, Any]:
    """The outputs with `backlog`: what the relay has and they have not written, by query and physical source, and by
    `table` for those that are behind the others.

    rows: changes of its tables; is_least: the count was cut short, there may be more. lag_s: the age of the oldest
    change that the database has committed and the output has not written; None if unknown. held: whether the relay
    still has the next change; if not, `message` says why. oldest_us: commit time of the oldest change that it has.
    """
    from databus.link import RelayClient

    client = None if relay is None else RelayClient(relay, access=access, read_ms_max=_ANSWER_MS_MAX)
    captured_s = {} if client is None else _captured_s(client)
    now_us = (clock or SystemClock()).now_ns() // 1000
    return {
        name: {
            **output,
            "backlog": [
                {
                    "query": query,
                    "physical": physical,
                    **({} if table is None else {"table": table}),
                    **_backlog(client, physical, position, tables, captured_s.get(physical), now_us),
                }
                for query, state in output["queries"].items()
                for physical, table, position, tables in _places(state)
                if client is not None
            ],
        }
        for name, output in outputs.items()
    }


def _places(query: Mapping[str, Any]) -> Iterator[tuple[str, str | None, Any, list[str]]]:
    """Where the tables of a query stand: the physical source, the table if it is behind the others, the position, and
    which tables the relay is asked for, all without any.
    """
    for physical, position in query["positions"].items():
        yield physical, None, position, query["tables"]
        for table, place in query["behind"].get(physical, {}).items():
            yield physical, table, place, [table]


def _captured_s(client: "RelayClient") -> dict[str, float]:
    """How far the relay itself lags behind its sources, where it knows."""
    try:
        states = client.states()
    except DatabusError:
        return {}
    return {state["name"]: state["lagMs"] / 1e3 for state in states if state["lagMs"] is not None}


def _backlog(
    client: "RelayClient", physical: str, position: Any, tables: list[str], captured_s: float | None, now_us: int
) -> dict[str, Any]:
    from databus.filters import name_if_there

    unknown = {"rows": None, "is_least": False, "bytes": None, "lag_s": None, "held": None, "oldest_us": None}
    try:
        start = SourceCheckpoint.from_json(position, "position")
        head = client.head(physical, start=start)
        sources = [name_if_there(table, physical) for table in tables]
        backlog = client.range(physical, start, sources=sources or None, rows_max=_ROWS_COUNTED_MAX)
    except (PositionPurged, PositionForeign) as error:
        return {**unknown, "held": False, "message": hide_in_text(str(error))}
    except DatabusError as error:
        return {**unknown, "message": hide_in_text(str(error))}
    is_least = backlog.position.pair < head.published.pair
    oldest_us = backlog.oldest_us
    if oldest_us is None and (backlog.rows or is_least):
        # An older relay does not say; or the count was cut short before the first row.
        oldest_us = start.ts_us if backlog.rows else backlog.position.ts_us
    age_s = max(now_us - oldest_us, 0) / 1e6 if oldest_us else None
    return {
        "rows": backlog.rows,
        "is_least": is_least,
        "bytes": backlog.bytes,
        "lag_s": captured_s if oldest_us is None else age_s,
        "held": True,
        "oldest_us": head.oldest.ts_us,
        "message": "",
    }
