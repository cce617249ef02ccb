"""`databus check-source`: whether a server is fit to be captured, and what would make it so."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from databus.cli._app import AsJson, app, say_json

if TYPE_CHECKING:
    from databus.sources import SourceConfig


@app.command("check-source", epilog="Example: databus check-source databus.yml shop")
def check_source(
    config: Annotated[Path, typer.Argument(help="A pipeline's file, or a relay's.")] = Path("databus.yml"),
    physical: Annotated[str | None, typer.Argument(help="One physical source; without it, all of type mysql.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the MySQL and MariaDB servers of a configuration what is wrong, and name the statement that mends it.

    A relay asks the same at every start. Exits with 1 if there is an error; warnings and hints do not stop capture.
    Compiles the decoder, once on a machine, which the first start would wait for otherwise.
    """
    configured = _sources_of(config)
    from databus.sources.mysql import MysqlConfig, load_kernels
    from databus.sources.mysql import check_source as findings_of

    sources = {name: each for name, each in configured.items() if isinstance(each, MysqlConfig)}
    chosen = list(sources) if physical is None else [_one_of(list(sources), physical, config)]
    found = [(name, each) for name in chosen for each in findings_of(sources[name])]
    if as_json:
        say_json([{"source": name, **each.to_json()} for name, each in found])
    else:
        for name, each in found:
            typer.echo(f"{each.severity:<8} {name}  {each.server}  {each.name}: {each.what}")
            if each.mend:
                typer.echo(f"{'':<8} > {each.mend}")
        words = {"error": "errors", "warning": "warnings", "info": "hints"}
        counts = [f"{words[kind]}: {sum(each.severity == kind for _, each in found)}" for kind in words]
        typer.echo(f"{', '.join(chosen) or 'no source of type mysql'}; {', '.join(counts)}")
    if any(each.severity == "error" for _, each in found):
        raise typer.Exit(1)
    if chosen:
        load_kernels(chosen[0], lambda doing: typer.echo(doing, err=True) if doing else None)


def _sources_of(path: Path) -> "Mapping[str, SourceConfig]":
    """The sources in a pipeline's file or a relay's: only the former says where rows go."""
    from databus.formats import load_yaml

    if load_yaml(path).keys() & {"inputs", "outputs"}:
        from databus.pipeline import load_pipeline

        return load_pipeline(path).config.sources
    from databus.relay import load_relay

    return load_relay(path).sources


def _one_of(names: list[str], name: str, config: Path) -> str:
    from difflib import get_close_matches

    from databus.core import UnknownSource

    if name in names:
        return name
    near = get_close_matches(name, names, 1)
    hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(names) or 'none'}"
    raise UnknownSource(f'{config}: no source of type mysql called "{name}"; {hint}')
