"""`databus rebuild`: remove a copy and make it again."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from databus.cli._app import AsJson, app, say_json
from databus.cli._file import DEFAULT_FILE, File

_LOST: Final = ", with its changes, of which those come back that the relay's log still holds"
_LOST_OF_TABLES: Final = ", with the changes in it, which do not come back: the rows are read as they are now"


@app.command(epilog="Example: databus rebuild copy main.orders")
def rebuild(
    output: Annotated[
        str, typer.Argument(help="The output; of a type that keeps tables, such as delta, files or opensearch.")
    ],
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, * standing for anything; all of them.")] = None,
    pipeline: File = DEFAULT_FILE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove an output's tables, so that the next run makes them again.

    The pipeline must not be running. The next `databus run` reads the whole output from the relay's log; where the log
    does not reach back that far, and for single tables, the relay reads the tables from the database again. Until that
    snapshot has ended, the tables are incomplete. What keeps changes, such as a history, loses those that it had before
    a snapshot.
    """
    from databus.pipeline import keeps_changes, load_pipeline
    from databus.pipeline import rebuild as rebuild_output

    graph = load_pipeline(pipeline)
    lost = "" if not keeps_changes(graph, output) else _LOST_OF_TABLES if tables else _LOST

    def confirm(names: Sequence[str]) -> bool:
        what = ", ".join(names) or "what it has"
        return yes or typer.confirm(f"{output}: remove {what}{lost}?", abort=True, err=True)

    folders = rebuild_output(graph, output, tables or (), confirm=confirm)
    if as_json:
        say_json({"output": output, "removed": [str(folder) for folder in folders]})
        return
    for folder in folders:
        typer.echo(f"removed {folder}")
    typer.echo(f"the next `databus run {pipeline}` builds it again")
