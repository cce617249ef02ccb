"""`databus prepare` and `databus remove`: what capture needs in the database itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from databus.cli._app import app
from databus.cli._file import DEFAULT_FILE, AnyFile

if TYPE_CHECKING:
    from databus.sources import Preparable, SourceConfig

Physical = Annotated[str, typer.Argument(help="The physical source.")]


@app.command(epilog="Example: databus prepare shop databus.yml")
def prepare(
    physical: Physical,
    config: AnyFile = DEFAULT_FILE,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Let another relay capture it; the one before cannot go on then.")
    ] = False,
) -> None:
    """Put into the database what capture needs there, or bring it up to date. A relay does the same at its start."""
    source, options = _preparable(config, physical)
    typer.echo(source.prepare(options, take_over=take_over))


@app.command(epilog="Example: databus remove shop databus.yml")
def remove(physical: Physical, config: AnyFile = DEFAULT_FILE) -> None:
    """Take out of the database what databus put into it. Stop the relay first."""
    source, options = _preparable(config, physical)
    typer.echo(source.remove(options))


def _preparable(config: Path, physical: str) -> "tuple[type[Preparable], SourceConfig]":
    from databus.cli._configured import source_in
    from databus.sources import Preparable, offered

    options = source_in(config, physical)
    return offered(Preparable, options, physical), options
