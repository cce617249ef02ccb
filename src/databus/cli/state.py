"""`databus state`: a table as it was, from the stores of a bootstrap service."""

from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import app
from databus.cli._past import SERVICE_FILE, ServiceFile, Table, moment_of, past_of, say_lag


@app.command(
    epilog="Example: databus state shop/main.orders --at 2026-07-01T12:00Z --into orders-in-july -f bootstrap.yml"
)
def state(
    table: Table,
    at: Annotated[str, typer.Option(help="A time, an SCN, or 15m or 2d ago.")],
    into: Annotated[Path, typer.Option(help="Folder of the Delta table that is made.")],
    file: ServiceFile = SERVICE_FILE,
) -> None:
    """Copy a table as it was at a moment into a new Delta table.

    It is made of the nearest older state that a bootstrap service keeps, and of the changes since, from its log store.
    Each row has the place of its last change, as in a mirror. The service need not run, and the database is not asked.
    """
    from databus.bootstrap import copy_state
    from databus.disk import located

    past, moment = past_of(file, table), moment_of(at, "--at")
    say_lag(moment, past)
    copied = copy_state(past, moment, located(into.absolute()))
    typer.echo(f"{into}: {copied.rows:,} rows of {table}, whose last change is of SCN {copied.position[0]}")
