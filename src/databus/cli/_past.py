"""What commands about the past of a table share: the service's file, moments, and where the result goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from databus.cli._app import utc
from databus.cli._file import DEFAULT_FILE

if TYPE_CHECKING:
    from databus.bootstrap import Moment, TablePast
    from databus.flow import TableControl, TableRows

SERVICE_FILE: Final = Path("bootstrap.yml")

ServiceFile = Annotated[
    Path, typer.Option("--file", "-f", help="The file of a bootstrap service. It may stand as a word alone.")
]
Table = Annotated[str, typer.Argument(help="A table that the service keeps, such as shop/main.orders.")]
Until = Annotated[
    str | None, typer.Option(help="Of a table: up to when, a time, an SCN, or 15m or 2h ago; else to the end.")
]
Into = Annotated[Path | None, typer.Option(help="Write a new Delta table into this folder, in the place of lines.")]


def past_of(file: Path, table: str) -> "TablePast":
    """A table in the stores of a service."""
    from databus.bootstrap import TablePast, load_bootstrap

    return TablePast.of(load_bootstrap(SERVICE_FILE if file == DEFAULT_FILE else file), table)


def moment_of(text: str, option: str) -> "Moment":
    """A time, how long ago it is, or an SCN."""
    from databus.bootstrap import Moment
    from databus.cli._tail_bounds import SCN, time_of
    from databus.core import us_of

    written = f"{option} {text}"
    if SCN.fullmatch(text):
        return Moment(written, scn=int(text))
    return Moment(written, at_us=us_of(time_of(text, option)))


def end_of(text: str | None, past: "TablePast", option: str = "--until") -> "Moment | None":
    """The same for an end; says so where the log store has not come as far as a time."""
    if text is None:
        return None
    moment = moment_of(text, option)
    say_lag(moment, past)
    return moment


def say_lag(moment: "Moment", past: "TablePast") -> None:
    """Say on standard error where the log store stands, if it may lack something of a time."""
    head = past.look.kept.head.position
    if moment.at_us is not None and moment.at_us > head.ts_us:
        typer.echo(
            f"{moment.written}: the log store has come to SCN {head.scn} of {utc(head.ts_us)}; what was "
            "committed later is not in this",
            err=True,
        )


def say_begin(since: "Moment | None", past: "TablePast") -> None:
    """Say on standard error where the log store begins, if older changes of a table were removed from it."""
    head = past.look.kept.head
    if head.cut is None or past.goes_back_to_begin:
        return
    is_older = since is None or (since.scn is not None and since.scn <= head.cut.at[0])
    if is_older or (since is not None and since.at_us is not None and since.at_us <= head.cut.last_us):
        typer.echo(
            f"{past.name}: the log store begins behind SCN {head.cut.at[0]}; older changes are not in this", err=True
        )


def say(past: "TablePast", items: "Iterator[TableRows | TableControl]", into: Path | None) -> None:
    """Print items, or write them."""
    from databus.bootstrap import lines_of, written_into
    from databus.disk import located

    if into is not None:
        typer.echo(f"{into}: {written_into(located(into.absolute()), past, items):,} rows")
        return
    for line in lines_of(past, items):
        typer.echo(line)
