"""`databus tail`: changes as they happen."""

import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from databus.cli._app import app, options_given
from databus.cli._relay_of import Ask, asks_relay

if TYPE_CHECKING:
    from databus.cli._tail_bounds import Begin, End
    from databus.client import Subscription, Window
    from databus.core import Checkpoint, SourceCheckpoint
    from databus.link import RelayClient

_BIG_INTEGERS: Final[dict[str, Literal["number", "string"]]] = {"number": "number", "string": "string"}
_FIRST_ANSWER_MS_MAX: Final = 5_000


class Form(StrEnum):
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
    ask: Ask,
    form: Annotated[
        Form, typer.Option("--format", help="A line a change for people, the lines of /stream, or by who reads it.")
    ] = Form.AUTO,
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
    from databus.cli._trouble import trouble_told
    from databus.core import ConfigError

    if since is not None and "start" in options_given(context):
        raise ConfigError("--from and --since: only one of them can say where to start")
    if stats and (count is not None or resume is not None):
        raise ConfigError("--stats counts what comes and prints no changes; leave out -n and --resume")
    integers = _big_integers_of(big_integers)
    is_json = as_json or form is Form.JSON or (form is Form.AUTO and not sys.stdout.isatty())
    asked = ask()
    first = asked.client(read_ms_max=_FIRST_ANSWER_MS_MAX)
    begin = begin_of(since or start, "--from" if since is None else "--since", first, tables)
    end = end_of(until, first, tables, follow=follow)
    narrowed = {"where": where, "columns": columns}
    tailing = _Tailing(asked.client(), tables, begin, end, is_json, integers, narrowed)
    with trouble_told(first, tables, lambda said: typer.echo(said, err=True)):
        if stats:
            tailing.count()
        else:
            tailing.print(count, resume)


@dataclass
class _Tailing:
    """What is followed and how it is printed. narrowed: `where` and `columns`. known: where it goes on. ended: where
    physical sources have come to the end.
    """

    client: "RelayClient"
    tables: list[str] | None
    begin: "Begin"
    end: "End"
    is_json: bool
    integers: Literal["number", "string"]
    narrowed: "dict[str, str | None]"
    known: "dict[str, SourceCheckpoint]" = field(default_factory=dict)
    ended: "dict[str, SourceCheckpoint]" = field(default_factory=dict)
    following: "Subscription | None" = None

    @contextmanager
    def _followed(self, end: "End", known: "Mapping[str, SourceCheckpoint]") -> "Iterator[Subscription]":
        """known: where to go on, for the physical sources in it."""
        from databus.cli._tail_bounds import ended_in_time
        from databus.client import windows
        from databus.core import Checkpoint

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
        from databus.cli._tail_stats import Stats

        with self._followed(self.end, {}) as following:
            Stats(self.begin, self.end, is_json=self.is_json).follow(following)

    def print(self, count: int | None, resume: Path | None) -> None:
        from databus.cli._change_lines import change_lines
        from databus.cli._tail_place import Place
        from databus.client import tail_lines

        with ExitStack() as stack:
            place = None
            if resume is not None:
                place = stack.enter_context(closing(Place(resume, self._taken, self.ended)))
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
        from databus.core import Checkpoint

        return Checkpoint(self.known) if self.following is None else self.following.checkpoint


def _big_integers_of(text: str) -> Literal["number", "string"]:
    from databus.core import ConfigError

    if text in _BIG_INTEGERS:
        return _BIG_INTEGERS[text]
    raise ConfigError(f"--big-integers {text}: is neither number nor string")
