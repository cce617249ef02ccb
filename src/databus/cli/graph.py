"""`databus graph`: a pipeline as a drawing."""

from enum import StrEnum
from typing import Annotated

import typer

from databus.cli._app import app
from databus.cli._file import DEFAULT_FILE, File


class Style(StrEnum):
    """Forms of drawings."""

    TREE = "tree"
    DOT = "dot"
    MERMAID = "mermaid"


@app.command(epilog="Example: databus graph databus.yml --style mermaid")
def graph(
    pipeline: File = DEFAULT_FILE,
    style: Annotated[Style, typer.Option(help="A tree of text; dot, for Graphviz; or mermaid.")] = Style.TREE,
) -> None:
    """Print a pipeline's graph; its edges say what they carry, tables or typed rows."""
    from databus.pipeline import load_pipeline, render

    typer.echo(render(load_pipeline(pipeline), style.value))
