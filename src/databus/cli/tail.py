"""`databus tail`: changes as they happen."""

import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from databus.cli._app import app, local_time, options_given, printable
from databus.cli._relay_of import AskRelay, asks_relay
from databus.core import Checkpoint, ConfigError, DatabusError, SourceCheckpoint, TransientError, split_physical

if TYPE_CHECKING:
    from databus.cli._tail_bounds import TailBegin, TailEnd
    from databus.client import ControlEvent, Row, Subscription, Window
    from databus.link import RelayClient

_BIG_INTEGERS: Final[dict[str, Literal["number", "string"]]] = {"number": "number", "string": "string"}
_FIRST_ANSWER_MS_MAX: Final = 5_000
_SAVED_EVERY_S: Final = 1.0
_COUNTED_EVERY_S: Final = 1.0
_LOOK_S: Final = 2.0
_WELL: Final = frozenset({"running", "shutdown"})
_VALUE_CHARS_MAX: Final = 60
_WORDS: Final = {"update_postimage": "update"}


class TailForm(StrEnum):
    """How changes are printed."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


@app.command(epilog="Example: databus tail main.orders --from beginning -n 20")
@asks_relay
def tail(
    *,
    context: typer.Context,
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, `*` standing for anything; all of them.")] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="latest, earliest, beginning, a time as for --since, an SCN, or a checkpoint's file."
        ),
    ] = "latest",
    since: Annotated[
        str | None,
        typer.Option("--since", help="Instead: from a time on, such as 2026-07-01T12:00:00Z, or 90s, 15m, 2h, 1d ago."),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Only rows for which this condition holds: total >= 100.")
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Only these columns, and the key: id,total.")] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Stop after the transaction of this SCN, or after this time, past or to come."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on where this file says, and keep there how far all is printed. --from: if there is none."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="Stop after so many changes, an update being one.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Or stop at what is there now.")] = True,
    stats: Annotated[
        bool, typer.Option("--stats", help="Instead of changes: rows and transactions a second, and the lag.")
    ] = False,
    ask: AskRelay,
    form: Annotated[
        TailForm, typer.Option("--format", help="A line a change for people, the lines of /stream, or by who reads it.")
    ] = TailForm.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    big_integers: Annotated[
        str, typer.Option("--big-integers", help="With --json: integers beyond 2^53 as number or as string.")
    ] = "number",
) -> None:
    """Print changes as they are committed, transaction by transaction, until Ctrl-C.

    On a terminal, or with --format text, a change is a line: when it was committed, in local time, its table, what it
    is, its key, and what has changed. Elsewhere, or with --json, it is JSON for programs; there an update is two lines,
    the row before and the row after. See "Changes as JSON" in docs/http.md.

    A source that is not captured now is named on standard error, with the reason. --relay takes several addresses of
    relays of one database, with commas between: after an outage, tail goes on at another.
    """
    from databus.cli._tail_bounds import begin_of, end_of

    if since is not None and "start" in options_given(context):
        raise ConfigError("--from and --since: only one of them can say where to start")
    if stats and (count is not None or resume is not None):
        raise ConfigError("--stats counts what comes and prints no changes; leave out -n and --resume")
    integers = _big_integers_of(big_integers)
    is_json = as_json or form is TailForm.JSON or (form is TailForm.AUTO and not sys.stdout.isatty())
    asked = ask()
    first = asked.client(read_ms_max=_FIRST_ANSWER_MS_MAX)
    begin = begin_of(since or start, "--from" if since is None else "--since", first, tables)
    end = end_of(until, first, tables, follow=follow)
    narrowed = {"where": where, "columns": columns}
    tailing = _Tailing(asked.client(), tables, begin, end, is_json, integers, narrowed)
    with telling_trouble(first, tables, lambda line: typer.echo(line, err=True)):
        if stats:
            tailing.count()
        else:
            tailing.print(count, resume)


@dataclass
class _Tailing:
    """What is followed and how it is printed."""

    client: "RelayClient"
    tables: list[str] | None
    begin: "TailBegin"
    end: "TailEnd"
    is_json: bool
    integers: Literal["number", "string"]
    narrowed: "dict[str, str | None]"
    """Which rows and columns: `where` and `columns`."""
    known: "dict[str, SourceCheckpoint]" = field(default_factory=dict)
    """Where it goes on, by physical source."""
    ended: "dict[str, SourceCheckpoint]" = field(default_factory=dict)
    """Where physical sources have come to the end."""
    following: "Subscription | None" = None

    @contextmanager
    def _followed(self, end: "TailEnd", known: "Mapping[str, SourceCheckpoint]") -> "Iterator[Subscription]":
        """known: where to go on, for the physical sources in it."""
        from databus.cli._tail_bounds import ended_in_time
        from databus.client import windows

        given = {} if self.begin.checkpoint is None else self.begin.checkpoint.sources
        with (
            windows(
                self.client,
                sources=self.tables,
                start=self.begin.start,
                checkpoint=Checkpoint({**given, **known}),
                follow=end.follows,
                until=end.until,
                where=self.narrowed["where"],
                columns=self.narrowed["columns"],
                on_filter_change="stop",
            ) as following,
            ended_in_time(end, following),
        ):
            yield following

    def count(self) -> None:

        with self._followed(self.end, {}) as following:
            TailStats(self.begin, self.end, is_json=self.is_json).follow(following)

    def print(self, count: int | None, resume: Path | None) -> None:
        from databus.client import tail_lines

        with ExitStack() as stack:
            place = None
            if resume is not None:
                place = stack.enter_context(closing(TailPlace(resume, self._taken, self.ended)))
                self.known.update(place.open())
            wanted: Iterator[Window] = stack.enter_context(closing(self._windows()))
            if place is not None:
                wanted = place.passing(wanted, is_json=self.is_json)
                stack.enter_context(place.kept())
            lines = tail_lines(wanted, count, self.integers) if self.is_json else islice(change_lines(wanted), count)
            for line in lines:
                typer.echo(line)
                if place is not None:
                    place.printed()

    def _windows(self) -> "Generator[Window]":
        from databus.cli._tail_bounds import within

        # where it goes on, a time to begin at has passed
        begin = replace(self.begin, since_us=None) if self.known else self.begin
        for end in self.end.phases():
            with self._followed(end, self.known) as self.following:
                yield from within(self.following, begin, end, self.ended)
                self.known.update(self.following.checkpoint.sources)

    def _taken(self) -> "Checkpoint":
        return Checkpoint(self.known) if self.following is None else self.following.checkpoint


def _big_integers_of(text: str) -> Literal["number", "string"]:
    if text in _BIG_INTEGERS:
        return _BIG_INTEGERS[text]
    raise ConfigError(f"--big-integers {text}: is neither number nor string")


class TailPlace:
    """Keeps it. Whoever is killed prints the changes of up to a second again."""

    def __init__(self, path: Path, taken: Callable[[], Checkpoint], ended: Mapping[str, SourceCheckpoint]) -> None:
        """taken: up to where windows were taken to be printed, but for the last one. ended: where physical sources
        stand of which nothing more is printed, though more may be read.
        """
        from databus.client import FileCheckpoints

        self._store = FileCheckpoints(path)
        self._taken = taken
        self._ended = ended
        self._lines_given = self._lines_printed = 0
        self._last: Window | None = None
        self._saved: Checkpoint | None = None

    def open(self) -> Mapping[str, SourceCheckpoint]:
        """Take the file, and say what it holds. Raises what `FileCheckpoints.open` does."""
        self._saved = self._store.open()
        return {} if self._saved is None else self._saved.sources

    def passing(self, windows: "Iterator[Window]", *, is_json: bool) -> "Iterator[Window]":
        """The windows on their way to be printed; of each it is counted how many lines it has."""
        for window in windows:
            images = len(window) if is_json else len(window.rows())
            self._lines_given += images + window.has_control + (is_json and window.restarts)
            self._last = window
            yield window

    def printed(self) -> None:
        """One more line is out."""
        self._lines_printed += 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Save how far it has come, each second and at the end."""
        ended = threading.Event()

        def save_often() -> None:
            while not ended.wait(_SAVED_EVERY_S):
                self._save(is_end=False)

        saving = threading.Thread(target=save_often, name="place", daemon=True)
        saving.start()
        try:
            yield
        finally:
            ended.set()
            saving.join()
            self._save(is_end=True)

    def close(self) -> None:
        """Let go of the file. Callable twice."""
        self._store.close()

    def _save(self, *, is_end: bool) -> None:
        place = self._place()
        if place == self._saved:
            return
        try:
            self._store.save(place)
            self._saved = place
        except DatabusError:
            if is_end:  # before, it is tried again in a second
                raise

    def _place(self) -> Checkpoint:
        """What was asked for behind a window was printed. The last one too, where all its lines are."""
        positions = dict(self._taken().sources)
        last = self._last
        if last is not None and self._lines_printed == self._lines_given:
            known = positions.get(last.physical)
            if known is None or known.pair < last.position.pair:
                positions[last.physical] = last.position
        return Checkpoint({**positions, **self._ended})


