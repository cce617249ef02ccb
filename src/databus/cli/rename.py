"""`databus rename`: an output or a pipeline goes on under another name."""

from enum import StrEnum
from typing import Annotated

import typer

from databus.cli._app import AsJson, app, say_json
from databus.cli._file import DEFAULT_FILE, File


class Named(StrEnum):
    """What has a name that stands in targets and ledgers."""

    OUTPUT = "output"
    PIPELINE = "pipeline"


@app.command(epilog="Example: databus rename output copy archive")
def rename(
    what: Annotated[Named, typer.Argument(help="What has another name.")],
    old: Annotated[str, typer.Argument(help="The name that it had.")],
    new: Annotated[str, typer.Argument(help="The name that the file gives it now.")],
    pipeline: File = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Have an output, or all outputs of a pipeline, go on by a new name where they stand by the old one.

    Stop the pipeline, give the new name in its file, run this, and start the pipeline again. Without it an output with
    another name begins as at a first start. Killed half-way, it can be repeated, and no run begins before it is done.
    """
    from databus.core import InputError
    from databus.pipeline import load_pipeline, rename_output, rename_pipeline

    graph = load_pipeline(pipeline)
    if what is Named.OUTPUT:
        renamed = rename_output(graph, old, new)
    elif new != graph.config.name:
        name = graph.config.name
        raise InputError(f"{pipeline}: is of pipeline {name}, not {new}. Give it the new `name` there first")
    else:
        renamed = rename_pipeline(graph, old)
    if as_json:
        say_json({"renamed": [record._asdict() for record in renamed]})
        return
    for record in renamed:
        typer.echo(
            f"{record.output} goes on where {old} stood: tables {record.tables}, "
            f"changed in the target {record.records}, dead letters {record.letters}"
        )
    if not renamed:
        typer.echo(f"nothing is left by the name {old}: {new} goes on where it stands")
