"""`databus diff`: what changes of a table come to, from the stores of a bootstrap service."""

from typing import Annotated

import typer

from databus.cli._app import app
from databus.cli._past import SERVICE_FILE, Into, ServiceFile, Table, end_of, moment_of, past_of, say, say_lag


@app.command(epilog="Example: databus diff shop/main.orders --from 2d --to 2026-07-01T12:00Z -f bootstrap.yml")
def diff(
    table: Table,
    since: Annotated[str, typer.Option("--from", help="A time, an SCN, or 15m or 2d ago.")],
    until: Annotated[str | None, typer.Option("--to", help="The same; else now.")] = None,
    file: ServiceFile = SERVICE_FILE,
    into: Into = None,
) -> None:
    """What has changed in a table from one moment to another: each row once, as lines of JSON.

    A row that came is an insert, one that went a delete; of one that is another there are both images. All of them have
    the columns that the table has at the end. It is read from the log store of a bootstrap service, which need not run.
    """
    from databus.bootstrap import diff_of

    past = past_of(file, table)
    begin = moment_of(since, "--from")
    say_lag(begin, past)
    say(past, diff_of(past, begin, end_of(until, past, "--to")), into)
