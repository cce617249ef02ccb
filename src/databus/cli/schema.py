"""`databus schema`: what a pipeline's file may hold, for editors."""

import typer

from databus.cli._app import app


@app.command(epilog="Example: databus schema > databus.schema.json")
def schema() -> None:
    """Print the JSON Schema of a pipeline's file, with the options of all plugins that are installed.

    Editors with a YAML language server complete and check a file that begins with the line
    `# yaml-language-server: $schema=databus.schema.json`.
    """
    import json

    from databus.pipeline import pipeline_schema

    typer.echo(json.dumps(pipeline_schema(), indent=1, ensure_ascii=False))
