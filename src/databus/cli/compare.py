"""`databus compare`: whether a copy is identical to its source."""

from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import AsJson, app, say_json, say_wait
from databus.cli._file import DEFAULT_FILE, File


@app.command(epilog="Example: databus compare databus.yml copy")
def compare(
    pipeline: File = DEFAULT_FILE,
    output: Annotated[str, typer.Argument(help="A Delta output in mode `mirror`.")] = "copy",
    database: Annotated[
        Path | None, typer.Option(help="The SQLite file, where the pipeline's relay runs elsewhere.")
    ] = None,
    relay_config: Annotated[
        Path | None, typer.Option(help="The relay's configuration, where it runs elsewhere: what its sources are.")
    ] = None,
    wait_s: Annotated[
        float, typer.Option(help="How long to wait for the copy to reach the source; comparing comes on top.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Compare every table of a source with its copy, by value, at one position.

    Exits with 0 where they are identical, 1 on a difference, 3 where capture is suspended, 75 where the copy did not
    reach the source in time. What it waits for is said on standard error. When the time is up it looks once more, and
    finishes a comparison that it has begun; starting up and reading the tables come on top.

    The databases are read themselves, as the pipeline's file says under `sources`. If it has none, since its relay runs
    elsewhere, name that relay's file by --relay-config, or a SQLite file by --database.
    """
    from databus.pipeline import compare as compare_copy
    from databus.pipeline import load_pipeline
    from databus.relay import load_relay

    sources = None if relay_config is None else load_relay(relay_config).sources
    comparison = compare_copy(
        load_pipeline(pipeline),
        output,
        database=database,
        sources=sources,
        wait_ms_max=int(wait_s * 1000),
        on_wait=say_wait,
    )
    if as_json:
        say_json(comparison.to_json())
    else:
        typer.echo(comparison.summary() if comparison.is_identical else comparison.details())
    if not comparison.is_identical:
        raise typer.Exit(1)
