"""`databus validate`: every mistake of a pipeline's file, without starting anything."""

from typing import Annotated

import typer

from databus.cli._app import AsJson, app, say_json
from databus.cli._file import DEFAULT_FILE, File


@app.command(epilog="Example: databus validate databus.yml")
def validate(
    pipeline: File = DEFAULT_FILE,
    master: Annotated[str | None, typer.Option(help="Check for this Spark master too.")] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Connect to nothing: no database, relay or object store.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find every error in a pipeline's file at once. Exits with 2 if there is one; warnings do not count.

    Databases, or a relay that runs elsewhere, are asked for their tables, so that columns and keys which filters and
    outputs name are known to be there; one that does not answer is a warning. Object stores are asked whether they
    answer. Tests that cannot be run are warnings, since the pipeline runs without them.
    """
    from databus.pipeline import validate as problems_of

    problems = problems_of(pipeline, master=master, offline=offline, asks_sources=not offline)
    errors = [problem for problem in problems if not problem.is_warning]
    if as_json:
        keys = ("path", "message", "line")
        say_json(
            [{**{key: getattr(problem, key) for key in keys}, "warning": problem.is_warning} for problem in problems]
        )
    else:
        for problem in problems:
            typer.secho(problem.in_file(pipeline), err=True)
        if not errors:
            typer.echo(f"{pipeline}: no errors")
    if errors:
        raise typer.Exit(2)
