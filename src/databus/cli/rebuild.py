"""`databus rebuild`: have a copy made anew."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import AsJson, app, say_json
from databus.cli._file_first import FILE_HELP, FileFirst


@app.command(cls=FileFirst, epilog="Example: databus rebuild copy main.orders")
def rebuild(
    pipeline: Annotated[Path, typer.Argument(help=FILE_HELP)],
    output: Annotated[
        str, typer.Argument(help="The output; of a type that keeps tables, such as delta, files or opensearch.")
    ],
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, * standing for anything; all of them.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove an output's tables, so that the next run makes them anew.

    The pipeline must not be running. The next `databus run` reads the whole output from the relay's log; where the log
    does not reach back that far, and for single tables, the relay reads the tables from the database again. Until that
    snapshot has ended, the tables are incomplete.
    """
    from databus.pipeline import load_pipeline
    from databus.pipeline import rebuild as rebuild_output

    def confirm(names: Sequence[str]) -> bool:
        return yes or typer.confirm(f"{output}: remove {', '.join(names) or 'what it has'}?", abort=True, err=True)

    folders = rebuild_output(load_pipeline(pipeline), output, tables or (), confirm=confirm)
    if as_json:
        say_json({"output": output, "removed": [str(each) for each in folders]})
        return
    for folder in folders:
        typer.echo(f"removed {folder}")
    typer.echo(f"the next `databus run {pipeline}` builds it again")
