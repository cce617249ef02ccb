"""`databus check-source`: whether a server is fit to be captured, and what would make it so."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from databus.cli._app import AsJson, app, say_json
from databus.cli._file import DEFAULT_FILE, AnyFile

if TYPE_CHECKING:
    from databus.sources import Finding


@app.command("check-source", epilog="Example: databus check-source shop databus.yml")
def check_source(
    physical: Annotated[
        str | None, typer.Argument(help="One physical source; without it, all that can be checked.")
    ] = None,
    config: AnyFile = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Ask the servers of a configuration what is wrong, and name the statement that mends it.

    Of a pipeline's file also what its filters and outputs name and no table has, and tables without a key under an
    output that needs one, as a mirror does; of a relay's file, tables and columns in `access` that no log has. A relay
    asks the same at every start. Exits with 1 if there is an error; warnings and hints do not stop capture.
    MySQL and MariaDB: compiles the decoder, once on a machine, which the first start would wait for otherwise.
    """
    from databus.cli._configured import source_in, sources_in
    from databus.sources import Checkable, offered, offers

    chosen = sources_in(config) if physical is None else {physical: source_in(config, physical)}
    sources = {name: source for name, source in chosen.items() if physical is not None or offers(source, Checkable)}
    kinds: dict[str, type[Checkable]] = {name: offered(Checkable, source, name) for name, source in sources.items()}
    findings = [(name, finding) for name, kind in kinds.items() for finding in kind.check(sources[name])]
    findings += [("pipeline", finding) for finding in _of_pipeline(config, physical)]
    findings += [("relay", finding) for finding in _of_relay(config, physical)]
    if as_json:
        say_json([{"source": name, **finding.to_json()} for name, finding in findings])
    else:
        for name, finding in findings:
            typer.echo(f"{finding.severity:<8} {name}  {finding.server}  {finding.name}: {finding.what}")
            if finding.mend:
                typer.echo(f"{'':<8} > {finding.mend}")
        words = {"error": "errors", "warning": "warnings", "info": "hints"}
        counts = [f"{words[kind]}: {sum(finding.severity == kind for _, finding in findings)}" for kind in words]
        if kinds:
            typer.echo(f"{', '.join(kinds)}; {', '.join(counts)}")
        for name in chosen.keys() - kinds.keys():
            typer.echo(f"{name}: there is nothing to ask of a source of type {chosen[name].type} before it is captured")
        if not chosen:
            typer.echo(f"{config}: no sources are captured by this file; check them where their relay's file is")
    if any(finding.severity == "error" for _, finding in findings):
        raise typer.Exit(1)
    for kind in set(kinds.values()):
        name = next(candidate for candidate in kinds if kinds[candidate] is kind)
        kind.warm_up(name, lambda doing: typer.echo(doing, err=True) if doing else None)


def _of_relay(path: Path, physical: str | None) -> "list[Finding]":
    """Tables and columns in `access` of a relay's file that it has not captured. physical: as below."""
    from databus.cli._configured import is_pipeline
    from databus.relay import load_relay, mistakes_on_disk
    from databus.sources import Finding

    mistakes = [] if physical is not None or is_pipeline(path) else mistakes_on_disk(load_relay(path))
    return [Finding("warning", "unknown", path.name, mistake) for mistake in mistakes]


def _of_pipeline(path: Path, physical: str | None) -> "list[Finding]":
    """What a pipeline's file names that no table has, and tables that an output refuses, as errors; what `validate`
    warns of is its own to say. physical: the one source to ask; None for all.
    """
    from databus.cli._configured import is_pipeline
    from databus.pipeline import validate
    from databus.sources import Finding

    asked = True if physical is None else [physical]
    problems = validate(path, offline=True, asks_sources=asked) if is_pipeline(path) else []
    return [
        Finding("error", problem.path, path.name, problem.message) for problem in problems if not problem.is_warning
    ]
