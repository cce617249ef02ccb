"""`databus plugins`: the types of inputs, filters and outputs that there are."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import AsJson, app, say_json, say_table

plugins = typer.Typer(
    help="The types of inputs, filters and outputs: built in, or brought by installed packages.", no_args_is_help=True
)
app.add_typer(plugins, name="plugins")


@plugins.command("list", epilog="Example: databus plugins list")
def list_(as_json: AsJson = False) -> None:
    """List all types: kind, name, where it comes from, and what outputs promise."""
    from databus.pipeline import plugins as all_of_them

    types = [{**asdict(plugin), "kind": plugin.kind.word} for plugin in all_of_them()]
    if as_json:
        say_json([{name: value for name, value in entry.items() if name != "options"} for entry in types])
        return
    say_table(["kind", "type", "origin", "delivery", "error"], types)


@plugins.command(epilog="Example: databus plugins show delta")
def show(
    name: Annotated[str, typer.Argument(help="A type, such as delta, or FILE.py:CLASS.")], as_json: AsJson = False
) -> None:
    """Show the options of a type, with what they mean."""
    from databus.core import ConfigError
    from databus.pipeline import plugin

    types = plugin(name, Path())
    if as_json:
        say_json([{**asdict(described), "kind": described.kind.word} for described in types])
        return
    for described in types:
        if described.error:
            raise ConfigError(described.error)
        delivery = f"; delivery {described.delivery}" if described.delivery else ""
        typer.echo(f"{described.kind.word} {described.type}: {described.origin}{delivery}\n{described.about}\n")
        for option in described.options:
            default = {"": "", "required": ", required"}.get(option.default, f", default {option.default}")
            typer.echo(f"  {option.name}: {option.values}{default}")
            typer.echo(f"      {option.meaning}\n")