class TailStats:
    """What has come since the last line. lag: from the commit to here, of the last change; rows that a snapshot has
    read have none.
    """

    def __init__(self, begin: "TailBegin", end: "TailEnd", *, is_json: bool) -> None:
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
                while not ended.wait(_COUNTED_EVERY_S):
                    typer.echo(self._line())
            except OSError:  # the reader of standard output has gone
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
            counts = {"rowsPerS": round(rows_per_s), "transactionsPerS": round(transactions_per_s)}
            return json_line({**counts, "lagMs": None if lag_ms is None else round(lag_ms), "rows": total})
        lag = "lag -" if lag_ms is None else f"lag {lag_ms / 1e3:.3f} s"
        return f"{rows_per_s:,.0f} rows/s  {transactions_per_s:,.0f} transactions/s  {lag}  {total:,} rows"


@contextmanager
def telling_trouble(relay: "RelayClient", tables: Sequence[str] | None, say: Callable[[str], None]) -> Iterator[None]:
    """Say what each source's trouble is, at once, and whenever it changes until the block ends.

    tables: as the verb was given them; sources that none of them can be of are left out. Raises what asking the relay
    raises the first time; later it may be away, which who follows it finds out too.
    """
    client = relay.clone()
    troubles: dict[str, str] = {}
    _tell(client.states(), tables, troubles, say)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            try:
                _tell(client.states(), tables, troubles, say)
            except TransientError:
                continue

    threading.Thread(target=look, name="trouble", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _tell(
    states: Sequence[Mapping[str, Any]],
    tables: Sequence[str] | None,
    troubles: dict[str, str],
    say: Callable[[str], None],
) -> None:
    for state in states:
        name = str(state["name"])
        if tables is not None and not any(_may_be_of(table, name) for table in tables):
            continue
        now = trouble_of(state)
        before = troubles.get(name, "")
        if now != before:
            say(now or f"{name}: running again")
            troubles[name] = now


def _may_be_of(table: str, physical: str) -> bool:
    owner, _ = split_physical(table)
    return fnmatchcase(physical, owner or "*")


def trouble_of(state: Mapping[str, Any]) -> str:
    """One line about a source that is not captured now; empty for one that is."""
    status = str(state["status"])
    if status in _WELL:
        return ""
    reason = " ".join(str(state["message"] or "").split())
    return f"{state['name']}: {status}, so no changes come now{f': {reason}' if reason else ''}"


def change_lines(windows: "Iterable[Window]") -> Iterator[str]:
    """A line for each change and each control."""
    for window in windows:
        at = local_time(window.commit_us)
        if window.control is not None:
            yield f"{at}  {window.control.source}  {_control_text(window.control)}"
        for row in window.rows():
            word = "read" if window.is_snapshot else _WORDS.get(row.change_type.label, row.change_type.label)
            yield f"{at}  {row.source}  {word}  {_changed(row)}".rstrip()


def _control_text(control: "ControlEvent") -> str:
    facts = {name: value for name, value in control.body.items() if name in ("ddl", "reason", "complete") and value}
    return f"{control.kind}  {_named(facts)}".rstrip()


def _changed(row: "Row") -> str:
    """Key and values; of an update only what has changed, of a delete the key, where there is one."""
    values = row.values
    key = {name: values[name] for name in row.table.key}
    rest = {name: value for name, value in values.items() if name not in key}
    if row.before is not None and row.after is not None:
        before, after = row.before, row.after
        changed = [name for name in after if name not in before or before[name] != after[name]]
        rest_text = ", ".join(f"{name}: {_value(before.get(name))} → {_value(after[name])}" for name in changed)
    else:
        rest_text = "" if row.after is None and key else _named(rest)
    return "  ".join(text for text in (_named(key), rest_text) if text)


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    """As JSON, cut, and without what a terminal would take for a command."""
    from databus.formats import to_json_value

    text = json.dumps(to_json_value(value), ensure_ascii=False)
    if len(text) > _VALUE_CHARS_MAX:
        text = f"{text[:_VALUE_CHARS_MAX]}... ({len(text):,} characters)"
    return printable(text)
