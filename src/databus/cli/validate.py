"""`databus validate`: every mistake of a pipeline's file, without starting anything."""

from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import AsJson, app, say_json


@app.command(epilog="Example: databus validate databus.yml")
def validate(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline's file.")] = Path("databus.yml"),
    master: Annotated[str | None, typer.Option(help="Check for this Spark master too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find every error in a pipeline's file at once. Exits with 2 if there is one."""
    from databus.pipeline import validate as problems_of

    problems = problems_of(pipeline, master=master)
    if as_json:
        say_json([{"path": each.path, "message": each.message} for each in problems])
    else:
        for each in problems:
            typer.secho(f"{pipeline}: {each}", err=True)
        if not problems:
            typer.echo(f"{pipeline}: no errors")
    if problems:
        raise typer.Exit(2)
