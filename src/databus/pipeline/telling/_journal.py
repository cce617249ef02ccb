"""The journal of a pipeline: what happened in the last days, as JSON lines beside its state. Start with `Journal.take`.

    {"at_us": ..., "event": "began", "pid": 4711}
    {"at_us": ..., "event": "rows", "output": "copy", "since_us": ..., "batches": 12, "rows": 340, "tables": {...}}
    {"at_us": ..., "event": "control", "source": "shop/main.orders", "kind": "schema", "ddl": "ALTER TABLE ..."}
    {"at_us": ..., "event": "failed", "outputs": ["copy"], "error": "...", "message": "..."}

Batches are summed up in one line for each output and minute, so that a bounded file holds the errors of days. Lines are
not synced: a killed process loses the counts of its last minute, a machine that fails some seconds of lines. `databus
history` reads it.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from databus.operate import logger_of

FILE: Final = "journal.jsonl"
_BEFORE: Final = "journal.1.jsonl"
_BYTES_MAX: Final = 4 << 20
"""Of one file. There are two: this one, and the one before it."""
_EVERY_US: Final = 60_000_000
_TABLES_MAX: Final = 200
"""Tables that a line of counts names; the rows of further ones are under an empty name."""
_SEEN_MAX: Final = 1_000
_CHARS_MAX: Final = 2_000
_WRITTEN_EVENTS: Final = frozenset(
    {
        *("failed", "retry", "table_failed", "table_retry", "table_well", "refused", "hanging", "answered"),
        *("no_source", "relay_died", "source", "reload", "stopped", "throttled", "rebuilt", "journal_break"),
    }
)
_FIELDS: Final = frozenset(
    {"at_us", "event", "output", "outputs", "error", "message", "source", "status", "is_well", "code", "problem", "by"}
)

_logger = logger_of("databus.pipeline")


@dataclass
class _Counted:
    """What an output wrote since its last line of counts."""

    since_us: int
    batches: int = 0
    rows: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    """Rows by full name of a table."""


class Journal:
    """Appends to the journal of one state folder, which its caller owns. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._counted: dict[str, _Counted] = {}
        self._seen: dict[tuple[Any, ...], None] = {}  # controls that were written: each output reports them
        self._last: dict[Any, Any] = {}  # by query, source or output: what was written of it last
        self._is_in_trouble = False
        self._is_begun = False

    def take(self, event: Mapping[str, Any]) -> None:
        """Write down an event of the run, if it belongs in the journal."""
        event = {"at_us": time.time_ns() // 1000, **event}
        if not self._is_begun:
            self._is_begun = True
            self._put({"at_us": event["at_us"], "event": "began", "pid": os.getpid()})
        name = event["event"]
        if name == "batch":
            self._last.pop(event.get("query"), None)  # the same error after a batch is news
            self._count(event)
            for control in event.get("changes", ()):
                self._note_control(event, control)
        elif name in _WRITTEN_EVENTS and self._is_news(event):
            self._flush()
            self._put({key: _cut(value) for key, value in event.items() if key in _FIELDS})

    def _count(self, event: Mapping[str, Any]) -> None:
        at_us, physical = event["at_us"], event.get("physical", "")
        counted = self._counted.setdefault(event["output"], _Counted(at_us))
        counted.batches += 1
        counted.rows += event.get("rows") or 0
        for table, rows in event.get("tables", {}).items():
            source = f"{physical}/{table}"
            if source not in counted.tables and len(counted.tables) >= _TABLES_MAX:
                source = ""
            counted.tables[source] = counted.tables.get(source, 0) + rows
        if at_us - min(counted.since_us for counted in self._counted.values()) >= _EVERY_US:
            self._flush()

    def _flush(self) -> None:
        counted, self._counted = self._counted, {}
        for output, group in counted.items():
            tables = {table: rows for table, rows in group.tables.items() if rows}
            counts = {"since_us": group.since_us, "batches": group.batches, "rows": group.rows, "tables": tables}
            self._put({"at_us": time.time_ns() // 1000, "event": "rows", "output": output, **counts})

    def _note_control(self, event: Mapping[str, Any], control: Mapping[str, Any]) -> None:
        line = {"source": f"{event['physical']}/{control['table']}", "kind": control["kind"], "pair": control["pair"]}
        key = line["source"], line["kind"], tuple(line["pair"])
        if key in self._seen:
            return
        self._seen[key] = None
        if len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        more = {name: _cut(control[name]) for name in ("ddl", "reason") if control.get(name)}
        self._put({"at_us": event["at_us"], "event": "control", **line, **more})

    def _is_news(self, event: Mapping[str, Any]) -> bool:
        """Whether it differs from the last event about the same: what is retried for days repeats its error."""
        about = event.get("query") or event.get("source") or event.get("output")
        content = event["event"], event.get("status"), event.get("message")
        if event["event"] in ("stopped", "reload"):
            return True
        is_news = self._last.get(about) != content
        self._last[about] = content
        return is_news

    def _put(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, default=str, separators=(",", ":")).encode() + b"\n"
        try:
            append_line(self._path, text, _BYTES_MAX, self._path.with_name(_BEFORE))
            self._is_in_trouble = False
        except OSError as error:  # a full disk: outputs report that themselves
            if not self._is_in_trouble:
                _logger.warning("the journal could not be written", path=str(self._path), message=str(error))
            self._is_in_trouble = True


def append_line(path: Path, text: bytes, bytes_max: int, before: Path) -> None:
    """Append a line to a file of at most `bytes_max`; a full file is renamed to `before`, and a new one begins."""
    make_room(path, len(text), bytes_max, before)
    with path.open("ab+") as file:
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            text = b"\n" + text  # a line that a crash cut off must not swallow this one
        file.write(text)


def make_room(path: Path, count: int, bytes_max: int, before: Path) -> bool:
    """Make room for `count` bytes, as `append_line` does; returns whether a new file begins with them."""
    try:
        if path.stat().st_size + count > bytes_max:
            path.replace(before)
            return True
    except FileNotFoundError:
        return True
    return False


def read_lines(paths: Iterable[Path], tail_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """The objects in these files, one a line. Lines that were cut off and missing files are skipped.

    tail_bytes: read only so much of each file's end.
    """
    for path in paths:
        with suppress(FileNotFoundError), path.open("rb") as file:
            if tail_bytes is not None:
                file.seek(max(0, path.stat().st_size - tail_bytes))
            for line in file:
                with suppress(ValueError):
                    value = json.loads(line)
                    if isinstance(value, dict):
                        yield value


def _cut(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= _CHARS_MAX else f"{value[:_CHARS_MAX]}..."


def read_journal(folder: Path, since_us: int = 0) -> Iterator[dict[str, Any]]:
    """The events from a time on, the oldest first; none if there is no journal."""
    events = read_lines(folder / name for name in (_BEFORE, FILE))
    return (event for event in events if event.get("at_us", 0) >= since_us)
