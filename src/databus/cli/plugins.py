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

    found = [{**asdict(each), "kind": each.kind.word} for each in all_of_them()]
    if as_json:
        say_json([{name: value for name, value in each.items() if name != "options"} for each in found])
        return
    say_table(["kind", "type", "origin", "delivery", "error"], found)


@plugins.command(epilog="Example: databus plugins show delta")
def show(
    name: Annotated[str, typer.Argument(help="A type, such as delta, or FILE.py:CLASS.")],
    as_json: AsJson = False,
) -> None:
    """Show the options of a type, with what they mean."""
    from databus.core import ConfigError
    from databus.pipeline import plugin

    found = plugin(name, Path())
    if as_json:
        say_json([{**asdict(each), "kind": each.kind.word} for each in found])
        return
    for each in found:
        if each.error:
            raise ConfigError(each.error)
        delivery = f"; delivery {each.delivery}" if each.delivery else ""
        typer.echo(f"{each.kind.word} {each.type}: {each.origin}{delivery}\n{each.about}\n")
        for option in each.options:
            default = {"": "", "required": ", required"}.get(option.default, f", default {option.default}")
            typer.echo(f"  {option.name}: {option.values}{default}")
            typer.echo(f"      {option.meaning}\n")
